"""The cost of a claim as the queue fills: shared buffers touched, whatever the machine's load.

The server counts, per session and relation, the pages that it fetched (manual, 27.2: statistics
that a transaction sees of itself). Read inside the claim's transaction, before and after each of
its statements, they show what the claim touched, its functions and triggers included.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from queueproof import waits
from queueproof.errors import ServerError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.probes.filling import Filling, NotMultipliedError
from queueproof.probes.plans import explain
from queueproof.probes.probe import Probe, Seen, Tell, asked, claimed, enqueue, part_of, untold
from queueproof.probes.serving import Join, ServingIndex, join_of_all, serving_indexes
from queueproof.queues.model import Claim, Operation, Result, Step, watched
from queueproof.queues.offer import Offer
from queueproof.queues.sqltext import first_keyword
from queueproof.run.lab import Lab
from queueproof.run.session import Session, drive, execute, noted
from queueproof.schedule.moments import DAY, MOMENT

GROWTH, SLACK = 1.5, 32  # rule 17: both must be passed
DEEPER, STILL = 4, 1.5  # with so many times the jobs so many times the cost, or it grows no more
REPEATS = 3  # claims per measurement; the least counts, when caches of the session are warm
BATCH = 50  # jobs of an enqueue or a claim, so that a table is filled in seconds
FEW = 200  # jobs; with fewer every table is a page, which any claim reads cheaply
EVERY = 8  # one job in so many ends by failing for good
MOST_FAILURES = 30  # of one job; where it takes more to end it, every job is completed
LATER = 40 * DAY  # seconds; longer than any failure makes a job wait
TOP = 5  # the priority of jobs that stand ahead of the others
# Jobs by level, where rows cannot be copied. Even rows of 40 bytes fill more pages than SLACK then.
ONE_BY_ONE = (6_000, 10_000, 20_000)

# Statements that the counters are not read before: a query may not precede SET TRANSACTION.
_UNCOUNTED = frozenset(
    {"BEGIN", "START", "SET", "RESET", "LOCK", "SAVEPOINT", "RELEASE", "COMMIT", "END", "ROLLBACK"}
)
_FETCHED = """
SELECT COALESCE(sum(pg_catalog.pg_stat_get_xact_blocks_fetched(c.oid)), 0)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'i', 't', 'm', 'S') AND n.nspname <> 'clock'
"""
_SIZE = """
SELECT COALESCE(sum(pg_relation_size(COALESCE(p.relid, c.oid))), 0)
FROM pg_catalog.pg_class c LEFT JOIN pg_partition_tree(c.oid) p ON true
WHERE c.relkind IN ('r', 'p') AND c.relname = '{}'
"""
_INDEXES = """
SELECT pg_get_indexdef(indexrelid) FROM pg_catalog.pg_index WHERE indrelid >= 16384
"""


class Kind(NamedTuple):
    """The facts of contents of one kind, which there are beside a few ready jobs."""

    told: str  # how many of them there are, in words
    remedy: str  # what makes a claim cheap again that they make dear; `{}` is an index
    # How many, by level. More, where a claim of the first ones costs more: a table of some dozen
    # pages may be read whole because that is cheap, and no longer once it is large.
    jobs: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    # In what they differ from most jobs; None where they end.
    facts: Mapping[str, object] | None = None
    # Whether their rows are copied; else the queue's own operations make them all.
    copied: bool = True
    counted: str = ""  # how evidence counts them, where that is not as they are told


_PARTIAL = "Give the claim an index that holds only jobs that can run: `{}`."
_AHEAD = (20_000,), (20_000,), (100_000,)
KINDS: Mapping[str, Kind] = {
    "churned": Kind(
        "{:,} jobs finished one by one",
        _PARTIAL,
        ((1_000, 5_000, 25_000), (2_000, 10_000, 50_000), (10_000, 50_000)),
        copied=False,
        counted="finished jobs",
    ),
    "finished": Kind(
        "{:,} finished jobs", _PARTIAL, ((20_000,), (100_000, 1_000_000), (100_000, 1_000_000))
    ),
    "waiting": Kind(
        "{:,} waiting jobs",
        "Give the claim an index in the order of its ORDER BY, so that it reads its batch and "
        "stops: `{}`.",
        ((20_000,), (100_000,), (100_000, 1_000_000)),
        {},
    ),
    "ahead": Kind(
        "{:,} jobs due tomorrow",
        "Keep what is not due out of the claim's way: in a table or a status of its own, from "
        "which a step moves it when its time has come.",
        _AHEAD,
        {"delay": timedelta(seconds=DAY), "priority": TOP},
    ),
    "elsewhere": Kind(
        "{:,} waiting jobs of another queue",
        "Give the claim an index whose first column is the queue: `{}`.",
        _AHEAD,
        {"queue": "other", "priority": TOP},
    ),
    # Churned while a snapshot was held that was taken before.
    "snapshot": Kind(
        "{:,} jobs finished under an old snapshot",
        "What is updated or deleted stays in the way until the snapshot ends. Keep snapshots short "
        "(idle_in_transaction_session_timeout, statement_timeout), or begin the claim at a mark "
        "below which no job can appear any more.",
        ((6_000,), (6_000,), (10_000,)),  # as many pages of bare ids as ONE_BY_ONE has
        copied=False,
    ),
}
MANY = range(4_000_001)


class Content(NamedTuple):
    """The jobs of a queue when a claim is measured, beside a few ready ones."""

    kind: Annotated[str, KINDS]  # of which of `KINDS`
    jobs: Annotated[int, MANY]

    def __str__(self) -> str:
        return KINDS[self.kind].told.format(self.jobs)


_UNSEEN = (
    "Give that statement an index that holds only what it looks for, in its order; that of a claim "
    "may be `CREATE INDEX ON jobs (priority DESC, run_at, id) WHERE status = 'queued'`."
)
_SORTED = (
    "The claim computes its order for every job that may run, and sorts them. Keep what it orders "
    "by in a column that does not change as time passes, filled by the enqueue, and give it an "
    "index in that order that holds only jobs that may run."
)
_WHOLE = (
    "Give the claim an index in its order: `{}`. That one holds finished jobs as well, as the "
    "claim compares no column with constants: let the claim ask for a state, and the index have "
    "the same condition as its WHERE."
)
_STATES = (
    "The claim joins states by OR: give it an index that holds the jobs of all of them, `{1}`. Let "
    "it ask for the same, so that it is surely used: `WHERE {0} AND (…)`, with the OR in the "
    "brackets."
)
_STATES_SERVED = (
    "The index for the claim is there, and the claim joins states by OR. Let it ask for what the "
    "index holds, too: `WHERE {0} AND (…)`, with the OR in the brackets."
)
_JOINED = (
    "The plan joins {1} with every row of {0}: the planner takes the list for a long one, and no "
    "index changes that. Give the rows as an array, which are looked up one by one: "
    "`WHERE {0}.{2} = ANY (ARRAY(SELECT {3} FROM {4}))`."
)
_INSIDE = (
    "This plan does not show what happens inside {}; `auto_explain.log_nested_statements` does. A "
    "query that PL/pgSQL reads by FOR or a cursor without a LIMIT is planned for all of its rows: "
    "give it a LIMIT, and see that it has an index in its order that holds only what can run."
)
_FUNCTION = re.compile(r"Function Scan on (\S+)")
_SERVED = (
    "An index for the claim is there, and the claim reads more than its batch all the same. Its "
    "plan says where: a `Filter` drops rows that the index holds (take its condition into the "
    "index's WHERE or among its columns), a `Sort` reads them all before the LIMIT (give ORDER BY "
    "and index the same columns), or a `Seq Scan` below a join reads the table (write "
    "`WHERE id = ANY (ARRAY(SELECT …))`)."
)

_EMPTY_CLAIM = "a claim came back empty, although jobs were ready"
EMPTY, SMALL = Content("finished", 0), Content("churned", FEW)


@dataclass(frozen=True, slots=True)
class Cost:
    """The buffers that one warm claim touched."""

    content: Content  # what the queue held
    statements: Sequence[tuple[str, int]]  # each statement with its buffers

    @property
    def buffers(self) -> int:
        """Shared buffers touched by all its statements."""
        return sum(buffers for _, buffers in self.statements)


@dataclass(slots=True)
class Slope:
    """The costs of claims as the queue filled."""

    costs: list[Cost] = field(default_factory=list)  # one for each content, the empty queue's first
    # The same for contents at which a claim may cost more: told, and not judged.
    beside: list[Cost] = field(default_factory=list)
    # Kinds of contents at which a claim costs more, and with many more jobs not more yet.
    level: set[str] = field(default_factory=set)
    both: bool = False  # whether each was followed by one that completes its job
    # Where the cost has grown: the costliest statement and its plan.
    guilty: tuple[str, str] | None = None
    index: ServingIndex | None = None  # what would serve it, if that can be seen
    served: bool = False  # whether there is one like that already
    short: str = ""  # why jobs were made by the queue's operations alone, and so few; or nothing
    unable: str = ""  # why nothing could be measured; or nothing

    @property
    def small(self) -> Cost:
        """The cost that the others are compared with: that of an empty or a small queue."""
        small = [cost for cost in self.costs if cost.content.jobs <= FEW]
        return max(small, key=lambda cost: cost.buffers)

    @property
    def grown(self) -> bool:
        """True when the last cost is more than it may be."""
        if not self.costs or self.costs[-1].content.kind in self.level:
            return False
        small, large = self.small.buffers, self.costs[-1].buffers
        return large > small * GROWTH and large > small + SLACK

    @property
    def broken(self) -> str:
        """The sentence on a last cost that is more than it may be; empty where it is not."""
        if not self.grown:
            return ""
        small, large = self.small, self.costs[-1]
        what = "a claim and a complete_and_claim" if self.both else "a claim"
        return (
            f"{what} touched {large.buffers:,} buffers with {large.content}, "
            f"{small.buffers:,} with {small.content}"
        )

    @property
    def told(self) -> str:
        """The slope in half a sentence."""
        measured = [*self.costs, *self.beside]
        parts = ", ".join(f"{cost.buffers:,} with {cost.content}" for cost in measured)
        short = f"; the rows of jobs could not be multiplied: {self.short}" if self.short else ""
        per = "claim and complete_and_claim" if self.both else "claim"
        return f"buffers per {per}: {parts}{short}"

    @property
    def remedy(self) -> str:
        """The advice that would make a claim cheap again."""
        kind = self.costs[-1].content.kind
        remedy = KINDS[kind].remedy
        if "{}" not in remedy:
            return remedy
        plan = self.guilty[1] if self.guilty else ""
        join = join_of_all(plan)
        if join is not None and not join.elsewhere:
            return _of_all(join)
        also = f"{_of_all(join)} " if join else ""
        if self.index is None:
            called = _FUNCTION.search(plan)
            sorts = re.search(r"Sort Key: .*\(", plan)
            return also + (_INSIDE.format(called[1]) if called else _SORTED if sorts else _UNSEEN)
        if self.index.states:
            told = _STATES_SERVED if self.served else _STATES
            return also + told.format(self.index.states, self.index.sql)
        if self.served:
            return also + _SERVED
        if kind != "waiting" and " WHERE " not in self.index.sql:
            remedy = _WHOLE
        return also + remedy.format(self.index.sql)

    @property
    def evidence(self) -> dict[str, int]:
        """The jobs that the queue was filled with, and the claims that were measured."""
        most: dict[str, int] = {}
        measured = [cost.content for cost in [*self.costs, *self.beside]]
        for content in measured:
            kind = KINDS[content.kind]
            name = kind.counted or kind.told.removeprefix("{:,} ")
            most[name] = max(most.get(name, 0), content.jobs)
        return {**most, "claims measured": REPEATS * len(measured)}


class _UnmeasurableError(Exception):
    """A claim's cost cannot be measured; the message says why."""


class Growth(Probe):
    """`steady-cost`: what a claim costs as the queue fills."""

    shape = Content

    def points(self, offer: Offer, level: int, /) -> list[list[Content]]:
        """Ever more finished jobs, then waiting ones, and those ahead but for a quick look."""
        takes = offer.queue.takes("enqueue")
        able = {"ahead": "delay" in takes, "elsewhere": offer.queue.routes, "snapshot": False}
        kinds = [kind for kind in KINDS if able.get(kind, True)]
        return [_series(kind, level) for kind in kinds if level or _is_judged(kind, offer)]

    def look(
        self, lab: Lab, offer: Offer, points: Sequence[Sequence[Content]], level: int, tell: Tell, /
    ) -> Seen:
        """Fill and measure, until a claim costs too much."""
        judged, beside = (
            [one for one in points if _is_judged(one[0].kind, offer) == counts]
            for counts in (True, False)
        )
        slope = measure(lab, offer, judged, level, beside, tell=tell)
        seen = Seen(slope.evidence, unable=slope.unable, remark=slope.told)
        if slope.unable or not slope.broken:
            return seen
        return replace(seen, broken=slope.broken, found=slope, data=list(slope.costs[-1].content))

    def again(self, point: Content) -> Sequence[Sequence[Content]]:
        """The contents at whose last one a claim costs what it cost before."""
        if not KINDS[point.kind].copied:
            return [[point]]
        return [[point._replace(jobs=point.jobs // DEEPER), point]]


class GrowthUnderSnapshot(Growth):
    """`old-snapshot`: what a claim costs while an old snapshot is held open."""

    def points(self, _offer: Offer, level: int, /) -> list[list[Content]]:
        """Jobs that are finished meanwhile."""
        return [_series("snapshot", level)]


def _series(kind: str, level: int) -> list[Content]:
    return [Content(kind, jobs) for jobs in KINDS[kind].jobs[level]]


def _is_judged(kind: str, offer: Offer) -> bool:
    """Jobs that stand ahead count where the queue promises to bear them; else they are told."""
    promised = any(CATALOGUE[name].probe == "growth" for name in offer.queue.promises)
    return promised or kind not in {"ahead", "elsewhere"}


def measure(
    lab: Lab,
    offer: Offer,
    series: Sequence[Sequence[Content]],
    level: int = 0,
    beside: Sequence[Sequence[Content]] = (),
    *,
    tell: Tell = untold,
) -> Slope:
    """Measure a claim of the empty queue, of a small one, and at some contents.

    Args:
        lab: Where; it is left as it was.
        series: Contents of one kind, of which each grows out of the one before it.
        level: How many jobs there are instead where their rows cannot be copied.
        beside: More of them, at which a claim may cost more.
        tell: Told how far it is: of a worker process each job may take a few milliseconds.
    """
    every = [[SMALL], *series, *beside]
    meter = _Meter(lab, offer, level)
    slope = meter.slope
    lab.reset(renew=True)
    try:
        meter.note(EMPTY)
        for number, contents in enumerate(every):
            meter.tell = part_of(tell, number, len(every))
            meter.tell(0.0)
            lab.reset(renew=True)
            if number > len(series):
                slope.beside += map(meter.measure, meter.filled(contents))
                continue
            meter.climb(contents)
            if slope.grown:
                break
    except _UnmeasurableError as error:
        slope.unable = str(error)
    except ServerError as error:
        slope.unable = f"the server answered ERROR {error}"
    finally:
        lab.reset(renew=True)  # the planner knows nothing of it any more
    return slope


class _Meter:
    """Fills a queue with its own operations, and measures its claim."""

    def __init__(self, lab: Lab, offer: Offer, level: int) -> None:
        self.lab = lab
        self.tell: Tell = untold  # of the contents that come next, how much is there
        self.slope = Slope(both=offer.joins)
        self._queue = offer.queue
        self._held = offer.held
        self._ends = offer.any_of("complete", "complete_many", "fail")
        self._level = level
        self._numbers = itertools.count()

    # --- filling --------------------------------------------------------------------------------

    def enqueue(self, count: int, **facts: Any) -> list[str]:  # noqa: ANN401 - of a job
        """Enqueue jobs; their ids."""
        # Without a complete a job ends by failing once.
        once = {} if self._queue.completes else {"max_attempts": 1}
        ids = enqueue(self.lab, count, **{**once, **facts})
        self.lab.promote(count)
        return ids

    def finish(self, count: int) -> list[str]:
        """Enqueue, claim and complete jobs, batch by batch, and fail some for good; their ids."""
        session = self.lab.session("w1")
        session.stepped = False
        can_once = self._failures and "max_attempts" in self._queue.takes("enqueue")
        once = {"max_attempts": 1} if can_once else {}
        ids: list[str] = []
        while len(ids) < count:
            batch = self.enqueue(min(count - len(ids), BATCH), **once)
            self._finish_batch(session, len(batch))
            ids += batch
            if count > FEW:  # of few, whoever asks for them tells
                self.tell(len(ids) / count)
        session.stepped = True
        return ids

    def _finish_batch(self, session: Session, left: int) -> None:
        failures: dict[str, int] = {}  # of jobs that are to be failed until they are
        waits = iter((MOMENT, LATER))  # its clock may tick in seconds; a failed job waits
        while left > 0:
            claims = drive(session, self._claim(left))
            if not claims:
                if (seconds := next(waits, None)) is not None:
                    self.lab.advance(seconds)
                    continue
                if left <= len(failures):
                    return  # they have failed before they had to
                raise _UnmeasurableError(_EMPTY_CLAIM)
            waits = iter((MOMENT, LATER))
            for job in claims:
                if job.id not in failures and self._failures and next(self._numbers) % EVERY == 0:
                    failures[job.id] = 0
            failed = [job for job in claims if job.id in failures]
            self._fail(session, failed)
            self._end(session, [job for job in claims if job.id not in failures])
            left -= len(claims) - len(failed)
            for job in failed:
                failures[job.id] += 1
                if failures[job.id] == self._failures:
                    del failures[job.id]
                    left -= 1

    def _claim(self, limit: int) -> Operation[Any]:
        return asked(self.lab, "claim", limit=self._queue.most("claim", limit, held=self._held))

    def _asked(self, done: Sequence[Claim] | None = None) -> Operation[Any]:
        """A claim of one job; one that completes others, where there are some."""
        if done is None:
            return self._claim(1)
        return asked(self.lab, "complete_and_claim", jobs=done)

    def _end(self, session: Session, claims: Sequence[Claim]) -> None:
        offers = self._queue.offers
        if "complete_many" in offers and (len(claims) > 1 or "complete" not in offers):
            drive(session, asked(self.lab, "complete_many", jobs=claims))
        elif "complete" in offers:
            for job in claims:
                drive(session, asked(self.lab, "complete", job=job))
        elif "fail" in offers:
            self._fail(session, claims)

    @cached_property
    def _failures(self) -> int:
        """The number of failures that end a job; 0 where no job is to fail."""
        queue = self._queue
        bound = queue.max_attempts
        if "fail" not in queue.offers or bound is None:
            return 0
        if "max_attempts" in queue.takes("enqueue"):
            return 1
        return bound if bound <= MOST_FAILURES else 0

    def _fail(self, session: Session, claims: Sequence[Claim]) -> None:
        for job in claims:
            drive(session, asked(self.lab, "fail", job=job, error=""))

    def filled(self, contents: Sequence[Content]) -> Iterator[Content]:
        """Fill the queue with one content after the other; yields each once it is there."""
        name = contents[0].kind
        kind = KINDS[name]
        if kind.facts is None and not self._ends:
            if name == "snapshot":
                raise _UnmeasurableError("neither complete nor fail is offered: no job is finished")
            return
        if not kind.copied:
            yield from self._churned(contents)
            return

        def make(count: int) -> list[str]:
            if kind.facts is None:
                return self.finish(count)
            return self.enqueue(count, **kind.facts)

        try:
            yield from self._multiplied(contents, make)
        except NotMultipliedError as error:
            self.slope.short = str(error)
            self.lab.reset(renew=True)
            jobs = ONE_BY_ONE[self._level]
            make(jobs)
            yield Content(name, jobs)

    def _churned(self, contents: Sequence[Content]) -> Iterator[Content]:
        """Finish jobs one by one."""
        kept = contents[0].kind == "snapshot"
        if kept:
            self.lab.session("snapshot").run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        finished = 0
        for content in contents:
            for start in range(finished, content.jobs, FEW):
                self.tell(start / content.jobs)
                self.finish(min(FEW, content.jobs - start))
                if not kept:  # as autovacuum does: space in an index is used again
                    self._vacuum()
            finished = content.jobs
            yield content

    def _multiplied(
        self, contents: Sequence[Content], make: Callable[[int], list[str]]
    ) -> Iterator[Content]:
        if self._ends:
            self.finish(1)  # what only the first job leaves, such as the worker's name
        filling = Filling(self.lab, make, max(content.jobs for content in contents))
        if KINDS[contents[0].kind].facts is not None and not filling.leaves_rows:
            raise NotMultipliedError("no table has a row for each job that waits")
        for content in contents if filling.leaves_rows else ():
            filling.grow(content.jobs)
            yield content

    # --- measuring ------------------------------------------------------------------------------

    def climb(self, contents: Sequence[Content]) -> None:
        """Fill with one content after the other and measure, until it is seen whether costs grow.

        A cost that is higher and then stays is none that grows: a claim may do so much at most for
        others, as one that makes a page of due jobs ready.
        """
        slope, first = self.slope, contents[0]
        copied = KINDS[first.kind].copied
        surer = [first._replace(jobs=first.jobs * DEEPER)] * (copied and len(contents) == 1)
        for content in self.filled([*contents, *surer]):
            if content in surer and not slope.grown:
                return
            before = slope.costs[-1] if copied and slope.grown else None
            self.note(content)
            if before is not None and slope.costs[-1].buffers < before.buffers * STILL:
                slope.level.add(first.kind)
                slope.guilty = None
            if before is not None or not (copied or slope.grown):
                return

    def note(self, content: Content) -> None:
        """Measure at a content that is there, and keep the plan of what has grown."""
        self.slope.costs.append(self.measure(content))
        if self.slope.grown:
            self._explain(max(self.slope.costs[-1].statements, key=lambda one: one[1])[0])

    def measure(self, content: Content) -> Cost:
        """Vacuum, and measure some claims: the least of them."""
        if self._failures and content.kind in {"churned", "finished"} and content.jobs:
            self.lab.advance(LATER)  # what has failed was due before what is ready, as it is in use
        self._vacuum()  # before, too: rows at a table's end would keep it from being truncated
        self.enqueue((REPEATS + 1) * (1 + self.slope.both))
        session = self.lab.session("w1")
        _, claims = self._counted(session)  # it may move what is due, and leave as many dead rows
        self._release(session, claims)
        self._vacuum()
        # Workers of a parallel query count for themselves.
        session.run("SET max_parallel_workers_per_gather = 0")
        costs = []
        for _ in range(REPEATS):
            statements, claims = self._counted(session)
            for missing in (0, 1 + self.slope.both):
                if not claims:  # one that takes more than its limit has left none
                    self.enqueue(missing)
                    self.lab.advance(MOMENT)  # not always: a moved clock shows in a plan
                    statements, claims = self._counted(session)
            if not claims:
                raise _UnmeasurableError(_EMPTY_CLAIM)
            if self.slope.both:
                more, claims = self._counted(session, claims)
                statements += more
            self._release(session, claims)
            costs.append(Cost(content, statements))
        least = min(costs, key=lambda cost: cost.buffers)
        if not least.buffers:
            raise _UnmeasurableError("the server counts no buffers: track_counts is off")
        return least

    def _release(self, session: Session, claims: Sequence[Claim]) -> None:
        self._end(session, claims)
        if session.in_transaction:
            session.run("ROLLBACK")

    def _vacuum(self) -> None:
        for table in self.lab.tables.names:
            self.lab.execute(f"VACUUM (ANALYZE, INDEX_CLEANUP ON) {table}", waits.BULK)

    def _counted(
        self, session: Session, done: Sequence[Claim] | None = None
    ) -> tuple[list[tuple[str, int]], Sequence[Claim]]:
        """A claim, or one that completes others, with what each of its statements touched."""
        operation = self._asked(done)
        if self.lab.by_clients:
            return self._counted_by_server(session, operation)
        statements: list[tuple[str, int]] = []

        def act(session: Session, step: Step) -> Result:
            if first_keyword(step.sql) in _UNCOUNTED:
                return execute(session, step)
            result, buffers = _count(session, step)
            statements.append((step.sql, buffers))
            return result

        return statements, claimed(drive(session, operation, act))

    def _counted_by_server(
        self, session: Session, operation: Operation[Any]
    ) -> tuple[list[tuple[str, int]], Sequence[Claim]]:
        """A worker's claim, with what all its statements touched together.

        A worker's backend tells nobody its counters before its transaction is over, and in its
        own time, unless it is made to.
        """
        if self._held:
            raise _UnmeasurableError("a program's claim that is a transaction counts when it ends")
        lab = self.lab
        if not lab.can_count:
            raise _UnmeasurableError("counters of programs' sessions need PostgreSQL 15 or later")
        before = lab.touched()
        statements: list[str] = []
        claims = claimed(drive(session, noted(operation, statements)))
        longest = max(statements, key=len, default="")
        return [(longest, lab.touched() - before)], claims

    def _explain(self, guilty: str) -> None:
        """Claim once more; keep the guilty statement's plan, and which index would serve it."""
        session = self.lab.session("w1")
        self.enqueue(1 + self.slope.both)

        def see(step: Step) -> None:
            if step.sql == guilty:
                self.slope.guilty = (guilty, explain(session, step))
                there = {_comparable(str(one)) for (one,) in self.lab.execute(_INDEXES)}
                found = serving_indexes(guilty)
                lacking = [one for one in found if _comparable(one.sql) not in there]
                # Of a few rows, as those of slots, nobody needs one.
                self.slope.index = max(lacking or found, key=self._size, default=None)
                self.slope.served = bool(found) and not lacking

        claims = claimed(drive(session, watched(self._asked(), see)))
        if self.slope.both:
            drive(session, watched(self._asked(claims), see))
        if session.in_transaction:
            session.run("ROLLBACK")

    def _size(self, index: ServingIndex) -> int:
        """The bytes of the table that an index is for, its partitions included."""
        table = index.sql.split(maxsplit=4)[3].rpartition(".")[2].strip('"')
        ((size,),) = self.lab.execute(_SIZE.format(table.replace("'", "''")))
        return int(str(size))


def _of_all(join: Join) -> str:
    """The advice on a join that reads all of a table."""
    listed = f" UNION ALL SELECT {join.other} FROM ".join(join.listed)
    return _JOINED.format(join.table, " and ".join(join.listed), join.key, join.other, listed)


def _comparable(index: str) -> str:
    """An index without its own name and its table's: as an author or the server says it."""
    columns = index[index.index("(") :]
    # What is compared first is not NULL.
    columns = re.sub(r"^(\((\w+)\b.*) WHERE \(\2 IS NOT NULL\)$", r"\1", columns)
    bare = re.sub(r"::[\w. ]+|[()\s]", "", columns).lower()
    return re.sub(r"=anyarray\[([^]]*)\]", r"in\1", bare)


def _count(session: Session, step: Step) -> tuple[Result, int]:
    """A statement's answer, and how many buffers it touched.

    The counters are those of a transaction, and gone when the session is idle: a statement that
    would be one of its own gets BEGIN and COMMIT round it.
    """
    alone = not session.in_transaction
    if alone:
        session.run("BEGIN")
    before = _fetched(session)
    result = execute(session, step)
    buffers = _fetched(session) - before
    if alone:
        session.run("COMMIT")
    return replace(result, in_transaction=session.in_transaction), buffers


def _fetched(session: Session) -> int:
    return int(next(iter(execute(session, Step(_FETCHED)).rows[0].values())))
