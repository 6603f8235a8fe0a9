"""What judges beside others goes when nobody asks any more."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fix_programs import Begin, eventually, is_gone

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


@pytest.mark.parametrize(
    "program", [(PARENT, CHILD), (SCRIPT,)], ids=["a worker of pytest", "beside a check"]
)
def test_they_do_not_outlive_a_parent_that_was_killed(
    tmp_path: Path, begin: Begin, program: Sequence[str]
) -> None:
    """Kill -9 leaves no time to tell them: they end, and with them their servers."""
    script = tmp_path / "parent.py"
    script.write_text(program[0], encoding="utf-8")
    parent = begin(sys.executable, script, *program[1:])
    child = int(parent.line())
    parent.kill()
    eventually(lambda: is_gone(child), "the child to end")
