"""Files that a command writes: as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from pathlib import Path

from queueproof.cli.streams import loss_of
from queueproof.errors import QueueproofError

STDOUT = Path("-")  # what is written there is the report alone, and all else goes to stderr


def refuse_unwritable(path: Path) -> None:
    """Find out before the minute of work whether its result can be written.

    Raises:
        QueueproofError: It cannot.
    """
    if path == STDOUT:
        return
    real = path.resolve()
    try:
        if real.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not real.exists() or real.is_file():
            beside = _beside(real)
            beside.touch(exist_ok=False)
            beside.unlink()
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all.

    Raises:
        QueueproofError: It cannot be written.
    """
    if path == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        if (lost := loss_of(sys.stdout)) is not None:
            raise QueueproofError(f"cannot write to stdout: {lost.strerror}")
        return
    real = path.resolve()
    beside = _beside(real)
    try:
        if real.exists() and not real.is_file():  # /dev/stdout, a pipe: nothing to put in place
            real.write_text(text, encoding="utf-8")
            return
        try:
            beside.write_text(text, encoding="utf-8")
            if real.exists():
                shutil.copymode(real, beside)
            beside.replace(real)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def append(path: Path, text: str) -> None:
    """Write to the end of a file that others write to as well.

    Raises:
        QueueproofError: It cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        QueueproofError: It is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise QueueproofError(f"{path} exists already, and is left as it is") from None
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
