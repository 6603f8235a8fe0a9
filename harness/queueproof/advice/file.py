"""The queue file for a table: a block for each operation, and what stands above them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from psycopg.sql import Literal

from queueproof.advice.maker import Clause, Jobs, holds
from queueproof.advice.roles import (
    ROLES,
    Column,
    States,
    Table,
    roles_of,
    states_of,
    values_of,
    words,
)
from queueproof.errors import QueueproofError

OURS = "TODO: replace this by the claim that your workers send."
"""Stands at the claim of a proposal until it is somebody's own."""


class Proposal:
    """A queue file for a table; QueueproofError where nothing names a job, or says that it runs.

    `include` has the schema's files, from where the queue file will stand, as TOML has a list.
    """

    def __init__(
        self, table: Table, tables: Mapping[int, Table], others: Sequence[Table], include: str
    ) -> None:
        self._table = table
        self._tables = tables
        self._parents: dict[int, str] = {}
        columns = roles_of(table)
        status = columns.get("status")
        self._states = states_of(table, status) if status else States()
        literals = _literals(status, self._states) if status else {}
        token = next((name for name, roles in _TOKENS.items() if columns.keys() & roles), "")
        default = next((columns[r].default for r in ("most", "left") if r in columns), "")
        number = re.match(r"'?(\d+)", default)
        most = (number and int(number[1])) or 3
        self._jobs = Jobs(table, self._key(), columns, literals, token, most)
        waits = not status or "queued" in literals
        if not waits or not self._jobs.is_in("running"):
            known = ", ".join(self._states.names.values()) or "it has none"
            missing = "runs: a queue needs one, such as locked_at timestamptz"
            raise QueueproofError(
                f"{table.sql}: no column and none of its states ({known}) says that a job"
                f" {missing if waits else 'waits'}"
            )
        self.text = self._text(others, include)

    def _key(self) -> Column:
        keys = [column for column in self._table.columns if column.key]
        named = [c for c in (keys or self._table.columns) if words(c.name).endswith("id")]
        if not (keys or named):
            raise QueueproofError(f"{self._table.sql} has no primary key, by which a job is named")
        return (named or keys)[0]

    def _text(self, others: Sequence[Table], include: str) -> str:
        jobs = self._jobs
        takes = ["worker"] * bool(jobs["owner"]) + ["limit"]
        takes += ["lease"] * bool(jobs["until"]) + ["queue"] * bool(jobs["queue"])
        claimed = jobs.becomes("running")
        claimed += [Clause(jobs["owner"], jobs.worker)] if jobs["owner"] else []
        claimed += jobs.begins("since", "beat", "until")
        claimed += [jobs.counted()] if jobs.count else []
        ends = "completed" in jobs.states or jobs.tells("completed")
        marked = jobs["status"] or jobs["is_running"]
        told = ["id", *(["worker"] if jobs["owner"] else []), *([jobs.token] if jobs.token else [])]
        return _FORM.render(
            **self._enqueued(),  # first: it finds the parents
            jobs=jobs,
            table=jobs.table.sql,
            ours=OURS,
            key=jobs.key,
            others=[one.sql for one in others[:3]],
            roles=ROLES,
            states=self._states,
            named=self._named(),
            called=[f"{self._states.names[one]} = {one}" for one in self._states.guessed],
            given_up=self._given_up(),
            alone=sum(column.key for column in jobs.table.columns) == 1,
            include=include,
            parents=list(self._parents.values()),
            index=self._index(),
            takes=takes,
            claimed=claimed,
            ready=list(self._ready()),
            ends=ends,
            ended=jobs.becomes("completed") + (jobs.released() if marked else []),
            failed=list(self._failed()),
            mine="\n  AND ".join(map(str, jobs.mine())),
            told=", ".join(told),
            state=self._state(),
        )

    def _enqueued(self) -> dict[str, Mapping[str, str] | Sequence[str]]:
        """The values that an enqueue writes, by columns; its parameters; the columns guessed at."""
        jobs = self._jobs
        values: dict[str, str] = {}
        given = []
        if jobs.key.needed or jobs.key.parent:
            values[jobs.key.sql] = self._filler(jobs.key, frozenset())
        most = "most" if jobs["attempts"] or not jobs.count else "left"
        for role in ("queue", "payload", "priority", "due", most):
            if jobs[role] and (role != "most" or jobs.count):
                given.append({"due": "delay", most: "max_attempts"}.get(role, role))
                values[jobs[role].sql] = self._given(role, given[-1])
        status = jobs["status"]
        if status and (status.default.partition("::")[0] or "NULL") != jobs.states["queued"]:
            values[status.sql] = jobs.states["queued"]
        if jobs["attempts"].needed:
            values[jobs["attempts"].sql] = "0"
        if jobs["created"].needed:
            values[jobs["created"].sql] = jobs.now(jobs["created"], written=True)
        guessed = []
        for column in self._table.columns:
            if column.needed and column.sql not in values:
                values[column.sql] = self._filler(column, frozenset({column.table_oid}))
                guessed.append(column.sql)
        return {"values": values, "given": given, "guessed": guessed}

    def _given(self, role: str, parameter: str) -> str:
        family = self._jobs[role].family
        if role == "due":
            return self._jobs.now(self._jobs[role], " + :delay", written=True)
        if role == "payload" and family == "text":
            return ":payload::text"
        if role == "payload" and family == "bytea":
            return "convert_to(:payload::text, 'UTF8')"
        if role == "priority" and self._jobs.least_first:
            return "- :priority"  # the greatest is the most urgent, as the header's `order` has it
        return f":{parameter}"

    def _filler(self, column: Column, seen: frozenset[int]) -> str:
        """A value for a column that must have one and that no parameter is for.

        A row that it refers to is a parent.
        """
        if (oid := column.parent) is not None and oid in self._tables.keys() - seen:
            parent = self._tables[oid]
            needed = [one for one in parent.columns if one.needed]
            values = ", ".join(self._filler(one, seen | {oid}) for one in needed)
            row = f" ({', '.join(one.sql for one in needed)}) VALUES ({values})"
            self._parents[oid] = f"INSERT INTO {parent.sql}{row if needed else ' DEFAULT VALUES'};"
            key = next((one.sql for one in parent.columns if one.key), parent.columns[0].sql)
            return f"(SELECT {key} FROM {parent.sql} LIMIT 1)"
        if not column.sample and (listed := values_of(column)):
            return listed[0] if column.family == "int" else f"'{listed[0]}'"
        if column.family == "text" and not column.key:
            return Literal(column.sample or "x").as_string(None)
        return _FILLERS.get(column.family, "'{}'")

    def _ready(self) -> Iterator[str]:
        """The conditions that a claim asks of a job."""
        jobs = self._jobs
        yield from map(str, jobs.is_in("queued"))
        if jobs["queue"]:
            yield str(jobs.of_queue())
        if due := jobs["due"]:
            yield f"({due} IS NULL OR {jobs.is_due()})" if due.nullable else str(jobs.is_due())
        if jobs.count:
            yield str(jobs.may)

    def _failed(self) -> Iterator[str]:
        """The assignments at the end of a failed attempt."""
        jobs = self._jobs
        yield from map(str, jobs.tried_again())
        if jobs["due"] and jobs.count:
            pause = jobs.wait("interval '5 seconds'")
            yield f"{jobs['due']} = {jobs.now(jobs['due'], f' + {pause}', written=True)}"
        if error := jobs["error"]:
            yield f"{error} = {'to_jsonb(:error::text)' if error.family == 'json' else ':error'}"

    def _state(self) -> str:
        """The expression by which the block `jobs` answers a job's state."""
        jobs = self._jobs
        told = {state: jobs.tells(state) for state in ("completed", "failed", "running")}
        cases = [f"WHEN {holds(by, on=True)} THEN '{s}'" for s, by in told.items() if by]
        if not jobs.buries and jobs.count:
            spent = " AND ".join(map(str, [*jobs.is_in("queued"), jobs.spent]))
            cases.append(f"WHEN {spent} THEN 'failed'")
        status = f"{jobs['status']}::text" if jobs["status"] else "'queued'"
        if self._states.null_waits:
            status = f"COALESCE({status}, 'queued')"
        if cases:
            return "\n  ".join(["CASE", *cases, f"ELSE {status}"]) + "\n  END AS state"
        return f"{status} AS state" if self._states.null_waits else _called(jobs["status"], "state")

    def _index(self) -> str:
        """The index that the claim lacks; nothing where one has its order."""
        order = self._jobs.order()
        leading = order[:-1] if order[1:] and order[-1] == self._jobs.key.sql else order
        has_one = any(", ".join(leading) in index for index in self._table.indexes)
        return self._jobs.index() if order and not has_one else ""

    def _given_up(self) -> list[str]:
        """The values of the status that say of a job that it was given up."""
        values = [self._states.names.get("failed", ""), *self._states.also]
        return [one for one in values if re.fullmatch("fail.*|error.*|dead|discarded", one)]

    def _named(self) -> dict[str, str]:
        """The states that have a name of their own, as TOML has it, and what each stands for."""
        named = {v: k for k, v in self._states.names.items()} | self._states.also
        return {
            value if re.fullmatch(r"[\w-]+", value, re.ASCII) else f"'{value}'": state
            for value, state in named.items()
            if value != state
        }


_TOKENS = {"attempt": {"attempts", "left"}, "claimed_at": {"until", "beat", "since"}}
"""The columns that tell one claim of a job from a later one; the first that is there counts."""
_VAGUE = (
    "worker|owner|runner|processor|consumer|instance_id|data|body|message|input|handler|error|topic"
    "|channel|expires_at|vt|started_at|scheduled_at|processed_at|failures|.*retr.*|eta"
    "|(failure|error|err)s?_count"
)
_FILLERS = {
    "int": "1",
    "bool": "false",
    "bytea": "''",
    **dict.fromkeys(("text", "uuid"), "gen_random_uuid()"),
    **dict.fromkeys(("timestamptz", "timestamp", "date"), "now()"),
    **dict.fromkeys(("interval", "numeric", "float4", "float8", "money", "oid"), "'0'"),
}


def _commented(told: str) -> str:
    """Prose as comments."""
    wrapped = textwrap.wrap(" ".join(told.split()), 96, subsequent_indent="  ")
    return "\n".join(f"-- {line}" for line in wrapped)


def _certainty(column: Column, role: str, states: States) -> str:
    if role == "status":
        return "guessed: its values" if states.guessed else "sure: its values say so"
    vague = re.fullmatch(_VAGUE, words(column.name))
    return "likely: its name may mean something else" if vague else "sure: name and type"


def _called(column: Column, name: str) -> str:
    return f"{column}" if column.sql == name else f"{column} AS {name}"


def _literals(status: Column, states: States) -> dict[str, str]:
    """The literal of each state in SQL."""
    found = {
        state: name if status.family == "int" else "'" + name.replace("'", "''") + "'"
        for state, name in states.names.items()
    }
    return found | ({"queued": "NULL"} if states.null_waits else {})


_FORMS = Environment(  # noqa: S701 - it is SQL, and no page
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
_FORMS.filters |= {"called": _called, "certainty": _certainty, "commented": _commented}
_FORM = _FORMS.from_string(files(__package__).joinpath("queue.sql.j2").read_text(encoding="utf-8"))
