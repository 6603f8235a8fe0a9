"""What judges beside others goes when nobody asks any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


def test_a_worker_of_pytest_does_not_outlive_it(
    begin: Callable[..., subprocess.Popen[str]],
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    """As with `pytest -n 2` that is killed: its workers end, and with them their servers."""
    parent = begin(sys.executable, "-c", PARENT, CHILD, stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.kill()
    eventually(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    """Whether a process is there that has not ended: nobody may reap what has lost its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_they_do_not_outlive_a_parent_that_was_killed(
    tmp_path: Path,
    begin: Callable[..., subprocess.Popen[str]],
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    """Kill -9 leaves no time to tell them."""
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT, encoding="utf-8")
    parent = begin(sys.executable, str(script), stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists())
