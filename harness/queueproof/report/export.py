"""A story as a spec for PostgreSQL's isolationtester.

A spec (PostgreSQL's src/test/isolation/README) needs nothing of this harness: each connection of
the run is a session, each statement that was sent is a step, with its parameters as literals, and
the one permutation is the schedule as it happened.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.postgres.local import DEFAULT_EMBEDDED, PACKAGE
from queueproof.queues.model import Step
from queueproof.queues.sqltext import BEGINS, compile_statement, first_keyword
from queueproof.report.forms import filled_in
from queueproof.report.literals import braced, cannot, literal, with_count
from queueproof.run.gates import GATE_KEYS
from queueproof.run.lab import SEARCH_PATH, Lab
from queueproof.run.record import Beat
from queueproof.search.shrink import Failure

WIDTH = 96  # characters of a line of prose
SCHEDULER = "scheduler"
CLOCK = "clock"
_WORKER = re.compile(r"w\d")
_COUNTED = frozenset({"complete", "complete_many", "fail", "heartbeat"})
_DEADLOCK = "40P01"
# What begins something; everything else in a trace follows from what was begun.
_BEGINNINGS = frozenset(
    {"start", "connection", "sql", "commit", "clock", "rewrite", "crash", "fault"}
)
_TYPES = "SELECT oid::bigint, oid::regtype::text FROM pg_type"
_TRIGGERS = """
SELECT pg_get_triggerdef(oid) FROM pg_trigger
WHERE tgname ^@ '~queueproof' AND tgparentid = 0 ORDER BY oid
"""
# What the lab has altered, so that a function with a search_path of its own sees the clock.
_PINNED = """
SELECT format('ALTER ROUTINE %s SET %s', p.oid::regprocedure, replace(setting, '=', ' = '))
FROM pg_proc p, unnest(p.proconfig) AS setting
WHERE setting LIKE 'search_path=clock, pg_catalog%' ORDER BY p.oid
"""
_QUIET = "SET session_replication_role = replica"  # as the lab's own connection always is
_LOUD = "RESET session_replication_role"
_TURNSTILE = (
    "SELECT pg_advisory_lock({second}, {me});\nSELECT pg_advisory_unlock({first}, {me});\n"
    "SELECT pg_advisory_lock({first}, {me});\nSELECT pg_advisory_unlock({second}, {me})"
)
_RELEASE = "SELECT pg_advisory_unlock({first}, {me})"
# isolationtester ends each session's application_name with the session's name.
_TERMINATE = """SELECT pg_terminate_backend(pid, 60000)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '/{name}$'"""


@dataclass(slots=True)
class _SpecSession:
    """A connection of the run, as a session of the spec."""

    name: str
    number: int
    steps: dict[str, str] = field(default_factory=dict)  # name to SQL
    setup: list[str] = field(default_factory=list)
    state: str = ""  # of its statement: `running`, `waits`, `stops`; nothing between two
    current: str = ""  # its latest step
    open: bool = False  # it stands in a transaction
    gated: bool = False
    counts: dict[str, int] = field(default_factory=dict)


def to_spec(failure: Failure, lab: Lab, *, guarantee: str, command: str, name: str) -> str:
    """A story as a spec for an empty database; a QueueproofError says why that cannot tell it."""
    return _Spec(failure, lab).text(guarantee, command, name)


def refuse_varying(failure: Failure, again: Failure) -> None:
    """QueueproofError where a second run of a story sent other values: a spec holds literals."""
    for beat, other in zip(_exported(failure), _exported(again), strict=False):
        if beat.step is None and other.step is None:
            continue
        if beat.step is None or other.step is None or beat.step.sql != other.step.sql:
            raise cannot("its statements differ from run to run")
        for name in compile_statement(beat.step.sql).names:
            known, now = beat.step.params[name], other.step.params[name]
            if known != now:
                differs = f":{name} differs from run to run ({known}, then {now})"
                raise cannot(f"{differs}, and a spec has no variables")


def _exported(failure: Failure) -> list[Beat]:
    """The trace up to the answer that broke the guarantee, and until nobody waits any more."""
    trace = failure.run.trace
    guilty = [n for n, beat in enumerate(trace) if beat.call == failure.violation.call]
    last = max(guilty, default=len(trace) - 1)
    waiting: set[str] = set()
    for n, beat in enumerate(trace):
        if n > last and not waiting and beat.event in _BEGINNINGS:
            return trace[:n]
        if beat.event in {"waits", "stops"}:
            waiting.add(beat.actor)
        elif beat.event in {"goes on", "error", "rollback", "crash", "lost"}:
            waiting.discard(beat.actor)
    return trace


class _Spec:
    """A story on its way to a spec."""

    def __init__(self, failure: Failure, lab: Lab) -> None:
        self._failure = failure
        self._lab = lab
        self._types = {int(str(oid)): str(name) for oid, name in lab.execute(_TYPES)}
        self._calls = failure.run.history.calls
        self._beats = _exported(failure)
        self._moves = any(beat.event == "clock" for beat in self._beats)
        self._sessions: dict[str, _SpecSession] = {}
        self._lives: dict[str, int] = {}  # connections under a key that are gone
        self._order: list[str] = []  # of the steps
        # Where a call's latest answer stands.
        self._latest: dict[int, tuple[_SpecSession, str]] = {}
        self._answers: list[str] = []
        self._shift = 0.0
        for n, beat in enumerate(self._beats):
            self._add(n, beat)

    def _session(self, key: str) -> _SpecSession:
        life = self._lives.get(key, 0)
        name = re.sub(r"\W+", "_", key) + (f"_life{life + 1}" if life else "")
        if name not in self._sessions:
            self._sessions[name] = _SpecSession(name, len(self._sessions) + 1)
        return self._sessions[name]

    def _take(self, session: _SpecSession, kind: str, sql: str, *, suffix: str = "") -> None:
        """Add a step that is taken once."""
        if not suffix:
            session.counts[kind] = session.counts.get(kind, 0) + 1
        self._repeat(session, f"{session.name}_{kind}_{session.counts.get(kind, 1)}{suffix}", sql)

    def _repeat(self, session: _SpecSession, step: str, sql: str) -> None:
        """Add a step that may be taken several times."""
        session.steps[step] = sql
        session.current = step
        self._order.append(step)

    def _add(self, n: int, beat: Beat) -> None:
        session = self._session(beat.session) if beat.session else None
        match beat.event:
            case "sql" if session is not None and beat.step is not None:
                self._send(n, beat, session, beat.step)
            case "commit" if session is not None:
                self._take(session, self._calls[beat.call].kind, "COMMIT", suffix="_commit")
                session.state, session.open = "running", False
            case "done" if session is not None:
                session.steps[session.current] = f"BEGIN;\n{session.steps[session.current]}"
                session.state, session.open = "", True
            case "stops" if beat.text == "query":
                raise cannot("a query stops between its snapshot and its read in it")
            case "waits" | "stops" if session is not None:
                session.state = beat.event
            case "goes on" if session is not None:
                self._go_on(n, session)
            case "rollback" if session is not None:
                self._roll_back(n, beat, session)
            case "answer" | "error" | "lost":
                self._end(beat)
            case "clock":
                self._shift += float(beat.text)
                moment = "pg_catalog.clock_timestamp()"
                sql = f"INSERT INTO clock.moves VALUES ({moment}, '{self._shift!r} seconds')"
                self._take(self._session(CLOCK), "moves", sql)
            case "rewrite":
                rewriting = ";\n".join([_QUIET, *self._lab.tables.rewriting, _LOUD])
                self._repeat(self._session(SCHEDULER), "rewrite_tables", rewriting)
            case "crash" if self._failure.conditions.pooled:
                raise cannot("a worker crashes behind a pooler in it")
            case "crash":
                self._terminate(beat.actor)
            case "fault" if self._calls[beat.call].kind == "terminate":
                self._terminate(beat.text)
            case "fault" if self._calls[beat.call].kind != "lose":  # whose end is its own beat
                raise cannot("the server is killed in it")
            case _:
                pass

    def _send(self, n: int, beat: Beat, session: _SpecSession, step: Step) -> None:
        # Whether it stops before its session sends the next.
        later = (one.event for one in self._beats[n + 1 :] if one.session == beat.session)
        stops = next((event for event in later if event in {"stops", "sql"}), "sql") == "stops"
        if stops and not session.gated:
            session.gated = True
            gate = f"SET queueproof.session = {session.number}"
            if session.steps:
                self._repeat(session, f"{session.name}_stop_inside", gate)
            else:
                session.setup.append(gate)
        call = self._calls[beat.call]
        sql = self._inlined(step)
        counted = call.kind in _COUNTED and not call.limit  # what claims as well answers jobs
        self._take(session, call.kind, with_count(sql) if counted else sql)
        session.state = "running"
        self._latest[beat.call] = session, session.current
        keyword = first_keyword(step.sql)
        if keyword in BEGINS:
            session.open = True
        elif keyword in {"COMMIT", "END", "ROLLBACK", "ABORT"}:
            session.open = False

    def _go_on(self, n: int, session: _SpecSession) -> None:
        """A session that had stopped is let through; one that waited goes on by itself."""
        if session.state == "stops":
            key = self._beats[n].session
            again = any(b.event == "stops" and b.session == key for b in self._beats[n + 1 :])
            # After the last stop the gate stays open: nothing must stop there unseen.
            name, sql = ("pass", _TURNSTILE) if again else ("release", _RELEASE)
            sql = sql.format(**GATE_KEYS, me=session.number)
            self._repeat(self._session(SCHEDULER), f"{name}_{session.name}", sql)
        session.state = "running"

    def _roll_back(self, n: int, beat: Beat, session: _SpecSession) -> None:
        cancelled = session.state == "waits"
        if cancelled:
            self._expect_deadlock(n, beat, session)
        # isolationtester takes no step of a session whose statement is still running: after a
        # deadlock this one makes it wait for the verdict.
        if session.open or cancelled:
            self._take(session, self._calls[beat.call].kind, "ROLLBACK", suffix="_rollback")
        session.state, session.open = "", False

    def _expect_deadlock(self, n: int, beat: Beat, victim: _SpecSession) -> None:
        """Have the server find a deadlock in the session that the harness chose."""
        errors = (b for b in self._beats[n:] if b.call == beat.call and b.event == "error")
        error = next(errors, None)
        if error is not None and not error.text.startswith(_DEADLOCK):
            raise cannot("a statement waits for its own worker in it, until it is cancelled")
        last = [b.session for b in self._beats[:n] if b.event == "waits"][-1]
        # The server looks once in a wait, which must be after the circle has closed.
        timeout = "10ms" if self._session(last) is victim else "3s"
        victim.setup.append(f"SET deadlock_timeout = '{timeout}'")

    def _end(self, beat: Beat) -> None:
        if beat.call not in self._latest:
            return  # it has sent nothing
        session, step = self._latest[beat.call]
        session.state = ""
        told = {"answer": f"=> {beat.text}", "error": f"=> ERROR {beat.text}"}.get(beat.event)
        guilty = "   <-- broken here" if beat.call == self._failure.violation.call else ""
        if told and self._calls[beat.call].kind != "jobs":
            self._answers.append(f"{step}: {told}{guilty}")

    def _terminate(self, actor: str) -> None:
        """A worker's connections end, as when its process dies."""
        for key in (actor, f"{actor}, second connection"):
            session = self._session(key)
            if session.current:
                sql = _TERMINATE.format(name=session.name)
                self._repeat(self._session(SCHEDULER), f"terminate_{session.name}", sql)
                session.state, session.open = "", False
                self._lives[key] = self._lives.get(key, 0) + 1

    def _inlined(self, step: Step) -> str:
        """A statement as it was sent, with its parameters as literals."""
        compiled = compile_statement(step.sql, move_clock=self._moves)
        sql = compiled.sql
        for edit in reversed(compiled.edits):
            marker = sql[edit.sent_start : edit.sent_end]
            if marker.startswith("$"):
                value = literal(step.params[compiled.names[int(marker[1:]) - 1]], self._types)
                if sql[edit.sent_end :].lstrip()[:1] in {"[", "."}:
                    value = f"({value})"
                sql = sql[: edit.sent_start] + value + sql[edit.sent_end :]
        return sql

    def text(self, guarantee: str, command: str, name: str) -> str:
        """The spec."""
        gates, pinned = (
            [str(definition) for (definition,) in self._lab.execute(sql)]
            for sql in (_TRIGGERS, _PINNED)
        )
        used = [one for one in self._sessions.values() if one.steps]
        # Workers by their number, then the others.
        used.sort(key=lambda one: (not _WORKER.match(one.name), len(one.name), one.name))
        return filled_in(
            "story.spec.j2",
            guarantee=CATALOGUE[guarantee],
            because=self._failure.violation.because,
            name=shlex.quote(name),
            command=command,
            package=PACKAGE,
            installed=f"{PACKAGE}/pginstall{DEFAULT_EMBEDDED}",
            counted=_COUNTED & {self._calls[beat.call].kind for beat in self._beats if beat.step},
            answers=self._answers,
            moves=self._moves,
            clock=files("queueproof.run").joinpath("clock.sql").read_text(encoding="utf-8"),
            search_path=SEARCH_PATH,
            isolation=self._lab.queue.isolation,
            schema=list(map(self._inlined, self._lab.schema)),
            pinned=pinned,
            gates=gates,
            keys=GATE_KEYS,
            sessions=used,
            conditions=self._failure.conditions,
            deadlocks=any("deadlock_timeout" in sql for one in used for sql in one.setup),
            stops=any(beat.event == "stops" for beat in self._beats),
            scheduler=SCHEDULER,
            ours={SCHEDULER, CLOCK},
            order=self._order,
            braced=braced,
            commented=lambda told: "\n".join(f"# {one}".rstrip() for one in told.splitlines()),
            wrapped=partial(textwrap.fill, width=WIDTH),
        )
