"""Files that a command writes: as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import select
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from queueproof.cli.streams import loss_of
from queueproof.errors import QueueproofError

STDOUT = Path("-")  # what is written there is the report alone, and all else goes to stderr


def refuse_outputs(outputs: Iterable[Path | None], read: Iterable[Path]) -> None:
    """Find out before the minute of work whether its results can be written, and harm nothing.

    What is `read` no output may replace, by whatever name. QueueproofError: one cannot be written,
    is read, or is named twice.
    """
    inputs = {_identity(path): path for path in read}
    written: dict[object, Path] = {}
    for path in outputs:
        if path is None:
            continue
        identity = _identity(path)
        if identity in inputs:
            same = "" if path == inputs[identity] else f"it is {inputs[identity]}, and "
            raise QueueproofError(f"cannot write {path}: {same}it is read here: name another file")
        if identity in written:
            raise QueueproofError(
                f"cannot write both {written[identity]} and {path}: they are one file, and reports"
                " need a file each"
            )
        written[identity] = path
        refuse_unwritable(path)


def _identity(path: Path) -> object:
    """The identity that all names of one file share, however they are spelt or linked."""
    try:
        found = os.fstat(1) if path == STDOUT else path.stat()
    except OSError:  # it is not there yet
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _real(path: Path) -> Path:
    """The place that a path leads to."""
    with suppress(FileNotFoundError):
        path.stat()
    return Path(os.path.realpath(path))


def refuse_unwritable(path: Path) -> None:
    """Find out before the minute of work whether its result can be written."""
    if path == STDOUT:
        return
    with _writing(path):
        real = _real(path)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if path.is_dir() or path.is_socket() or path.is_block_device():
            raise QueueproofError(f"cannot write {path}: it is no file; name one")
        if not path.exists() or path.is_file():
            beside = _beside(real)
            beside.touch(exist_ok=False)
            beside.unlink()


def write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    if path == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        if (lost := loss_of(sys.stdout)) is not None:
            raise QueueproofError(f"cannot write to stdout: {lost.strerror}")
        return
    with _writing(path):
        if streams(path):  # /dev/stdout, a pipe: nothing to put in place
            _pour(path, text)
            return
        real = _real(path)
        beside = _beside(real)
        try:
            beside.write_text(text, encoding="utf-8")
            if real.exists():
                shutil.copymode(real, beside)
            beside.replace(real)
        finally:
            beside.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Write to the end of a file that others write to as well."""
    with _writing(path):
        if streams(path):
            _pour(path, text)
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def refuse_existing(path: Path) -> None:
    """Refuse to replace a file."""
    if path.exists():
        how = "name another file, or remove it"
        raise QueueproofError(f"{path} exists already, and is left as it is: {how}")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    refuse_existing(path)
    with _writing(path), path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:  # what is there in part would stand in the way of the next time
            path.unlink()
            raise


def streams(path: Path) -> bool:
    """True when what is written there goes on to somebody: a pipe, a terminal, a device."""
    return path.exists() and not path.is_file()


def _pour(path: Path, text: str) -> None:
    """Write to who reads at the other end, and wait for that only so long."""
    from queueproof import waits

    rest = text.encode()
    begun = waits.Limit(waits.READER, f"somebody to read {path}")
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:  # a pipe that nobody has opened
                raise
        time.sleep(begun.left())
    taken = select.poll()
    taken.register(descriptor, select.POLLOUT)
    try:
        while rest:
            limit = waits.Limit(waits.READER, f"somebody to read {path}")
            while not taken.poll(limit.left() * 1000):
                pass
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # less room than one write needs
                time.sleep(limit.left(0.01))
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say of what the system refuses which file it was about."""
    try:
        yield
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
