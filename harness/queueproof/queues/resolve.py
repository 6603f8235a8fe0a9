"""From what the user typed to the queue under test: an SQL file, a class, an `exec:` worker."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType
from typing import Any

from queueproof.errors import ClassError, QueueError, QueueproofError, Source, nearest
from queueproof.queues import sqlfile
from queueproof.queues.client import Client, describe
from queueproof.queues.facts import readers, within_reach
from queueproof.queues.model import FACTS, OPERATIONS, Queue, code_of
from queueproof.queues.worker import WorkerQueue, from_command

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def resolve(name: str) -> Queue:
    """The queue of an SQL file, `package.module:Class` or `exec: command`; or a QueueproofError."""
    if name.startswith("exec:"):
        return from_command(name)
    if _CLASS.fullmatch(name) and not Path(name).exists():
        return _from_class(name)
    if not name.strip():
        raise QueueproofError("the queue has no name; write a file's path or package.module:Class")
    if hint := _meant(name):
        raise QueueproofError(f"{name}: {hint}")
    return sqlfile.load(name)


def sql_file(name: str, asked: str) -> sqlfile.SqlFileQueue:
    """The queue of an SQL file, for a command that takes nothing else."""
    queue = resolve(name)
    if not isinstance(queue, sqlfile.SqlFileQueue):
        raise QueueproofError(f"{asked} takes a queue file (.sql): {name} is none")
    return queue


def equivalents(queue: sqlfile.SqlFileQueue) -> Path:
    """The file beside a queue's that may say which of its mutants are no defects."""
    return Path(queue.name).with_suffix(".equivalent.toml")


def files_of(queue: Queue) -> list[Path]:
    """The files that a queue is made of, as far as its kind tells them."""
    if isinstance(queue, sqlfile.SqlFileQueue):
        return [*queue.files, equivalents(queue)]
    if not isinstance(queue, WorkerQueue):
        return [Path(file) for kind in type(queue).__mro__ if (file := _source_file(kind))]
    module = sys.modules.get(queue.name.partition(":")[0])  # of a class with a process per worker
    named = [*queue.argv, getattr(module, "__file__", None) or ""]
    # Path.is_file fails on an argument that can be no file's name.
    return [Path(name) for name in named if os.path.isfile(name)]  # noqa: PTH113


_LANGUAGES = {".py": "python", ".mjs": "node", ".cjs": "node", ".js": "node", ".rb": "ruby"}


def _meant(name: str) -> str:
    """The hint for a worker without `exec:` before it, or for no file; empty for anything else."""
    path = Path(name)
    if path.suffix == ".sql" and not os.path.lexists(path) and path.parent.is_dir():
        return f"No such file or directory; begin one: queueproof init {shlex.quote(name)}"
    if path.suffix in _LANGUAGES and path.is_file():
        return f'a program? write "exec: {_LANGUAGES[path.suffix]} {name}"'
    first = name.split(maxsplit=1)[0]
    if first != name and not path.exists() and shutil.which(first):
        return f'a program? write "exec: {name}"'
    return ""


def blame(error: BaseException, queue: Queue) -> QueueError | None:
    """The user's error for an exception that a Python queue's own code raised, if it did."""
    if isinstance(queue, sqlfile.SqlFileQueue | WorkerQueue):
        return None
    source = _source_file(type(queue))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == source]
    if not frames:
        return None
    return QueueError(_one_line(error), Source(_shown(source), frames[-1].lineno or 1))


def _from_class(name: str) -> Queue:
    module_name, _, path = name.partition(":")
    found: object = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            classes = [known for known, value in vars(found).items() if isinstance(value, type)]
            raise QueueproofError(f"{name}: {module_name} has no {part}{nearest(part, classes)}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Queue | Client)):
        raise QueueproofError(
            f"{name}: {path} is not derived from queueproof.Queue or queueproof.Client"
        )
    line = _first_line(found)
    _check_operations(found, line)
    _check_names(found, _written(found), line)
    if issubclass(found, Client):
        return _hosted(name, found, line)
    try:
        queue = found()
    except Exception as error:
        message = f"{path}() cannot be made without arguments: {_one_line(error)}"
        raise QueueError(message, line) from error
    _check_names(found, _written(found) | vars(queue), line)
    _check_facts(queue, line)
    try:
        _ = queue.digest
    except (OSError, TypeError):
        raise _unreadable(name) from None
    return queue


def _unreadable(name: str) -> QueueproofError:
    return QueueproofError(f"{name}: its source cannot be read, and a replay token must name it")


def _hosted(name: str, kind: type[Client], line: Source | None) -> WorkerQueue:
    """The queue of a class whose workers each live in a process of their own."""
    _check_facts(kind, line)
    try:
        source = code_of(kind, Client)
    except (OSError, TypeError):
        raise _unreadable(name) from None
    queue = WorkerQueue(
        name,
        [sys.executable, "-m", "queueproof.queues.client", name],
        written=source,
        # What was found from here must be found from there.
        environment={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    queue.described_by(describe(kind))
    return queue


def _module(name: str) -> ModuleType:
    # Where the user stands, as `python -m` has it: an entry point's sys.path lacks it.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise QueueproofError(f"{name}: no module {missing} here or on Python's path") from None
        raise _broken_import(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken_import(name, error) from error


def _broken_import(name: str, error: BaseException) -> QueueError:
    message = f"{name} cannot be imported: {_one_line(error)}"
    if isinstance(error, SyntaxError) and error.filename:
        return QueueError(message, Source(_shown(error.filename), error.lineno or 1))
    last = [
        Source(_shown(frame.filename), frame.lineno or 1)
        for frame in traceback.extract_tb(error.__traceback__)[1:]  # the first is this file's own
        if not frame.filename.startswith("<frozen") and frame.filename != importlib.__file__
    ][-1:]
    return QueueError(message, *last)


def _check_operations(kind: type[Queue | Client], line: Source | None) -> None:
    for operation in kind.required:
        if not callable(getattr(kind, operation, None)):
            written = [n for n, v in vars(kind).items() if callable(v) and n not in OPERATIONS]
            near = nearest(operation, written).replace("did you mean", "is it")
            raise ClassError(
                f"{kind.__qualname__} has no {operation}, which is required{near}", line
            )
    for operation, known in OPERATIONS.items():
        method = getattr(kind, operation, None)
        if not callable(method) or isinstance(inspect.getattr_static(kind, operation), property):
            continue
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.name in known or parameter.default is not parameter.empty:
                continue
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                continue
            takes = f"; it may take {', '.join(sorted(known)) or 'nothing'}"
            near = nearest(parameter.name, known) or takes
            message = f"{operation} cannot be given {parameter.name!r}{near}"
            raise ClassError(message, _first_line(method) or line)


def _written(kind: type[Queue | Client]) -> dict[str, object]:
    """Every name that a class has of its own, with its value where it has one."""
    own = [one for one in reversed(kind.__mro__) if one not in {*Queue.__mro__, *Client.__mro__}]
    named = (dict.fromkeys(inspect.get_annotations(one)) | dict(vars(one)) for one in own)
    return {name: value for names in named for name, value in names.items()}


def _check_names(
    kind: type[Queue | Client], written: Mapping[str, object], line: Source | None
) -> None:
    """Refuse a name that is nearly a fact's or an operation's: nothing would read it."""
    for name, value in written.items():
        if name.startswith("_") or hasattr(Client if issubclass(kind, Client) else Queue, name):
            continue
        known = OPERATIONS if callable(value) else FACTS
        meant = next((k for k in known if k not in written and _is_near(name, k)), None)
        if name in {*OPERATIONS, *FACTS} or meant is None:
            continue
        raise ClassError(
            f"{name} says nothing to queueproof; did you mean {meant!r}? A name of your own may "
            f"begin with an underscore",
            _line_of(kind, name) or line,
        )


def _is_near(name: str, known: str) -> bool:
    """True if a name is a known one with a slip of the pen."""
    one, other = (word.replace("_", "").lower() for word in (name, known))
    return sorted(one) == sorted(other) or SequenceMatcher(None, one, other).ratio() > _NEAR


_NEAR = 0.86  # leases and max_attempt are nearer, release and job are not


def _line_of(kind: type[Queue | Client], name: str) -> Source | None:
    """The line of a class body in which a name stands first."""
    for one in kind.__mro__:
        if name not in vars(one) and name not in inspect.get_annotations(one):
            continue
        if (first := _first_line(one)) is None:
            return None
        own = re.compile(rf"\s+((async )?def )?{re.escape(name)}\b")
        lines = enumerate(inspect.getsourcelines(one)[0], first.line)
        return Source(first.path, next((n for n, text in lines if own.match(text)), first.line))
    return None


def _timedelta(value: object) -> timedelta:
    if not isinstance(value, timedelta):
        raise ValueError(f"{value!r} is no timedelta; write timedelta(seconds=30)")  # noqa: TRY004 - as every wrong value
    return within_reach(value)


_FACTS = readers(_timedelta, "timedelta(seconds=30)", "{'order': 'why it is accepted'}")


def _check_facts(queue: Queue | type[Client], line: Source | None) -> None:
    for fact, read in _FACTS.items():
        value = getattr(queue, fact)
        if value == getattr(Queue, fact):
            continue
        try:
            fit = read([*value] if isinstance(value, frozenset | set | tuple) else value)
        except ValueError as error:
            raise ClassError(f"{fact}: {error}", line) from None
        if fit != value:  # a list where others have a set, as the header of an SQL file
            setattr(queue, fact, fit)


def _source_file(kind: type) -> str:
    try:
        return inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return ""


def _first_line(thing: Any) -> Source | None:  # noqa: ANN401 - a class or a function
    try:
        file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return None
    return Source(_shown(file), line) if file else None


def _shown(file: str) -> Path:
    """A file as the user would name it: from where they stand, if it is below."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
