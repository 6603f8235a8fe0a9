"""The command line: a module for each command, and what they have in common.

The commands are imported late: that takes a quarter of a second, in which Ctrl-C may come.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from queueproof.errors import Exit


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        from queueproof.cli import app
    except KeyboardInterrupt:
        sys.stderr.write("queueproof: interrupted\n")
        sys.exit(Exit.INTERRUPTED)
    app.main()


def run(arguments: Sequence[str]) -> int:
    """Run one command, from what stands after `queueproof`; the exit code."""
    from queueproof.cli import app

    return app.run(arguments)
