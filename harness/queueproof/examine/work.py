"""A check's work in units, which processes may do beside each other: the findings are the same.

A unit is data, and what comes of it depends on nothing but the queue, the seed and the unit. An
examination asks for the units that it needs, one after the other, and which these are depends on
what it has found; a crew has done them by then, or they are done now.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from queueproof import waits
from queueproof.errors import OWN_SERVERS, QueueproofError
from queueproof.examine.processes import MOST, UnableError, lab_here, processes
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.history.calls import History
from queueproof.judge.checker import check, declare
from queueproof.judge.violations import Violation
from queueproof.machine import processors
from queueproof.probes.probe import Tell, untold
from queueproof.probes.probes import PROBES, Seen
from queueproof.queues.offer import Offer
from queueproof.run.lab import Lab
from queueproof.run.open import CONNECTIONS, refuse_crashed, twin_of
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.run.session import ConnectionLostError
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import Program, Schedule
from queueproof.search.explore import explore
from queueproof.search.shrink import Failure, Like, find, unexpected
from queueproof.space.crowds import numbered
from queueproof.space.pieces import Pieces

PART = waits.BULK  # seconds for one unit
AHEAD = 2  # units for each process that somebody guesses will be asked for next
WORTH = 500  # runs that repay what another process takes to begin
_PROBE, _SEARCH, _CROWD = 50, 10, 8  # runs that take as long
_SPARE = """
SELECT current_setting('max_connections')::int
  - current_setting('superuser_reserved_connections')::int
  - (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')
"""


class Exploration(NamedTuple):
    """A program under as many schedules as a budget allows.

    Attributes:
        counting: The guarantee that says what its conditions' evidence is; or nothing.
    """

    program: Program
    conditions: Conditions
    budget: int
    counting: str = ""
    fixed: int = 0


class Draws(NamedTuple):
    """Crowds: random programs, each under one schedule.

    Attributes:
        first: The number of the first.
        counting: As for an exploration.
    """

    first: int
    many: int
    conditions: Conditions = PLAIN
    counting: str = ""


class Probing(NamedTuple):
    """The probe of a guarantee, at a level."""

    guarantee: str
    level: int


class Search(NamedTuple):
    """A program in which a guarantee may break as it did in another; see `shrink.find`."""

    program: Program
    conditions: Conditions
    guarantee: str
    like: Like


Unit: TypeAlias = Exploration | Draws | Probing | Search
OneUnit = TypeVar("OneUnit", Exploration | Draws, Probing, Search)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tried:
    """One run, as far as an examination wants to know.

    Attributes:
        evidence: What it is worth; nothing where the schedule alone did not decide what happened.
        broken: The guarantees that it broke, each with all that is to be told of it.
        unexpected: What else it broke: see `shrink.unexpected`.
        errors: What the server answered with, as `error SQLSTATE`.
        faults: See `Run`; none where it was the server that decided.
    """

    evidence: Mapping[tuple[str, str], int]
    broken: Sequence[Failure]
    unexpected: Sequence[Failure]
    errors: frozenset[str]
    faults: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a unit that another process did.

    Attributes:
        found: What comes of it.
    """

    found: list[Tried] | Seen | Failure | None
    unmoved: str = ""


def runner_under(
    lab: Lab,
    offer: Offer,
    conditions: Conditions,
    *,
    anew: bool = False,
    known: dict[Program, History] | None = None,
) -> Runner:
    """A runner of programs under some conditions.

    Raises:
        QueueproofError: The server is killed under them, and this one is not ours.
    """
    if conditions.killed and not lab.server.ours:
        raise QueueproofError(
            "in this story the server is killed, and this one is not ours: replay it with"
            f" --postgres {OWN_SERVERS}"
        )
    where = twin_of(lab) if conditions.killed else lab
    return Runner(
        where,
        held=offer.held,
        tied=offer.tied,
        passes=offer.passes,
        anew=anew,
        conditions=conditions,
        known=known,
    )


class Work:
    """The outcomes of units on one installed queue."""

    def __init__(self, lab: Lab, offer: Offer, seed: int) -> None:
        self._lab = lab
        self._offer = offer
        self._declared = declare(offer)
        self._pieces = Pieces(offer)
        self._seed = seed
        self._in_turn: dict[Program, History] = {}

    def tries(self, unit: Exploration | Draws) -> Iterator[Tried]:
        """The runs of a unit, one after the other."""
        conditions = unit.conditions
        if isinstance(unit, Draws):
            runner = runner_under(self._lab, self._offer, conditions)
            for number in range(unit.first, unit.first + unit.many):
                program, schedule = numbered(self._pieces, self._seed, number)
                yield self._tried(unit, program, schedule, runner.run(program, schedule))
            return
        if conditions.killed:
            self._lab.execute("SELECT")  # whoever ends the run stops this lab's server
        runner = runner_under(self._lab, self._offer, conditions, known=self._in_turn)
        explored = explore(
            runner, unit.program, budget=unit.budget, seed=self._seed, fixed=unit.fixed
        )
        for schedule, run in explored:
            yield self._tried(unit, unit.program, schedule, run)

    def _tried(
        self, unit: Exploration | Draws, program: Program, schedule: Schedule, run: Run
    ) -> Tried:
        def failures(found: Iterable[Violation]) -> list[Failure]:
            return [Failure(program, tuple(schedule), run, one, unit.conditions) for one in found]

        findings = check(run.history, self._declared)
        evidence: Mapping[tuple[str, str], int] = findings.evidence
        if name := unit.counting:
            counted = CATALOGUE[name].evidence(run)
            evidence = {(name, what): n for what, n in counted.items()}
        return Tried(
            {} if run.ambiguous else evidence,
            failures(findings.violations),
            failures(unexpected(run)),
            frozenset(f"error {error.sqlstate}" for error, _ in run.errors.values()),
            () if run.ambiguous else run.faults,
        )

    def probe(self, unit: Probing, tell: Tell = untold) -> Seen:
        """Have a probe look."""
        return PROBES[unit.guarantee].watch(self._lab, self._offer, unit.level, tell)

    def search(self, unit: Search) -> Failure | None:
        """The first schedule under which a guarantee breaks as it is to; None where none does."""
        runner = runner_under(self._lab, self._offer, unit.conditions)
        return find(runner, self._declared, unit.program, unit.guarantee, like=unit.like)

    def done(self, unit: Unit) -> Done:
        """Do a whole unit, for another process."""
        found: list[Tried] | Seen | Failure | None
        match unit:
            case Probing():
                found = self.probe(unit)
            case Search():
                found = self.search(unit)
            case Exploration() | Draws():
                found = list(self.tries(unit))
        return Done(found, self._lab.unmoved)


class Helpers:
    """Processes that install a queue when they begin, at the first unit that is given to one.

    Attributes:
        shares: Whether this process does units beside them; else it waits for what it gave them.
    """

    shares = True

    def __init__(self, count: int, begin: Callable[[], ProcessPoolExecutor]) -> None:
        self.count = count
        self._begin = begin

    @cached_property
    def processes(self) -> ProcessPoolExecutor:
        """The processes."""
        return self._begin()

    def given(self, offer: Offer, seed: int) -> Any:  # noqa: ANN401 - theirs alone
        """The bytes that go to them with each unit."""
        return pickle.dumps((offer, seed))

    def submit(self, given: Any, unit: Unit) -> Future[Any]:  # noqa: ANN401 - the same
        """Have a unit done.

        Args:
            given: By `given`.
        """
        return self.processes.submit(done_here, given, unit)

    def result(self, future: Future[Any]) -> Done | None:
        """The outcome of a unit, in the end; None where its process was killed or is frozen.

        Args:
            future: By `submit`.
        """
        if not ends(future, PART):
            return None
        try:
            done: Done = future.result()
        except (BrokenProcessPool, CancelledError, UnableError):
            return None
        return done


class Crew:
    """Does units in other processes before somebody asks for them, and here.

    Whoever asks for a unit that another process is at does others of those meanwhile that will
    probably be asked for.

    Args:
        pool: The other processes, see `beside`, here or elsewhere; None for none.
    """

    def __init__(self, lab: Lab, offer: Offer, seed: int, pool: Helpers | None = None) -> None:
        self._lab = lab
        self._here = Work(lab, offer, seed)
        self._pool = pool
        self._shares = pool is None or pool.shares
        self._given = pool.given(offer, seed) if pool else b""
        self._planned = 0  # runs
        self._ahead: dict[Unit, Future[Done]] = {}
        self._announced: Counter[Unit] = Counter()

    @property
    def is_alone(self) -> bool:
        """True if there are no other processes."""
        return self._pool is None

    @property
    def ahead(self) -> list[Unit]:
        """Units that are done, and that nobody has asked for yet."""
        return [unit for unit, future in self._ahead.items() if future.done()]

    def go_ahead(self, units: Sequence[Unit]) -> None:
        """Have units done that will probably be asked for, in this order.

        Where they are few, they are done before another process could begin.
        """
        self._planned += sum(map(runs_of, units))
        for unit in units:
            self._announced[unit] += 1  # whoever does it: `leave` counts them down
            little = self._shares and self._planned < WORTH
            if self._pool is None or little or self._announced[unit] > 1:
                continue
            try:
                self._ahead[unit] = self._pool.submit(self._given, unit)
            except BrokenProcessPool:
                self._pool = None

    def leave(self, units: Iterable[Unit]) -> None:
        """Withdraw units that were announced: nobody will ask for them."""
        for unit in units:
            self._announced[unit] -= 1
            if not self._announced[unit] and unit in self._ahead:
                self._ahead.pop(unit).cancel()

    def _take(self, unit: Unit) -> Done | None:
        """The result of a unit that another process has begun; None where none has."""
        future = self._ahead.pop(unit, None)
        if future is None or self._pool is None or (self._shares and future.cancel()):
            return None
        while self._shares and not future.done() and self._help():
            pass
        done = self._pool.result(future)
        if done is not None:  # else it is done here, and the same comes of it
            self._lab.unmoved = self._lab.unmoved or done.unmoved
        return done

    def _help(self) -> bool:
        """Do the first unit that no process has begun; whether there is one."""
        for unit, future in self._ahead.items():
            if not future.done() and future.cancel():
                done = Future[Done]()
                self._ahead[unit] = done
                try:
                    done.set_result(self._here.done(unit))
                except QueueproofError as error:  # for whoever asks for it, if anybody does
                    done.set_exception(error)
                return True
        return False

    def _asked(self, unit: OneUnit, here: Callable[[OneUnit], T]) -> T:
        """The outcome of a unit, by another process or here."""
        done = self._take(unit)
        return here(unit) if done is None else cast("T", done.found)

    def tries(self, unit: Exploration | Draws) -> Iterable[Tried]:
        """See `Work.tries`."""
        return self._asked(unit, self._here.tries)

    def probe(self, unit: Probing, tell: Tell) -> Seen:
        """See `Work.probe`.

        Args:
            tell: Told how far it is, where it is done here.
        """
        return self._asked(unit, lambda asked: self._here.probe(asked, tell))

    def first(self, units: Sequence[Search]) -> tuple[int, Failure] | None:
        """The first of some searches that finds something: its number, and what it finds."""
        ahead = AHEAD * self._pool.count if self._pool else 0
        begun = 0
        found = None
        for number, unit in enumerate(units):
            self.go_ahead(units[begun : number + ahead])
            begun = max(begun, number + ahead)
            failure = self._asked(unit, self._here.search)
            if failure is not None:
                found = number, failure
                break
        self.leave(units[:begun])
        return found


def ends(
    future: Future[Any], seconds: float, meanwhile: Callable[[], object] = lambda: None
) -> bool:
    """Wait until a process has done its part; False where it has not in time: one may be frozen.

    Args:
        meanwhile: Called again and again while it is waited for.
    """
    limit = waits.Limit(seconds, "a process to do its part of the work")
    while True:
        try:
            left = limit.left()
        except waits.StoppedError:
            raise
        except waits.LimitError:
            return False
        if wait([future], left).done:
            return True
        meanwhile()


# --- the other processes ------------------------------------------------------------------------


def runs_of(unit: Unit) -> int:
    """About how many runs a unit takes, at most."""
    match unit:
        case Exploration():
            return unit.budget
        case Draws():
            return unit.many * _CROWD
        case Probing():
            return _PROBE
        case Search():
            return _SEARCH


@contextmanager
def beside(lab: Lab, jobs: int) -> Iterator[Helpers | None]:
    """Processes that have the same queue installed beside a lab, until the end of the block.

    Args:
        jobs: How many, this one among them; on somebody's server fewer where it has no connections
            to spare, and no other where the queue would see what that one does, or cannot be sent.
    """
    with ExitStack() as stack:
        count = _most(lab, jobs) - 1

        def begin() -> ProcessPoolExecutor:
            return stack.enter_context(processes(lab.server, count, pickle.dumps(lab.queue)))

        yield Helpers(count, begin) if count else None


def _most(lab: Lab, jobs: int) -> int:
    if jobs == 1 or lab.sees_neighbours:
        return 1
    try:
        pickle.dumps(lab.queue)
    except (pickle.PicklingError, AttributeError, TypeError):
        return 1  # a class that stands in no module
    if lab.server.ours:
        return min(jobs, max(MOST, 2 * processors()))  # each starts a server of its own
    ((spare,),) = lab.execute(_SPARE)
    assert isinstance(spare, int)
    return max(1, min(jobs, (spare - CONNECTIONS) // CONNECTIONS))


def done_here(given: bytes, unit: Unit) -> Done:
    """Do a unit where this process has installed the queue.

    Args:
        given: What the queue brings, and the seed of the schedules, as pickle has them.
    """
    try:
        return _work(given).done(unit)
    except ConnectionLostError:
        refuse_crashed(lab_here().server)
        raise


@lru_cache(maxsize=1)
def _work(given: bytes) -> Work:
    lab = lab_here()
    offer, seed = pickle.loads(given)  # noqa: S301 - the parent's
    return Work(lab, offer, seed)
