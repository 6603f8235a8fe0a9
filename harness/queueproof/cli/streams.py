"""Standard streams that change no exit code, unless a report is lost in them."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _LastingStream(io.RawIOBase):
    """A standard stream that swallows everything once it cannot be written to any more."""

    def __init__(self, descriptor: int) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # a pipe that somebody else has set so
            select.select([], [self._descriptor], [])
            return 0
        except OSError as error:
            self.error = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._descriptor)
            return memoryview(data).nbytes


def loss_of(stream: IO[str]) -> OSError | None:
    """Why a standard stream has lost what was written; None too where its reader has left."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    error = raw.error if isinstance(raw, _LastingStream) else None
    return None if error is None or error.errno == errno.EPIPE else error


def make_streams_last() -> None:
    """Let no stream that is closed, full, or read by nobody change what the exit code says."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed, and the next file that is opened would stand in for it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        known = getattr(sys, name)
        stream = io.TextIOWrapper(
            io.BufferedWriter(_LastingStream(descriptor)),
            encoding=known.encoding if known else "utf-8",
            errors="replace",
            line_buffering=name == "stderr" or os.isatty(descriptor),
        )
        if known:
            known.flush()
        setattr(sys, name, stream)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - the process' own
