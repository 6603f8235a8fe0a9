"""The findings of a check, and which of them count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import TypeAlias

from queueproof.examine.work import Crew, Helpers, Search, Tried, runner_under
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee
from queueproof.judge.checker import declare
from queueproof.judge.spec import Declared
from queueproof.probes.probes import Seen
from queueproof.queues.offer import Offer
from queueproof.run.lab import Lab
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.programs import Program
from queueproof.search.explore import explore
from queueproof.search.reduce import reduced
from queueproof.search.shrink import Failure, breaches, find, shrink, smaller

DOUBTS = 3  # breaches of one guarantee that do not happen again, after which none is tried again
_ONCE = (
    "not again with programs started anew: the program keeps something from one run to the next,"
    " or acts on its own account"
)
AGAIN = 24  # schedules of a breach's program with workers started anew; each takes a second
WITHIN = 6  # schedules of each part of a story
STORIES = 3  # of one guarantee, each of another operation that breaks it


Told: TypeAlias = Callable[[str], None]
"""Called with a guarantee that breaks, and not with how: its story will be another, shorter run."""


@dataclass(slots=True)
class Findings:
    """The findings about a queue on a server so far.

    Attributes:
        lab: Where it is installed.
        seed: Of the random programs and schedules.
        pool: Other processes that do the work, see `Crew`.
        told: Called at once with each guarantee that breaks.
        causes: Whether other operations that break the same are looked for.
        crew: What does the work.
        declared: What the checker must know of it.
        space: How many programs of each kind there are, whether they are run or not.
    """

    lab: Lab
    offer: Offer
    seed: int
    pool: InitVar[Helpers | None] = None
    told: Told = lambda _guarantee: None
    causes: bool = False
    crew: Crew = field(init=False)
    declared: Declared = field(init=False)
    failures: dict[str, Failure] = field(default_factory=dict)
    others: dict[str, dict[str, Failure]] = field(default_factory=dict)  # by guarantee, by `cause`
    probed: dict[str, Seen] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)  # whose story holds which other one's
    unsure: dict[str, str] = field(default_factory=dict)  # why a breach that was seen counts not
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)
    space: Mapping[str, int] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)  # microseconds, by what they were spent on
    plain: set[str] = field(default_factory=set)  # guarantees whose breach explains another's
    errors: set[str] = field(default_factory=set)  # that come anyway, see `breaches`
    due: set[str] = field(default_factory=set)  # whose breach, in turn, wrong clocks alone make
    hit: set[tuple[str, str, int]] = field(default_factory=set)  # see `Run.faults`
    # By `id`: a breach, which keeps its id from another's use, and as short as it goes.
    _shorter: dict[int, tuple[Failure, Failure]] = field(default_factory=dict)
    _doubts: Counter[str] = field(default_factory=Counter)  # breaches that did not happen again

    def __post_init__(self, pool: Helpers | None) -> None:
        self.crew = Crew(self.lab, self.offer, self.seed, pool)
        self.declared = declare(self.offer)

    def runner(self, conditions: Conditions = PLAIN) -> Runner:
        """A runner of programs under some conditions."""
        return runner_under(self.lab, self.offer, conditions)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Count the time of a block as spent on something, without what is counted within it."""
        began, before = time.perf_counter_ns(), sum(self.spent.values())
        yield
        within = sum(self.spent.values()) - before
        self.spent[what] += (time.perf_counter_ns() - began) // 1000 - within

    def note(self, tried: Tried) -> None:
        """Take in what a run showed."""
        self.errors |= tried.errors
        self.evidence += Counter(tried.evidence)
        for failure in tried.broken:
            if failure.violation.plain:
                self.plain.add(failure.violation.guarantee)
            self.record(failure.violation.guarantee, failure)

    def record(self, name: str, failure: Failure) -> None:
        """Keep a breach, if none is known that is as firm, or none of the same operation."""
        known = self.failures.get(name)
        others = self.others.setdefault(name, {})
        if known is None or name in self.within or _says_more(failure, known):
            if (kept := self._confirmed(name, failure)) is not None:
                if known is None and name in CATALOGUE and not _doubted(kept):
                    self.told(name)
                self.failures[name] = kept
                self.within.pop(name, None)
                if known is not None and self.causes:
                    others[known.cause] = known
                others.pop(kept.cause, None)
        elif self._is_another(name, failure):
            kept = self._confirmed(name, failure)
            if kept is not None and kept.cause != known.cause:
                others[kept.cause] = kept

    def _is_another(self, name: str, failure: Failure) -> bool:
        """True if a breach has a cause that no story tells yet, or that it tells better."""
        certain = not _doubted(failure) and not failure.run.ambiguous
        if not self.causes or _is_apart(name) or not certain or not failure.cause:
            return False
        others = self.others[name]
        if (other := others.get(failure.cause)) is not None:
            return other.violation.alone and not failure.violation.alone
        return failure.cause != self.failures[name].cause and 1 + len(others) < STORIES

    def _confirmed(self, name: str, failure: Failure) -> Failure | None:
        """The breach as its story tells it; None where it does not count."""
        if self.lab.unmoved and _clock_moved(failure):
            self.unsure[name] = self.lab.unmoved
        elif not self.lab.remembers:
            return failure
        elif self._doubts[name] < DOUBTS:
            if (again := self._happens_again(failure)) is not None:
                return again
            self._doubts[name] += 1
            self.unsure[name] = f"{failure.violation.because}, but {_ONCE}"
        return None

    def _happens_again(self, failure: Failure) -> Failure | None:
        """The breach with workers started anew; None where it came of what they keep between runs.

        To begin a worker's life anew in each run takes too long. A breach counts when it happens
        with new lives too. What a life begins with, a driver that looks types up for instance, are
        steps that an old one has not: the same schedule may mean another order.
        """
        broken = failure.violation.guarantee
        program, conditions = failure.program, failure.conditions
        runner = runner_under(self.lab, self.offer, conditions, anew=True)
        run = runner.run(program, failure.schedule)
        for one in breaches(run, self.declared):
            if one.guarantee == broken:
                return Failure(program, failure.schedule, run, one, conditions)
        if not program.races:
            return None
        return find(runner, self.declared, program, broken, budget=AGAIN, seed=self.seed)

    def suspects(self, name: str) -> bool:
        """True if a guarantee was seen to break, even where something else explains it."""
        return name in self.failures or self.is_probed(name)

    def is_probed(self, name: str) -> bool:
        """True if a probe saw a guarantee break."""
        return name in self.probed and bool(self.probed[name].broken)

    def is_settled(self, name: str) -> bool:
        """True if more runs would not change the verdict on a guarantee."""
        return self.suspects(name) or _is_apart(name)

    def is_certain(self, name: str) -> bool:
        """The same, and no breach of another guarantee could explain it."""
        failure = self.failures.get(name)
        doubted = name in self.within or (failure is not None and _doubted(failure))
        return self.is_settled(name) and not doubted

    def explained(self, name: str) -> str:
        """The other finding that explains a breach, so that it counts once; empty for none."""
        for seen in self.probed.values():
            if seen.broken and name in seen.explains:
                return seen.explains[name]
        failure = self.failures[name]
        broken = failure.violation.guarantee
        if CATALOGUE[name].variations and broken in self.failures and name not in self.due:
            found = "is broken" if broken in CATALOGUE else "occurs"
            return f"{broken} {found} without it too"
        if name in self.within:
            return f"its story holds that of {self.within[name]}, which is broken: mend that first"
        doubts = [one for one in failure.violation.doubts if one in self.plain]
        follows = failure.violation.follows
        known = self.failures.get(follows)
        surely = self.is_probed(follows) or (known is not None and not _doubted(known))
        other = next(iter(doubts), follows if surely else "")
        return f"{failure.violation.because}: follows from the break of {other}" if other else ""

    def shorten(self, wanted: Sequence[Guarantee]) -> None:
        """Make the stories of what broke as short as they go.

        A short program may break without the conditions too under which the long one was seen to:
        then what it breaks is plainly broken, and they are not to blame.
        """
        asked = [g.id for g in wanted if g.needs(self.offer) is None]
        # What turns out to be plainly broken has a story of its own, to be shortened after it.
        for name in sorted(asked, key=lambda name: not CATALOGUE[name].variations):
            if name not in self.failures or self.is_probed(name) or self.explained(name):
                continue
            with self.timing(name):
                self.failures[name] = failure = self._shortened(self.failures[name])
                others = self.others.get(name, {})
                self.others[name] = {one: self._shortened(others[one]) for one in others}
            broken = failure.violation.guarantee
            if broken != name:
                plain = find(self.runner(), self.declared, failure.program.undisturbed, broken)
                if plain is not None:
                    self.due.discard(name)
                    self.record(broken, plain)
        for name in [name for name in asked if name in self.failures]:
            with self.timing(name):
                self._look_within(name)

    def _look_within(self, name: str) -> None:
        """See whether a part of each story is that of something else, which then explains it.

        Nothing can be left out of a story. So what a part of it breaks, it needs to be broken. Of
        several stories one that stands by itself is told first.
        """
        if CATALOGUE[name].variations or self.is_probed(name) or self.explained(name):
            return
        first, others = self.failures[name], self.others.get(name, {})
        for failure in (first, *others.values()):
            inner = self._inner(name, failure)
            if inner is None:
                if failure is not first:
                    del others[failure.cause]
                    others[first.cause], self.failures[name] = first, failure
                self.within.pop(name, None)
                return
            self.within.setdefault(name, inner)

    def _inner(self, name: str, failure: Failure) -> str | None:
        """The guarantee whose story is a part of another's story; None where there is none."""
        runner = self.runner(failure.conditions)
        for program in dict.fromkeys(smaller(failure.program)):
            for schedule, run in explore(runner, program, budget=WITHIN, seed=self.seed):
                for one in breaches(run, self.declared):
                    inner = Failure(program, schedule, run, one, failure.conditions)
                    # What comes after a part of a story is not what comes after the whole.
                    other = inner.phase and inner.phase != failure.phase
                    if one.guarantee == name or other or not self._explains(inner, name):
                        continue
                    if one.guarantee not in self.failures:
                        self.record(one.guarantee, self._shortened(inner))
                    if one.guarantee in self.failures:
                        return one.guarantee
        return None

    def _explains(self, inner: Failure, name: str) -> bool:
        """Tell whether a breach is told as broken, so that another may be explained by it.

        One that is explained itself is not: of two whose stories hold each other one stays broken.
        Nor does a wait, or the order of jobs, explain that one was lost or doubled.
        """
        guarantee = CATALOGUE.get(inner.violation.guarantee)
        if guarantee is None or guarantee.id in self.within or not all(inner.firmness[:2]):
            return False
        if CATALOGUE[name].acknowledged and not guarantee.acknowledged:
            return False
        accepted = guarantee.id in self.offer.queue.breaks or guarantee.accepted(self.offer)
        return not accepted and guarantee.needs(self.offer) is None

    def short(self, name: str) -> Failure | None:
        """The breach of a guarantee as short as it goes, while more may come; None: not certain."""
        if self.is_probed(name) or not self.is_certain(name) or self.explained(name):
            return None
        with self.timing(name):
            return self._shortened(self.failures[name])

    def _shortened(self, failure: Failure) -> Failure:
        if id(failure) not in self._shorter:
            short = self._shorten(failure)
            self._shorter |= {id(failure): (failure, short), id(short): (short, short)}
        return self._shorter[id(failure)][1]

    def _shorten(self, failure: Failure) -> Failure:
        failure = reduced(self.runner(failure.conditions), self.declared, failure)
        if failure.conditions.far or failure.conditions.gate:
            near = replace(failure.conditions, far=False, gate=None)
            broken = failure.violation.guarantee
            found = find(
                self.runner(near), self.declared, failure.program, broken, like=failure.like
            )
            failure = found or failure
        shorter = shrink(failure, partial(self._first, failure))
        weaker = _doubted(shorter) and not _doubted(failure)
        if weaker or not self.lab.remembers:
            return failure if weaker else shorter
        return self._happens_again(shorter) or failure

    def _first(self, failure: Failure, programs: Sequence[Program]) -> tuple[int, Failure] | None:
        """The first of some programs that breaks the same; see `shrink`."""
        broken, like = failure.violation.guarantee, failure.like
        return self.crew.first([Search(one, failure.conditions, broken, like) for one in programs])


def _clock_moved(failure: Failure) -> bool:
    """True if the clock had been moved before the breach."""
    calls = failure.run.history.calls
    return any(call.kind == "advance" for call in calls[: failure.violation.call])


def _says_more(failure: Failure, known: Failure) -> bool:
    """A breach stands better than a known one, or as well by a shorter program."""
    found, best = ((*one.firmness, -one.program.size) for one in (failure, known))
    return found > best


def _doubted(failure: Failure) -> bool:
    """The breach of another guarantee may explain it."""
    return bool(failure.violation.doubts or failure.violation.follows)


def _is_apart(name: str) -> bool:
    return name in CATALOGUE and CATALOGUE[name].apart
