"""What judges beside others goes when nobody asks any more."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fix_programs import Begin, Eventually, is_gone

SCRIPT = """
import os, signal
from queueproof.examine.processes import processes

if __name__ == "__main__":
    with processes() as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        signal.pause()
"""


CHILD = """
import signal
from queueproof.examine.processes import end_without_parent
end_without_parent()
print("begun", flush=True)
signal.pause()
"""
PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def test_a_worker_of_pytest_does_not_outlive_it(begin: Begin, eventually: Eventually) -> None:
    """As with `pytest -n 2` that is killed: its workers end, and with them their servers."""
    parent = begin(sys.executable, "-c", PARENT, CHILD)
    child = int(parent.line())
    parent.kill()
    eventually(lambda: is_gone(child), "the child to end")


def test_they_do_not_outlive_a_parent_that_was_killed(
    tmp_path: Path, begin: Begin, eventually: Eventually
) -> None:
    """Kill -9 leaves no time to tell them."""
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT, encoding="utf-8")
    parent = begin(sys.executable, str(script))
    child = int(parent.line())
    parent.kill()
    eventually(lambda: is_gone(child), "the child to end")
