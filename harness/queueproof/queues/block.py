"""A block of a queue file: its statements, and what their rows answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from queueproof.errors import FormatError, Source
from queueproof.queues.model import (
    NOW,
    VOID,
    Claim,
    JobRow,
    Operation,
    Parameter,
    Result,
    State,
    Step,
    Value,
    Values,
    ids_of,
    interval,
)
from queueproof.queues.sqltext import Span, first_keyword

Mode: TypeAlias = Literal["", "!", "#"]
_NO_ROW = "where a function always answers a row, add WHERE id IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a block: one step of the operation."""

    text: str  # as it stands in the file, with its `:name`s
    source: Source
    parameters: Mapping[str, Source]  # each with the place where it is first used
    start: int  # where in the text of its file it begins
    otherwise: bool = False  # sent only where the one before it answered no row (`-- else`)

    @property
    def span(self) -> Span:
        """The stretch of the file that it takes."""
        return Span(self.start, self.start + len(self.text))

    @property
    def word(self) -> str:
        """Its first keyword."""
        return first_keyword(self.text)


@dataclass(frozen=True, slots=True)
class Block:
    """A named block."""

    name: str  # as in the file: `schema`, `enqueue`, ...
    source: Source  # of its `-- name:`; a statement may stand in an included file
    mode: Mode  # `!` counts the rows affected, `#` marks the schema
    parameters: tuple[str, ...] | None  # the declared list, None where there is none
    statements: tuple[Statement, ...]  # at least one

    @property
    def used(self) -> dict[str, Source]:
        """Each parameter and where it is first used."""
        return {n: place for s in reversed(self.statements) for n, place in s.parameters.items()}


_CLOSE = 0.4  # as difflib counts: "jobs" and "job_list", and not "foo" and "isolation"
ELSE = "`-- else`"
ARRAYS = "under the column's name and an s, whatever it ends in"


def meant(name: str, names: Iterable[str]) -> str:
    """Ask for the known name that is close, or tell which there are."""
    known = list(names)
    close = get_close_matches(name.lower(), known, n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def no_parameter(block: str, name: str, known: Collection[str]) -> str:
    """The message about a parameter that nobody gives to a block."""
    message = f"{block} has no parameter :{name}"
    if not known:
        return message
    near = meant(f":{name}", [f":{one}" for one in known])
    how = f"; arrays stand {ARRAYS}" if name.endswith("s") else ""
    return f"{message}, only {', '.join(known)}{how}; {near}"


OF_A_JOB = frozenset({"complete", "fail", "heartbeat"})  # each column of the claim's is theirs
_BOOL, _INT4, _TEXT, _TIMESTAMPTZ, _INTERVAL, _JSONB = 16, 23, 25, 1184, 1186, 3802
_OIDS = {
    "limit": _INT4,
    "priority": _INT4,
    "max_attempts": _INT4,
    "payload": _JSONB,
    "delay": _INTERVAL,
    "lease": _INTERVAL,
    "age": _INTERVAL,
    NOW: _TIMESTAMPTZ,
}
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})


def type_of(name: str) -> int:
    """The type (`pg_type.oid`) of a parameter that an operation has of itself."""
    return _OIDS.get(name, _TEXT)


def _bind(name: str, argument: object) -> Value:
    if isinstance(argument, timedelta):
        argument = interval(argument)
    return Value(None if argument is None else str(argument).encode(), type_of(name))


class _Outcome(NamedTuple):
    """The outcome of a block."""

    result: Result  # the answer of the last statement that has columns, if any has
    cut: bool  # a statement without rows undid or skipped others: the answer is empty
    changed: int | None  # rows affected by the last statement that changes data, if any does


def _run(block: Block, bindings: Mapping[str, Parameter]) -> Operation[_Outcome]:
    known = dict(bindings)
    answer = Result()
    changed: int | None = None
    answered = True  # the last statement that was sent, or those that it was sent instead of
    for statement, following in zip_longest(block.statements, block.statements[1:]):
        if statement.otherwise and answered:
            continue
        params = {
            name: _lookup(name, known, block, source)
            for name, source in statement.parameters.items()
        }
        result = yield Step(statement.text, params, statement.source, block=block.name)
        if result.command in _CHANGES:
            changed = result.affected
        if following is not None and following.otherwise:
            if not (result.columns or result.command in _CHANGES):
                message = f"{ELSE} stands behind what answers rows, or changes them"
                raise FormatError(message, following.source)
            answered = bool(result.rows if result.columns else result.affected)
        if not result.columns:
            continue
        answer = result
        if following is not None and following.otherwise and not answered:
            continue
        if not result.rows:
            if result.in_transaction:
                yield Step("ROLLBACK", source=statement.source)
            skipped = statement is not block.statements[-1]
            return _Outcome(answer, skipped or result.in_transaction, changed)
        if statement is not block.statements[-1]:
            known |= _arrays(result.rows, zip(result.columns, result.oids, strict=True))
    return _Outcome(answer, cut=False, changed=changed)


def _lookup(name: str, known: Mapping[str, Parameter], block: Block, source: Source) -> Parameter:
    if name in known:
        return known[name]
    message = no_parameter(block.name, name, known)
    if block.name in OF_A_JOB:
        message = f"claim returns no column {name}, and {message}"
    raise FormatError(message, source)


def _arrays(
    rows: Sequence[Mapping[str, Value]], columns: Iterable[tuple[str, int]]
) -> dict[str, Values]:
    return {
        f"{column}s": Values(tuple(row[column].text for row in rows), oid)
        for column, oid in columns
        if oid != VOID
    }


def _rows(
    block: Block, outcome: _Outcome, required: Sequence[str]
) -> Sequence[Mapping[str, Value]]:
    """The rows of a block's answer, which must have some columns."""
    if outcome.cut:
        return ()
    columns = outcome.result.columns
    for column in required:
        if columns.count(column) > 1:
            message = f"{block.name} returns two columns named {column}: give one another name"
            raise FormatError(message, block.source)
        if column not in columns:
            returned = ", ".join(columns) or "no columns"
            message = f"{block.name} must return a column {column}; it returned {returned}"
            if not columns:
                message += f"; {_unanswered(block, f'add RETURNING {column}')}"
            elif len(block.statements) > 1:
                message += (
                    f"; of several statements the last one with columns answers: put {column} there"
                )
            raise FormatError(message, block.source)
    return outcome.result.rows


def _unanswered(block: Block, how: str) -> str:
    """Advice for a block that has no columns to answer with."""
    if any("RETURNING" in statement.text.upper() for statement in block.statements):
        return (
            "PostgreSQL answered nothing to its RETURNING, as where a rule makes another statement"
            " of it: SELECT the answer in a statement behind it, or write `!` behind its name"
        )
    return how


def _ids(block: Block, outcome: _Outcome) -> list[str]:
    return [_id(block, row) for row in _rows(block, outcome, ["id"])]


def _claims(block: Block, outcome: _Outcome) -> list[Claim]:
    return [Claim(_id(block, row), dict(row)) for row in _rows(block, outcome, ["id"])]


def _id(block: Block, row: Mapping[str, Value]) -> str:
    if row["id"].text is None:
        raise FormatError(f"{block.name} returned a row whose id is NULL; {_NO_ROW}", block.source)
    return str(row["id"])


class StateNames(NamedTuple):
    """The states that a queue's `jobs` answers."""

    names: Mapping[str, State]  # the queue's own names, and what each stands for
    source: Callable[[str], Source]  # the line of the header that has a name


def _job_rows(block: Block, outcome: _Outcome, states: StateNames) -> list[JobRow]:
    return [_job_row(block, row, states) for row in _rows(block, outcome, ["id", "state"])]


def _job_row(block: Block, row: Mapping[str, Value], states: StateNames) -> JobRow:
    job, found = _id(block, row), str(row["state"])
    state = states.names.get(found) or next((s for s in get_args(State) if s == found), None)
    if state is None:
        for near in get_close_matches(found, states.names, n=1):
            message = f"[states] has {near}, and {block.name} returned {found}"
            raise FormatError(f"{message}; did you mean {found}?", states.source(near))
        how = "; a name of your own stands in the header, below [states]"
        message = f"{block.name} returned the state {found}; use {', '.join(get_args(State))}{how}"
        raise FormatError(message, block.source)
    attempts = row.get("attempts", Value(None, _INT4))
    if attempts.text is not None and not str(attempts).isdecimal():
        message = f"{block.name} returned the attempts {attempts}, not a whole number from 0"
        raise FormatError(message, block.source)
    return JobRow(job, state, None if attempts.text is None else int(attempts))


def _changed(block: Block, outcome: _Outcome) -> int:
    """The count of a block with `!`."""
    if outcome.cut:
        return 0
    if outcome.changed is None:
        message = f"{block.name}! changed no data; write INSERT, UPDATE, DELETE or MERGE, or drop !"
        raise FormatError(message, block.source)
    return outcome.changed


def _renewed(block: Block, outcome: _Outcome, job: Claim) -> bool | Claim:
    """True when a heartbeat was accepted, or the claim with what replaces its columns."""
    accepted = _accepted(block, outcome)
    if not accepted or block.mode == "!":
        return accepted
    same = [row for row in outcome.result.rows if "id" not in row or str(row["id"]) == job.id]
    new = {name: value for row in same[:1] for name, value in row.items() if name in job.token}
    return replace(job, token={**job.token, **new}) if new else True


def _accepted(block: Block, outcome: _Outcome) -> bool:
    if block.mode == "!":
        return _changed(block, outcome) > 0
    if not outcome.result.columns:
        # Taken literally this rejects every job; the author forgot to say what accepts one.
        listed = "" if block.parameters is None else f"({', '.join(block.parameters)})"
        marked = f"`-- name: {block.name}{listed}!`"
        how = _unanswered(block, f"add RETURNING id, or write {marked}")
        raise FormatError(f"{block.name} returned no columns; {how}", block.source)
    if outcome.cut:
        return False
    if "accepted" in outcome.result.columns:
        return any(_truth(block, "accepted", row) for row in outcome.result.rows)
    return bool(outcome.result.rows)


def _truth(block: Block, column: str, row: Mapping[str, Value]) -> bool:
    """True if a column says yes, as a boolean or a count; NULL is neither yes nor a job."""
    told = row[column]
    if told.text is None or told.oid == _BOOL:
        return told.text == b"t"
    try:
        return int(told) > 0
    except ValueError:
        message = f"{block.name} returned {column} = {told}, neither a boolean nor a count"
        raise FormatError(message, block.source) from None


def _completed(block: Block, outcome: _Outcome, jobs: Sequence[Claim]) -> frozenset[str] | None:
    """The ids of those that were accepted of some jobs; None where a count does not say which."""
    if block.mode != "!":
        return frozenset(_ids(block, outcome))
    return {0: frozenset[str](), len(jobs): frozenset(ids_of(jobs))}.get(_changed(block, outcome))


def _completed_and_claimed(block: Block, outcome: _Outcome) -> tuple[frozenset[str], list[Claim]]:
    accepted: set[str] = set()
    claims: list[Claim] = []
    for row in _rows(block, outcome, ["id", "completed"]):
        job = _id(block, row)
        if _truth(block, "completed", row):
            accepted.add(job)
        else:
            claims.append(Claim(job, {k: v for k, v in row.items() if k != "completed"}))
    return frozenset(accepted), claims


_ANSWERS: Mapping[str, Callable[[Block, _Outcome], object]] = {
    **dict.fromkeys(("install", "cleanup", "start"), lambda _block, _outcome: None),
    "enqueue": _ids,
    "claim": _claims,
    "complete_and_claim": _completed_and_claimed,
    "recover": _ids,
    "promote": lambda _block, outcome: outcome.changed,  # a function does not tell
}
"""The answer of an operation, by what its block came to; of others, whether it was accepted."""


def begin(
    block: Block,
    operation: str,
    given: Mapping[str, object],
    arguments: Mapping[str, object],
    states: StateNames,
) -> Operation[Any]:
    """Begin an operation; given are those of its arguments that are parameters of the block."""
    bindings: Mapping[str, Parameter] = {name: _bind(name, one) for name, one in given.items()}
    read = _ANSWERS.get(operation, _accepted)
    match operation, arguments:
        case "complete_many", {"jobs": []}:
            return frozenset[str]()
        case "complete_many" | "complete_and_claim", {"jobs": list() | tuple() as jobs}:
            columns = [(column, value.oid) for column, value in jobs[0].token.items()]
            bindings = {**_arrays([job.token for job in jobs], columns), **bindings}
            if operation == "complete_many":
                read = partial(_completed, jobs=jobs)
        case "complete" | "fail" | "heartbeat", {"job": Claim() as job}:
            bindings = {**job.token, **bindings}
            if operation == "heartbeat":
                read = partial(_renewed, job=job)
        case "jobs", _:
            read = partial(_job_rows, states=states)
    return read(block, (yield from _run(block, bindings)))
