"""The queue file for a table: a block for each operation, and what stands above them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from psycopg.sql import Literal

from queueproof.proposal.pieces import TablePieces, holds
from queueproof.proposal.roles import values_of, words
from queueproof.proposal.schema import Column, Table


class Proposal(TablePieces):
    """A queue file for a table.

    Args:
        table: Of the jobs.
        tables: All, by oid.
        others: That it might be as well.
        include: The schema's files, from where the queue file will stand, as TOML has a list.

    Attributes:
        text: The file.
    """

    def __init__(
        self, table: Table, tables: Mapping[int, Table], others: Sequence[Table], include: str
    ) -> None:
        super().__init__(table)
        self._tables = tables
        self._parents: dict[int, str] = {}
        blocks = [
            self._enqueue(),
            self._claim(),
            self._complete(),
            self._fail(),
            *self._leases(),
            self._jobs(),
        ]
        head = self._head(others, include)
        self.text = "\n\n".join([head, *self._schema(), *blocks]) + "\n"

    def _enqueue(self) -> str:
        values: dict[str, str] = {}
        takes = []
        if self._key.needed or self._key.parent:
            values[self._id] = self._filler(self._key, frozenset())
        for role, parameter in (
            ("queue", "queue"),
            ("payload", "payload"),
            ("priority", "priority"),
            ("due", "delay"),
            ("left" if self._counts and "attempts" not in self._c else "most", "max_attempts"),
        ):
            if role in self._c and (role != "most" or self._counts):
                values[self._c[role]] = self._given(role, parameter)
                takes.append(parameter)
        status = self._columns.get("status")
        state = self._state("queued") if status is not None else ""
        if status is not None and (status.default.partition("::")[0] or "NULL") != state:
            values[status.sql] = state
        if "attempts" in self._columns and self._columns["attempts"].needed:
            values[self._c["attempts"]] = "0"
        if "created" in self._columns and self._columns["created"].needed:
            values[self._c["created"]] = self._now("created", written=True)
        fillers = []
        for column in self._table.columns:
            if column.needed and column.sql not in values:
                values[column.sql] = self._filler(column, frozenset({column.table_oid}))
                fillers.append(column.sql)
        todo = ""
        if fillers:
            todo = f"-- TODO: values as your jobs have them, for {', '.join(fillers)}.\n"
        into = f"INSERT INTO {self._table.sql}"
        if values:
            into += f" ({', '.join(values)})\nVALUES ({', '.join(values.values())})"
        else:
            into += " DEFAULT VALUES"
        head = f"{todo}-- name: enqueue({', '.join(takes)})"
        return f"{head}\n{into}\nRETURNING {self._as(self._id, 'id')};"

    def _given(self, role: str, parameter: str) -> str:
        family = self._columns[role].family
        if role == "due":
            return self._now(role, " + :delay", written=True)
        if role == "payload" and family == "text":
            return ":payload::text"
        if role == "payload" and family == "bytea":
            return "convert_to(:payload::text, 'UTF8')"
        return f":{parameter}"

    def _filler(self, column: Column, seen: frozenset[int]) -> str:
        """A value for a column that must have one and that no parameter is for."""
        if (
            column.parent is not None
            and column.parent not in seen
            and column.parent in self._tables
        ):
            parent = self._tables[column.parent]
            self._parent(column.parent, parent, seen | {column.parent})
            key = next((c.sql for c in parent.columns if c.key), parent.columns[0].sql)
            return f"(SELECT {key} FROM {parent.sql} LIMIT 1)"
        if not column.sample and (values := values_of(column)):
            return values[0] if column.family == "int" else f"'{values[0]}'"
        known = {
            "int": "1",
            "text": "gen_random_uuid()"
            if column.key
            else Literal(column.sample or "x").as_string(None),
            "uuid": "gen_random_uuid()",
            "json": "'{}'",
            "bool": "false",
            "bytea": "''",
            "timestamptz": "now()",
            "timestamp": "now()",
            "date": "now()",
            "interval": "'0'",
        }
        return known.get(column.family, "'0'" if column.family in _NUMBERS else "'{}'")

    def _parent(self, oid: int, parent: Table, seen: frozenset[int]) -> None:
        """A row that a job refers to."""
        needed = [column for column in parent.columns if column.needed]
        values = [self._filler(column, seen) for column in needed]
        names = f" ({', '.join(column.sql for column in needed)}) VALUES ({', '.join(values)})"
        self._parents[oid] = f"INSERT INTO {parent.sql}{names if needed else ' DEFAULT VALUES'};"

    def _claim(self) -> str:
        ready = [*self._is("queued")]
        takes = [
            *(["worker"] if "owner" in self._c else []),
            "limit",
            *(["lease"] if "until" in self._c else []),
        ]
        if "queue" in self._c:
            ready.append(f"{self._c['queue']} = :queue")
            takes.append("queue")
        if "due" in self._c:
            due = f"{self._c['due']} <= {self._now('due')}"
            nullable = self._columns["due"].nullable
            ready.append(f"({self._c['due']} IS NULL OR {due})" if nullable else due)
        if self._counts:
            ready.append(self._may)
        order = self._order()
        sets = self._becomes("running")
        if "owner" in self._c:
            sets.append(f"{self._c['owner']} = {self._worker}")
        sets += self._lease_begins()
        if self._counts:
            more = "+" if "attempts" in self._c else "-"
            sets.append(f"{self._count} = {self._count} {more} 1")
        answer = [self._as(self._id, "id")]
        if self._counts:
            answer.append(self._as(self._count, "attempt"))
        elif self._clock:
            answer.append(self._as(self._c[self._clock], "claimed_at"))
        comments = [
            "Have you a claim of your own? Put its SQL here: that is what is to be judged. The",
            "parameters are yours to use, and what it returns are parameters of the blocks below.",
        ]
        if self._c.get("attempts", "").strip('"').startswith("retr"):
            counts = f"{self._c['attempts']} is 1 while a job runs for the first time"
            comments.append(f"TODO: counted here, so that a crash counts: {counts}.")
        sorted_by = f"\n  ORDER BY {', '.join(order)}" if order else ""
        return (
            f"{_commented(comments)}\n-- name: claim({', '.join(takes)})\n"
            f"UPDATE {self._table.sql}\nSET {_listed(sets)}\n"
            f"WHERE {self._id} = ANY (ARRAY(\n"
            f"  SELECT {self._id}\n  FROM {self._table.sql}\n  WHERE {_all(ready, 4)}{sorted_by}\n"
            f"  LIMIT :limit\n  FOR UPDATE SKIP LOCKED\n))\nRETURNING {', '.join(answer)};"
        )

    def _complete(self) -> str:
        sets = self._becomes("completed")
        head = f"-- name: complete({self._takes})!"
        where = f"WHERE {_all(self._mine(), 2)};"
        if "completed" not in self._states.names and self._tells.get("completed") is None:
            todo = "-- TODO: nothing says that a job is done: is it deleted?"
            return f"{todo}\n{head}\nDELETE FROM {self._table.sql}\n{where}"
        sets += self._released() if "status" in self._c or "is_running" in self._c else []
        return f"{head}\nUPDATE {self._table.sql}\nSET {_listed(sets)}\n{where}"

    def _fail(self) -> str:
        sets = self._tried_again()
        takes = self._takes
        waits = "due" in self._c and self._counts
        if waits:
            tries = f"{self._count} - 1"
            if "attempts" not in self._c:
                tries = f"GREATEST({self._number - 1} - {self._count}, 0)"
            pause = f" + interval '5 seconds' * 2 ^ LEAST({tries}, 10)"
            sets.append(f"{self._c['due']} = {self._now('due', pause, written=True)}")
        if "error" in self._c:
            json = self._columns["error"].family == "json"
            sets.append(f"{self._c['error']} = {'to_jsonb(:error::text)' if json else ':error'}")
            takes += ", error"
        where = f"WHERE {_all(self._mine(), 2)};"
        todo = ""
        if waits:
            todo = "-- TODO: your pauses between attempts; these double, from 5 seconds on.\n"
        return (
            f"{todo}-- name: fail({takes})!\nUPDATE {self._table.sql}\nSET {_listed(sets)}\n{where}"
        )

    def _leases(self) -> Iterator[str]:
        """Heartbeat and recovery, where a column tells since when a job runs."""
        if self._clock is None:
            return
        column, until = self._c[self._clock], self._clock == "until"
        beats = f"{column} = {self._now(self._clock, ' + :lease' * until, written=True)}"
        answers = "" if self._counts else f"\nRETURNING {self._as(column, 'claimed_at')}"
        takes = f"{self._takes}{', lease' if until else ''}){'' if answers else '!'}"
        where = _all(self._mine(), 2)
        yield (
            f"-- name: heartbeat({takes}\nUPDATE {self._table.sql}\nSET {beats}\n"
            f"WHERE {where}{answers};"
        )
        over = self._now(self._clock, "" if until else " - :lease")
        stale = [*self._is("running"), f"{column} < {over}"]
        yield (
            f"-- name: recover{'' if until else '(lease)'}\nUPDATE {self._table.sql}\n"
            f"SET {_listed(self._tried_again(crashed=True))}\nWHERE {self._id} = ANY (ARRAY(\n"
            f"  SELECT {self._id}\n  FROM {self._table.sql}\n  WHERE {_all(stale, 4)}\n"
            f"  FOR UPDATE SKIP LOCKED\n))\nRETURNING {self._as(self._id, 'id')};"
        )

    def _jobs(self) -> str:
        known = {s: one for s, one in self._tells.items() if one is not None}
        cases = [
            f"WHEN {holds(known[s], on=True)} THEN '{s}'"
            for s in ("completed", "failed", "running")
            if s in known
        ]
        if not self._buries() and self._spent:
            cases.append(f"WHEN {' AND '.join(self._is('queued'))} AND {self._spent} THEN 'failed'")
        status = f"{self._c['status']}::text" if "status" in self._c else "'queued'"
        if self._states.null_waits:
            status = f"COALESCE({status}, 'queued')"
        state = self._as(self._c["status"], "state") if "status" in self._c else ""
        if cases or self._states.null_waits:
            case = "\n  ".join(["CASE", *cases, f"ELSE {status}"]) + "\n  END"
            state = f"{case if cases else status} AS state"
        attempts = f", {self._as(self._c['attempts'], 'attempts')}" if "attempts" in self._c else ""
        return (
            "-- Not part of your queue: it lets the check see what became of every job.\n"
            f"-- name: jobs\nSELECT {self._as(self._id, 'id')}, {state}{attempts}\n"
            f"FROM {self._table.sql};"
        )

    def _schema(self) -> Iterator[str]:
        rows = "\n".join(
            ["-- Rows that jobs refer to.", "-- name: schema#", *self._parents.values()]
        )
        if self._parents:
            yield rows
        order = self._order()
        leading = ", ".join(order[:-1] if len(order) > 1 and order[-1] == self._id else order)
        if not order or any(leading in index for index in self._table.indexes):
            return
        queue = [self._c["queue"]] if "queue" in self._c else []
        index = f"ON {self._table.sql} ({', '.join([*queue, *order])})"
        yield (
            "-- TODO: no index has the claim's order: a claim may read all jobs (steady-cost).\n"
            f"{'' if self._parents else '-- -- name: schema#' + chr(10)}"
            f"-- CREATE INDEX {index} WHERE {' AND '.join(self._is('queued'))};"
        )

    def _head(self, others: Sequence[Table], include: str) -> str:
        told = [f"A queue in the table {self._table.sql}, as its columns' names and types tell it."]
        if others:
            also = ", ".join(table.sql for table in others[:3])
            told.append(f"Other tables look like one of jobs, too: {also} (--table NAME).")
        told += ["What each column was taken for:"]
        told.append(f"  {self._id:<16} its name (sure: the primary key)")
        told += [
            f"  {column.sql:<16} {_MEANING[role]} ({self._certainty(role, column)})"
            for role, column in self._columns.items()
        ]
        told += [
            "Whatever is wrong here, correct it: what counts is the SQL that your workers send.",
            "The format of this file: queueproof help file-format",
        ]
        missing = [*self._notes, *self._missing()]
        told += [f"TODO: {one}" for one in missing]
        return f"{_commented(told)}\n\n{self._header(include)}"

    def _certainty(self, role: str, column: Column) -> str:
        if role == "status":
            return "guessed: its values" if self._states.guessed else "sure: its values say so"
        vague = re.fullmatch(_VAGUE, words(column.name))
        return "likely: its name may mean something else" if vague else "sure: name and type"

    def _missing(self) -> Iterator[str]:
        states = self._states
        if states.guessed:
            named = ", ".join(f"{states.names[state]} = {state}" for state in states.guessed)
            yield f"the values of {self._c['status']} could not be known: {named}. Are they so?"
        if states.unknown:
            yield f"what do these states mean? {', '.join(states.unknown)}"
        failed = [states.names.get("failed", ""), *states.also]
        given_up = [
            value for value in failed if re.fullmatch("fail.*|error.*|dead|discarded", value)
        ]
        if len(given_up) > 1:
            yield (
                f"{' and '.join(given_up)} are taken for given up. If one waits for its next"
                ' attempt, it is "queued" in [states], and claim asks for it.'
            )
        if self._clock is None:
            yield (
                "no column tells since when a job runs (such as locked_at timestamptz): what a"
                " crashed worker held stays running for ever."
            )
        if not self._counts:
            yield (
                "no column counts attempts (such as attempts int NOT NULL DEFAULT 0): a job that"
                " always fails or crashes its worker has no end."
            )
        if not self._counts and self._clock is None:
            yield "nothing tells one claim of a job from a later one: a late worker may end it."
        if "attempts" in self._c and "most" not in self._c:
            yield "no column says how many attempts a job has: 3 stands for your number."

    def _header(self, include: str) -> str:
        lines = ["/// queue", f"include = {include}"]
        if self._clock:
            lines.append('lease = "30 seconds"  # TODO: after how long is a worker given up?')
        else:
            lines.append('stale = "stays"  # TODO: nothing takes back what a crashed worker had')
        if self._counts:
            lines.append(f"max_attempts = {self._number}")
            if "due" in self._c:
                lines.append('backoff = "5 seconds"')
        order = self._order()
        if order:
            promise = "priority, fifo" if "priority" in self._c else "fifo"
            asked = "  # TODO: does the greatest number go first?" if "priority" in self._c else ""
            lines.append(f'order = "{promise}"{asked}')
        named = {**{v: k for k, v in self._states.names.items()}, **self._states.also}
        if own := {value: state for value, state in named.items() if value != state}:
            lines.append("[states]")
            for value, state in own.items():
                key = value if re.fullmatch(r"[\w-]+", value, re.ASCII) else f"'{value}'"
                lines.append(f'{key} = "{state}"')
        return "\n".join(f"-- {line}" for line in [*lines, "///"])


_VAGUE = (
    "worker|owner|runner|processor|consumer|instance_id|data|body|message|input|handler|error|topic"
    "|channel|expires_at|vt|started_at|scheduled_at|processed_at|failures|.*retr.*|eta"
)
_NUMBERS = {"numeric", "float4", "float8", "money", "oid"}
_MEANING = {
    "status": "its state",
    "until": "until when its worker has it: the lease ends",
    "beat": "when its worker was heard of last: the lease begins",
    "since": "since when its worker has it: the lease begins",
    "owner": "which worker has it",
    "most": "how many attempts it has",
    "attempts": "its attempts, counted at the claim",
    "left": "how many attempts are left, counted down at the claim",
    "is_running": "whether it runs",
    "is_completed": "whether it is done",
    "is_failed": "whether it was given up",
    "due": "not before",
    "priority": "its priority",
    "payload": "what to do",
    "error": "what went wrong last",
    "queue": "which queue it is in",
    "completed": "when it was done",
    "failed": "when it was given up",
    "created": "when it was enqueued",
}


def _commented(lines: Iterable[str]) -> str:
    wrapped = (
        [line] if line.startswith(" ") else textwrap.wrap(line, 96, subsequent_indent="  ")
        for line in lines
    )
    return "\n".join(f"-- {line}" for one in wrapped for line in one)


def _listed(assignments: Sequence[str]) -> str:
    return ",\n    ".join(assignments)


def _all(conditions: Sequence[str], indent: int) -> str:
    return f"\n{' ' * indent}AND ".join(conditions)
