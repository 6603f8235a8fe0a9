"""What judges beside others goes when nobody asks any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import os, signal
from queueproof.processes import processes

if __name__ == "__main__":
    with processes() as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        signal.pause()
"""


def test_they_do_not_outlive_a_parent_that_was_killed(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Kill -9 leaves no time to tell them."""
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists())
