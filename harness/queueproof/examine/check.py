"""From a queue and a server to a card: calibrate, explore, check, shrink, tell."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from queueproof.errors import OWN_SERVERS, QueueError, QueueproofError
from queueproof.examine.processes import lent_server
from queueproof.examine.work import (
    Crew,
    Draws,
    Exploration,
    Probing,
    Search,
    Tried,
    Unit,
    beside,
    runner_under,
)
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.guarantees.programs import DELAY, ONE, SETTLE, TWO
from queueproof.guarantees.suites import Suite, drawn_programs
from queueproof.history.calls import Call
from queueproof.judge.checker import Declared, Violation, declare
from queueproof.postgres import Server
from queueproof.probes.backoff import Waits
from queueproof.probes.probes import PROBES, Found, Seen
from queueproof.queues.model import OPERATIONS, Queue
from queueproof.queues.offer import Offer
from queueproof.report.card import Break, Card, Judgement, Place, Verdict
from queueproof.report.free import tell_free
from queueproof.report.story import Told, tell, tell_found
from queueproof.report.text import to_text
from queueproof.run import wallclock
from queueproof.run.free import Free, free_run
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.run.places import FreeFault
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.conditions import PLAIN, Conditions, Gate
from queueproof.schedule.draws import BACKEND
from queueproof.schedule.moments import DAY, HOUR, past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    FAULTS,
    OBSERVE,
    PROMOTE,
    RECOVER,
    Do,
    DoKind,
    JobSpec,
    OperationKind,
    Program,
    Schedule,
    Script,
    advance,
    claim,
    complete,
    crash,
    fail,
    heartbeat,
    in_turn,
    script,
    terminate,
)
from queueproof.search.explore import EXHAUSTIVE, explore
from queueproof.search.shrink import Failure, breaches, find, shrink


@dataclass(frozen=True, slots=True)
class Profile:
    """How thorough a check is, in counts: a budget in seconds would make a seed's verdict vary.

    Attributes:
        schedules: Most schedules of each fixed program.
        inside: Most schedules of each, with sessions that stop inside their statements.
        varied: Most schedules of each under conditions that should change nothing.
        kills: Most schedules of each in which the server is killed.
        drawn: Random programs.
        level: How much the probes measure.
        free: Runs without a scheduler.
    """

    schedules: int
    inside: int
    varied: int
    kills: int
    drawn: int
    level: int
    free: int = 0


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(schedules=16, inside=6, varied=3, kills=1, drawn=40, level=0),
    "default": Profile(schedules=250, inside=50, varied=30, kills=12, drawn=800, level=1),
    "deep": Profile(
        schedules=2500, inside=800, varied=500, kills=60, drawn=12_000, level=2, free=3
    ),
}

_PROGRAMS: Mapping[str, Profile] = {
    # A worker process and the gate before it make a run several times as long.
    "quick": Profile(schedules=12, inside=4, varied=2, kills=1, drawn=30, level=0),
    "default": Profile(schedules=80, inside=16, varied=10, kills=4, drawn=250, level=1),
    "deep": Profile(schedules=800, inside=250, varied=160, kills=20, drawn=4000, level=2, free=3),
}
_INNER: Mapping[str, Profile] = {
    # For what is known: that one defect breaks nothing beside what it breaks.
    "glance": Profile(schedules=3, inside=1, varied=1, kills=1, drawn=10, level=0),
    # For mutants: each is one small change, of which only the guarantees' own programs must know.
    "mutants": Profile(schedules=16, inside=12, varied=3, kills=1, drawn=40, level=0),
}
_PROFILES = {**PROFILES, **_INNER}

Progress = Callable[[str, float], None]
"""Called with what is being done and which fraction of it is."""


@dataclass(slots=True)
class Examination:
    """A queue on a server, with what has been found so far.

    Attributes:
        lab: Where it is installed.
        offer: What it brings.
        declared: What the checker must know of it.
        seed: Of the random programs and schedules.
        profile: How thoroughly.
        crew: What does the work.
    """

    lab: Lab
    offer: Offer
    declared: Declared
    seed: int
    profile: Profile
    crew: Crew
    through: DoKind | None = None  # only programs that do this operation
    named: frozenset[str] = frozenset()  # asked for by name: no tool may be lacking
    required: frozenset[str] = frozenset()  # and the queue must offer what they need
    failures: dict[str, Failure] = field(default_factory=dict)
    causes: bool = False  # whether other operations that break the same are looked for
    others: dict[str, dict[str, Failure]] = field(default_factory=dict)  # by guarantee, by `cause`
    probed: dict[str, Seen] = field(default_factory=dict)
    freed: dict[str, tuple[Free, Violation]] = field(default_factory=dict)  # by free runs
    unsure: dict[str, str] = field(default_factory=dict)  # why a breach that was seen counts not
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)  # microseconds, by what they were spent on
    in_turn: bool = False  # a job was claimed twice without a race and without a lease in play
    _plain: set[str] = field(default_factory=set)  # guarantees whose programs have been run
    _errors: set[str] = field(default_factory=set)  # that come anyway, see `breaches`
    _hit: set[tuple[str, str, int]] = field(default_factory=set)  # see `Run.faults`
    _doubts: Counter[str] = field(default_factory=Counter)  # breaches that did not happen again
    _losing: dict[Program, bool] = field(default_factory=dict)  # without any fault
    _explored: dict[Exploration, int] = field(default_factory=dict)  # to how many schedules

    def examine(
        self,
        wanted: Sequence[Guarantee],
        progress: Progress,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run everything that the guarantees need, or as much as is enough.

        Args:
            wanted: The guarantees; those that the queue does not offer are left out.
            progress: Told how far it is.
            enough: Whether what was found by now is enough; asked after each part of the work.
        """
        asked = [g for g in wanted if g.needs(self.offer) is None]
        ids = [g.id for g in asked]
        suite = Suite(self.offer, self.through)
        # The gates' triggers are made and dropped once, not for each guarantee.
        parts = [
            self._exploring(suite, guarantee, Conditions(gate=gate))
            for gate in _GATES
            if gate is None or gate in self.lab.gates
            for guarantee in asked
            if guarantee.programs is not None
        ]
        parts += [
            self._exploring(suite, guarantee, conditions)
            for guarantee in asked
            for conditions in guarantee.extra
        ]
        for guarantee in asked:
            if guarantee.late is not None:
                late = list(self._overtaking(suite, guarantee))
                parts.append(_Part(guarantee.id, partial(self._overtake, late), late))
        for guarantee in asked:
            for variation in guarantee.variations:
                units = list(self._variations(suite, guarantee, variation))
                vary = partial(self._vary, suite, guarantee, variation.conditions, units)
                parts.append(_Part(guarantee.id, vary, units))
        level = self.profile.level
        for guarantee in wanted:
            if guarantee.id in PROBES and (guarantee in asked or (guarantee.told_anyway and level)):
                unit = Probing(guarantee.id, level)
                parts.append(_Part(guarantee.id, partial(self._probe, unit), [unit]))
        drawn = cache(partial(self._drawn, suite))
        if not self.crew.is_alone:
            ahead: list[Unit] = [unit for part in parts for unit in part.units]
            ahead.sort(key=lambda unit: not isinstance(unit, Probing))  # these take longest
            self.crew.go_ahead([*ahead, *drawn()])
        parts.append(_Part("random programs", partial(self._draw, drawn, ids)))
        parts += [
            _Part("free runs", partial(self._run_free, ids, number))
            for number in range(self.profile.free)
        ]
        for n, part in enumerate(parts):
            progress(part.what, n / len(parts))
            with self._timing(part.what):
                part.act()
            self.crew.leave(part.units)
            if enough():
                return

    @contextmanager
    def _timing(self, what: str) -> Iterator[None]:
        began = time.perf_counter_ns()
        yield
        self.spent[what] += (time.perf_counter_ns() - began) // 1000

    def _runner(self, conditions: Conditions = PLAIN) -> Runner:
        return runner_under(self.lab, self.offer, conditions)

    def _probe(self, unit: Probing) -> None:
        name = unit.guarantee
        if CATALOGUE[name].variations and name in self.failures:
            return  # a story of controlled runs says more
        self.probed[name] = self.crew.probe(unit)

    def _exploring(self, suite: Suite, guarantee: Guarantee, conditions: Conditions) -> _Part:
        units = list(self._explorations(suite, guarantee, conditions))
        return _Part(guarantee.id, partial(self._explore_all, units, guarantee, conditions), units)

    def _explorations(
        self, suite: Suite, guarantee: Guarantee, conditions: Conditions = PLAIN
    ) -> Iterator[Exploration]:
        """The programs of a guarantee; those that stop inside a statement where they race."""
        inside = conditions.gate is not None
        budget = self.profile.inside if inside else self.profile.schedules
        for program in suite.programs(guarantee):
            if program.races or not inside:
                yield Exploration(program, conditions, budget, until=guarantee.id)

    def _explore_all(
        self, units: Iterable[Exploration], guarantee: Guarantee, conditions: Conditions = PLAIN
    ) -> None:
        name = guarantee.id
        for unit in units:
            if self.lab.unmoved and guarantee.timed:
                return
            if name not in self.failures:
                self._explore(unit, name)
            elif conditions != PLAIN or not self.causes:
                return
            else:
                self._look_further(unit.program, name)
        if conditions == PLAIN:
            self._plain.add(name)

    def _explore(self, unit: Exploration, guarantee: str) -> None:
        what = unit._replace(until="")
        if what in self._explored:  # for another guarantee: all that these runs break was noted
            self.evidence[guarantee, "schedules"] += self._explored[what]
            return
        count = 0
        for tried in self.crew.tries(unit):
            count += 1
            self.evidence[guarantee, "schedules"] += 1
            self._judge(tried)
            if guarantee in self.failures:
                return
        self._explored[what] = count

    def _look_further(self, program: Program, guarantee: str) -> None:
        """Look a little for another operation that breaks what is broken, or hurts another."""
        known = [self.failures[guarantee], *self.others.get(guarantee, {}).values()]
        if len(known) == STORIES and not any(one.violation.alone for one in known):
            return
        for tried in self.crew.tries(Exploration(program, PLAIN, FURTHER)):
            self.evidence[guarantee, "schedules"] += 1
            self._judge(tried)

    def _overtaking(self, suite: Suite, guarantee: Guarantee) -> Iterator[Exploration]:
        """Programs in which somebody acts late, after another has overtaken it."""
        conditions, budget = Conditions(gate="every"), 4 * self.profile.inside
        for program in suite.late(guarantee):
            yield Exploration(program, conditions, budget, OVERTAKEN, guarantee.id)

    def _overtake(self, units: Iterable[Exploration]) -> None:
        for unit in units:
            if unit.until not in self.failures and not self.lab.unmoved:
                self._explore(unit, unit.until)

    def _variations(
        self, suite: Suite, guarantee: Guarantee, variation: Variation
    ) -> Iterator[Exploration]:
        """Programs under conditions that should change nothing."""
        conditions = variation.conditions
        if conditions.pooled and not self.lab.chooses_connections:
            return  # a worker process chooses its connections; PgBouncer itself is asked
        if conditions.clocks and self.lab.by_clients:
            conditions = replace(conditions, styles=False)
        if conditions.killed and not self.lab.server.ours:
            return
        profile = self.profile
        for program in suite.varied(variation):
            budget = profile.schedules if program.size <= TINY else profile.varied
            budget = profile.kills if conditions.killed else budget
            yield Exploration(program, conditions, budget, counting=guarantee.id)

    def _vary(
        self,
        suite: Suite,
        guarantee: Guarantee,
        conditions: Conditions,
        units: Iterable[Exploration],
    ) -> None:
        """Look for what breaks under some conditions only."""
        name = guarantee.id
        if conditions.clocks and self.lab.has_own_clock and not wallclock.MOVABLE:
            self.probed[name] = Seen({}, lacks=wallclock.MISSING)
        if conditions.killed and not self.lab.server.ours:
            self.probed[name] = _unkilled(self.lab)
        for unit in units:
            program = unit.program
            for tried in self.crew.tries(unit):
                self.evidence[name, "schedules"] += 1
                self.evidence += Counter(tried.evidence)
                self._hit.update(tried.faults)
                for failure in tried.failures([*tried.violations, *tried.unexpected]):
                    broken = failure.violation.guarantee
                    if broken in CATALOGUE and not CATALOGUE[broken].acknowledged:
                        continue  # who waits for whom, and in which order: another's business
                    if guarantee.faults and (
                        broken not in CATALOGUE or self._loses_anyway(program.undisturbed)
                    ):
                        continue
                    if self._breaks_anyway(suite, program.undisturbed, broken):
                        continue
                    self._record(name, failure)
            if name in self.failures:
                return

    def _record(self, name: str, failure: Failure) -> None:
        """Keep a breach, if none is known that is as firm, or none of the same operation."""
        known = self.failures.get(name)
        others = self.others.setdefault(name, {})
        if known is None or failure.firmness > known.firmness:
            if (kept := self._confirmed(name, failure)) is not None:
                self.failures[name] = kept
                if known is not None and self.causes:
                    others[known.cause] = known
                others.pop(kept.cause, None)
        elif self._is_another(name, failure):
            kept = self._confirmed(name, failure)
            if kept is not None and kept.cause != known.cause:
                others[kept.cause] = kept

    def _is_another(self, name: str, failure: Failure) -> bool:
        """Whether a breach has a cause that no story tells yet, or tells better."""
        certain = not failure.violation.doubtful and not failure.run.ambiguous
        if not self.causes or _apart(name) or not certain or not failure.cause:
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

    def _breaks_anyway(self, suite: Suite, program: Program, broken: str) -> bool:
        """Whether a guarantee breaks under plain conditions too."""
        known = CATALOGUE.get(broken)
        if known and known.programs and broken not in self._plain and not known.needs(self.offer):
            self._explore_all(self._explorations(suite, known), known)
        if broken in self.failures or broken in self._errors:
            return True
        failure = find(self._runner(), self.declared, program, broken, budget=ENOUGH)
        if failure is not None and broken not in CATALOGUE:
            self._errors.add(broken)
        return failure is not None

    def _loses_anyway(self, program: Program) -> bool:
        """Whether a program loses or doubles a job without any fault, whatever that breaks."""
        if program not in self._losing:
            runs = explore(self._runner(), program, budget=ENOUGH)
            found = (violation for _, run in runs for violation in breaches(run, self.declared))
            self._losing[program] = any(
                one.guarantee in CATALOGUE and CATALOGUE[one.guarantee].acknowledged
                for one in found
            )
        return self._losing[program]

    def _judge(self, tried: Tried) -> None:
        self._errors |= tried.errors
        self.evidence += Counter(tried.evidence)
        for failure in tried.failures(tried.violations):
            self.in_turn = self.in_turn or failure.violation.in_turn
            self._record(failure.violation.guarantee, failure)

    def _drawn(self, suite: Suite) -> list[Draws]:
        """Random programs, each with a random schedule."""
        drawn: list[tuple[Program, Schedule]] = []

        # No database, no shrinking: the same seed draws the same programs, and what is found is
        # shrunk by `explore.shrink`, which searches the schedule of each smaller program anew.
        @hypothesis_seed(self.seed)
        @settings(
            max_examples=self.profile.drawn,
            backend=BACKEND,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(drawn_programs(suite), st.lists(st.integers(0, 2), max_size=24))
        def draw(program: Program, schedule: list[int]) -> None:
            drawn.append((program, tuple(schedule)))

        with _without_a_directory():
            draw()
        return [Draws(tuple(drawn[n : n + AT_ONCE])) for n in range(0, len(drawn), AT_ONCE)]

    def _draw(self, drawn: Callable[[], Sequence[Draws]], asked: Sequence[str]) -> None:
        """Run random programs under random schedules."""
        for unit in drawn() if not all(map(self._found, asked)) else ():
            for tried in self.crew.tries(unit):
                self.evidence["", "random programs"] += 1
                self._judge(tried)
                if all(map(self._found, asked)):
                    return

    def _run_free(self, asked: Sequence[str], number: int) -> None:
        """Run processes without a scheduler, when the controlled runs have found nothing."""
        if any(map(self.suspects, asked)) or self.lab.unmoved or self.lab.queue.cast:
            return  # whose workers would not know which version they run
        self.lab.forget_sessions()
        self.lab.reset()
        free = free_run(
            self.lab,
            self.offer,
            self.declared,
            jobs=FREE_JOBS,
            workers=FREE_WORKERS,
            seed=self.seed + number,
            faults=FREE_FAULTS,
        )
        self.lab.reset()
        self.evidence["", "operations in free runs"] += free.evidence.get("operations", 0)
        for name, violation in free.broken.items():
            self.freed.setdefault(name, (free, violation))

    def _found(self, name: str) -> bool:
        """Whether more runs would not change the verdict on a guarantee."""
        return self.suspects(name) or _apart(name)

    def suspects(self, name: str) -> bool:
        """Whether a guarantee was seen to break, even where something else explains it."""
        return name in self.failures or self._is_probed(name)

    def _is_probed(self, name: str) -> bool:
        return name in self.probed and bool(self.probed[name].broken)

    def shorten(self, wanted: Sequence[Guarantee]) -> None:
        """Make the stories of what broke as short as they go.

        A short program may break without the conditions too under which the long one was seen to:
        then what it breaks is plainly broken, and they are not to blame.
        """
        asked = [g.id for g in wanted if g.needs(self.offer) is None]
        # What turns out to be plainly broken has a story of its own, to be shortened after it.
        for name in sorted(asked, key=lambda name: not CATALOGUE[name].variations):
            if name not in self.failures or self._is_probed(name) or self._explained(name):
                continue
            with self._timing(name):
                self.failures[name] = failure = self._shortened(self.failures[name])
                others = self.others.get(name, {})
                self.others[name] = {one: self._shortened(others[one]) for one in others}
            broken = failure.violation.guarantee
            if broken != name:
                plain = find(self._runner(), self.declared, failure.program.undisturbed, broken)
                if plain is not None:
                    self._record(broken, plain)

    def _shortened(self, failure: Failure) -> Failure:
        shorter = shrink(failure, partial(self._first, failure))
        weaker = shorter.violation.doubtful and not failure.violation.doubtful
        if weaker or not self.lab.remembers:
            return failure if weaker else shorter
        return self._happens_again(shorter) or failure

    def _first(self, failure: Failure, programs: Sequence[Program]) -> tuple[int, Failure] | None:
        """The first of some programs that breaks the same; see `shrink`."""
        broken, like = failure.violation.guarantee, failure.like
        return self.crew.first([Search(one, failure.conditions, broken, like) for one in programs])

    def judgement(self, guarantee: Guarantee) -> Judgement:
        """The verdict on one guarantee, with its story as short as it was made."""
        return replace(self._judgement(guarantee), seconds=self.spent[guarantee.id] / 1e6)

    def _judgement(self, guarantee: Guarantee) -> Judgement:
        name = guarantee.id
        named = name in self.named | self.required
        watched = self.probed.get(name, Seen({}))
        missing = guarantee.needs(self.offer)
        if missing is not None:
            reason = f"{missing}: {watched.remark}" if watched.remark else missing
            verdict: Verdict = "inconclusive" if name in self.required else "not-offered"
            return Judgement(name, verdict, reason)
        evidence = self._evidence(guarantee)
        accepted = self.offer.queue.breaks.get(name)
        if stories := self._stories(name):
            first, *more = stories
            reason = first.reason
            if accepted is not None:
                reason = f"{reason} (declared: {accepted})"
            found: Verdict = "broken" if accepted is None else "accepted"
            return Judgement(
                name,
                found,
                reason,
                first.story,
                first.replay,
                evidence,
                tuple(more),
                first.told,
                first.place,
            )
        if lacks := self._lacks(guarantee, watched):
            return Judgement(name, "inconclusive" if named else "not-offered", lacks)
        unsure = self._unsure(guarantee, watched, evidence)
        if unsure:
            return Judgement(name, "inconclusive", unsure, evidence=evidence)
        reason = ", ".join(f"{n:,} {what}" for what, n in evidence.items())
        if watched.lacks and named:
            reason = f"{watched.lacks}; without it: {reason}"
            return Judgement(name, "inconclusive", reason, evidence=evidence)
        if watched.remark:
            reason += f"; {watched.remark}"
        if accepted is not None:
            reason = f"declared in [breaks] but not seen to break: {reason}"
        return Judgement(name, "holds", reason, evidence=evidence)

    def _lacks(self, guarantee: Guarantee, watched: Seen) -> str:
        """The tool without which nothing can be said here; empty where there is none."""
        unmoved = self.lab.unmoved if self.lab.has_own_clock else ""
        if unmoved and (guarantee.timed or self.unsure.get(guarantee.id) == unmoved):
            return unmoved
        return "" if watched.partial else watched.lacks

    def _unsure(self, guarantee: Guarantee, watched: Seen, evidence: Mapping[str, int]) -> str:
        """Why a guarantee that was not seen to break is not proved; empty where it is."""
        name = guarantee.id
        if name in self.failures:
            return self._explained(name)
        if watched.unable:
            return watched.unable
        if guarantee.timed and self.lab.unmoved:
            return self.lab.unmoved
        if name in self.unsure:
            return self.unsure[name]
        if not any(n for what, n in evidence.items() if what not in _EFFORT):
            lacking = f": no {guarantee.lacking}" if guarantee.lacking else ""
            return f"no run put it to the test{lacking}"
        if guarantee.faults and (lacking := self._without(evidence)):
            return f"no {lacking}"
        return ""

    def _without(self, evidence: Mapping[str, int]) -> str:
        """The faults that happened in no run, of those that are possible here."""
        wanted = [
            fault.several
            for fault in FAULTS.values()
            if not fault.of_server or self.lab.server.ours
        ]
        return " and no ".join(told for told in wanted if not evidence.get(told))

    def _explained(self, name: str) -> str:
        """The other finding that explains a breach, so that it counts once; empty for none."""
        for seen in self.probed.values():
            if seen.broken and name in seen.explains:
                return seen.explains[name]
        failure = self.failures[name]
        broken = failure.violation.guarantee
        if CATALOGUE[name].variations and broken in self.failures:
            found = "is broken" if broken in CATALOGUE else "occurs"
            return f"{broken} {found} without it too"
        if self.in_turn and failure.violation.doubtful:
            return (
                "jobs were claimed while their lease was fresh, as single-claim's breach explains"
            )
        return ""

    def _evidence(self, guarantee: Guarantee) -> dict[str, int]:
        name = guarantee.id
        evidence = {what: n for (g, what), n in sorted(self.evidence.items()) if g == name}
        drawn = self.evidence["", "random programs"]
        if drawn and not _apart(name):
            evidence["random programs"] = drawn
            evidence["operations in free runs"] = self.evidence["", "operations in free runs"]
        if guarantee.faults:
            evidence["distinct steps hit"] = len(self._hit)
        watched = self.probed.get(name, Seen({}))
        evidence |= watched.evidence
        return {what: n for what, n in evidence.items() if n or watched.lacks}

    def _stories(self, name: str) -> list[Break]:
        """How a guarantee was seen to break, the story that says most first."""
        seen = self.probed.get(name)
        if seen is not None and seen.found is not None:
            token = encode_token(self.lab.queue.digest, name, self.seed, probe=seen.data)
            story = tell_found(seen.found, name)
            place = self._place(seen.found)
            return [Break(seen.broken, to_text(story), token, story, place)]
        failure = self.failures.get(name)
        if failure is None and name in self.freed:
            free, violation = self.freed[name]
            account = tell_free(free, violation)
            because = f"{violation.because} (in a free run)"
            return [Break(because, to_text(account), None, account)]
        if failure is None or self._explained(name):
            return []
        others = sorted(self.others.get(name, {}).values(), key=lambda one: one.violation.alone)
        return [self._told(name, one) for one in (failure, *others)]

    def _told(self, name: str, failure: Failure) -> Break:
        token = encode_token(
            self.lab.queue.digest,
            name,
            self.seed,
            program=failure.program.to_data(),
            schedule=list(failure.schedule),
            under=failure.conditions.to_data(),
            broken=failure.violation.guarantee,
        )
        story = tell(failure.run, failure.violation, failure.conditions, name)
        story = replace(story, cast=self.lab.queue.cast)
        place = self._place(failure)
        return Break(failure.violation.because, to_text(story), token, story, place)

    def _place(self, found: Found) -> Place | None:
        """Where the last statement of a story's workers stands; a probe measures a whole block."""
        if isinstance(found, Failure):
            told = [b for b in found.run.trace if 0 <= b.call <= found.violation.call]
            sent = [b.step for b in told if b.step is not None and b.actor != DRAINER]
            source = next((step.source for step in reversed(sent) if step.source), None)
        else:
            operation = "fail" if isinstance(found, Waits) else "claim"
            source = self.lab.queue.source_of(operation)
        return Place(str(source.path), source.line) if source else None


def _clock_moved(failure: Failure) -> bool:
    """Whether the clock had been moved before the breach."""
    calls = failure.run.history.calls
    return any(call.kind == "advance" for call in calls[: failure.violation.call])


def _apart(name: str) -> bool:
    """Whether a guarantee is asked in runs of its own, so that others say nothing about it."""
    return name in CATALOGUE and CATALOGUE[name].programs is None


def _unkilled(lab: Lab) -> Seen:
    """What is left to say of kills where the server is somebody's."""
    if emptied := lab.unlogged():
        return Seen(
            {},
            unable=f"a crash of the server empties what is UNLOGGED ({', '.join(emptied)}), and "
            f"this one is not ours to kill: use --postgres {OWN_SERVERS}",
        )
    return Seen({}, remark="the server was not killed, because it is not ours")


@contextmanager
def _without_a_directory() -> Iterator[None]:
    """Keep Hypothesis from writing a cache into the user's working directory."""
    set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


class _Part(NamedTuple):
    """Something to do, and the units that it will probably ask for."""

    what: str
    act: Callable[[], None]
    units: Sequence[Unit] = ()


AT_ONCE = 10  # random programs
_GATES: tuple[Gate | None, ...] = (None, "statement", "query")
DOUBTS = 3  # breaches of one guarantee that do not happen again, after which none is tried again
_ONCE = (
    "not again with programs started anew: the program keeps something from one run to the next,"
    " or acts on its own account"
)
WAITS = (0.0, 61.3, HOUR, DAY)  # seconds; what a job may wait that was taken back
TINY = 4  # jobs and operations; the schedules of so short a program are worth more than others
STORIES = 3  # of one guarantee, each of another operation that breaks it
FURTHER = 2  # schedules of each program, once a guarantee is known to be broken
OVERTAKEN: Schedule = (0, 1)  # the late batch begins, and the other one is let past
ENOUGH = 100  # schedules that show whether a program breaks a guarantee under any conditions
AGAIN = 24  # schedules of a breach's program with workers started anew; each takes a second
REPLAYS = 10  # of a run in which the server chose who of several waiting sessions went on
_EFFORT = frozenset({"schedules", "random programs", "operations in free runs"})
FREE_JOBS, FREE_WORKERS = 2_000, 4
FREE_FAULTS: Mapping[FreeFault, int] = {"kill": 24, "pause": 12, "terminate": 24, "restart": 3}


def check_queue(
    lab: Lab,
    wanted: Sequence[Guarantee],
    *,
    seed: int = 0,
    profile: str = "default",
    named: Iterable[str] = (),
    required: Iterable[str] = (),
    jobs: int = 1,
    progress: Progress = lambda _what, _fraction: None,
) -> Card:
    """Judge an installed queue.

    Args:
        lab: Where it is installed.
        wanted: The guarantees to judge.
        seed: Of the random programs and schedules: the same seed gives the same card.
        profile: A key of `PROFILES`; `glance` is for tests, `mutants` for mutants.
        named: Ids of guarantees that were asked for by name: where a tool that they need is not
            there, they are inconclusive.
        required: Ids of those that must be judged: inconclusive too where the queue itself does
            not offer what they need.
        jobs: Processes that do the work, each with the queue installed in a database of its own.
            They change the time that it takes, and nothing else.
        progress: Called as it goes on.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    began = time.monotonic()
    with beside(lab, jobs) as pool:
        offer = calibrate(lab)
        budget = {**_PROFILES, **(_PROGRAMS if lab.by_clients else {})}[profile]
        examination = Examination(
            lab,
            offer,
            declare(offer),
            seed,
            budget,
            Crew(lab, offer, seed, pool),
            named=frozenset(named),
            required=frozenset(required),
            causes=profile in PROFILES,
        )
        examination.examine(wanted, progress)
        progress("stories", 1.0)
        examination.shorten(wanted)
    judgements = [examination.judgement(guarantee) for guarantee in wanted]
    return Card(lab.queue.name, lab.server.label, seed, time.monotonic() - began, judgements)


def judge(
    queue: Queue,
    guarantees: Iterable[str] | None,
    *,
    server: Server | None = None,
    seed: int,
    profile: str,
    required: Iterable[str] = (),
    jobs: int = 1,
) -> Card:
    """The card of a queue; to be called in one of the processes.

    Args:
        queue: Which.
        guarantees: Ids of those to judge it by; None for all.
        server: Where; None for the one that this process was lent.
        seed: As for `check_queue`.
        profile: The same.
        required: The same.
        jobs: The same.
    """
    with open_lab(queue, server or lent_server()) as lab:
        wanted = select(guarantees)
        return check_queue(lab, wanted, seed=seed, profile=profile, required=required, jobs=jobs)


def first_flaw(
    lab: Lab,
    wanted: Sequence[Guarantee],
    *,
    seed: int = 0,
    profile: str = "default",
    through: DoKind | None = None,
) -> Judgement | None:
    """The first break that an examination meets; else what it could not put to the test.

    Args:
        lab: Where the queue is installed.
        wanted: The guarantees in question.
        seed: As for `check_queue`.
        profile: As for `check_queue`.
        through: An operation of which a flaw is suspected, that no run does on its own account:
            programs without it are left out.

    Returns:
        A judgement that is broken or inconclusive; None where all hold.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    offer = calibrate(lab)
    examination = Examination(
        lab, offer, declare(offer), seed, _PROFILES[profile], Crew(lab, offer, seed), through
    )
    found: list[Judgement] = []

    def enough() -> bool:
        suspects = (guarantee for guarantee in wanted if examination.suspects(guarantee.id))
        judgements = map(examination.judgement, suspects)
        found.extend(itertools.islice((j for j in judgements if j.verdict == "broken"), 1))
        return bool(found)

    examination.examine(wanted, lambda _what, _fraction: None, enough)
    if found:
        return found[0]
    # Programs that were left out are no lack of evidence.
    lacking = [g for g in wanted if through is None or (g.id in PROBES and not g.variations)]
    judgements = map(examination.judgement, lacking)
    return next((one for one in judgements if one.verdict == "inconclusive"), None)


# --- does it work at all ------------------------------------------------------------------------


def calibrate(lab: Lab) -> Offer:
    """Use every operation once, undisturbed, and see how the queue claims.

    Raises:
        QueueError: An operation does not work although nobody disturbs it.
    """
    runner = Runner(lab, split=False, held=True)
    offers = lab.queue.offers
    run = runner.run(Program(TWO, in_turn(SETTLE, script("w1", claim()))))
    first = next(iter(run.history.of_kind("claim")))
    enqueues = run.history.of_kind("enqueue")
    for call in enqueues:
        _must_work(lab, run, call, answered=True)
        if len(call.ids) != 1:
            many = "no id" if not call.ids else f"{len(call.ids)} ids"
            message = f"enqueue answered {many} for one job; it must answer one row with its id"
            raise QueueError(message, lab.queue.source_of("enqueue"))
    _must_work(lab, run, first, answered=bool(first.ids))
    known = {job for call in enqueues for job in call.ids}
    for job in first.ids:
        if job not in known:
            message = f"claim answered the id {job}, which no enqueue had answered"
            raise QueueError(message, lab.queue.source_of("claim"))
    offer = Offer(lab.queue, first.held)
    offer = replace(offer, tied=_is_tied(runner, offer), retries=_retries(runner, offer))
    offer = replace(
        offer,
        waits=(waits := _waits(runner, offer)),
        beats=waits is None and _beats(runner, offer),
        due_by_recover=_due_by_recover(runner, offer),
    )
    pair = 1 if first.held or "limit" not in lab.queue.takes("claim") else 2
    trials: Mapping[
        OperationKind | Literal["complete_and_claim"], tuple[tuple[JobSpec, ...], tuple[Do, ...]]
    ] = {
        "complete": (ONE, (claim(), complete())),
        "fail": (ONE, (claim(), fail())),
        "heartbeat": (ONE, (claim(), heartbeat())),
        "recover": (ONE, (claim(), RECOVER)),
        "jobs": (_various(lab), (OBSERVE, claim(), OBSERVE, fail(), OBSERVE)),
        "cleanup": (ONE, (Do("cleanup", seconds=0.0),)),
        "promote": (ONE, (PROMOTE,)),
        "complete_many": (TWO, (claim(pair), COMPLETE_ALL)),
        "complete_and_claim": (TWO, (claim(), Do("complete_and_claim"))),
    }
    for kind, (jobs, dos) in trials.items():
        if kind not in offers:
            continue
        scripts = (script("observer" if do == OBSERVE else "w1", do) for do in dos)
        run = runner.run(Program(jobs, in_turn(SETTLE, *scripts)))
        if kind == "heartbeat":
            later = run.history.of_kind("complete", "complete_many", "fail")
            offer = replace(offer, renews=any(call.token for call in later))
        # What completes and claims is a completion of which the claim is a part.
        done: OperationKind = "complete_many" if kind == "complete_and_claim" else kind
        for call in (c for c in run.history.of_kind(done) if c.actor != DRAINER):
            _must_work(lab, run, call, answered=call.answer != "rejected")
    return offer


def _various(lab: Lab) -> tuple[JobSpec, ...]:
    """Jobs that differ in everything by which a list of jobs may leave some out."""
    routes = "queue" in lab.queue.takes("enqueue") & lab.queue.takes("claim")
    queue = "other" if routes else "default"
    return (JobSpec(), JobSpec(priority=1), JobSpec(delay=DELAY), JobSpec(queue=queue))


def _is_tied(runner: Runner, offer: Offer) -> bool:
    """Whether a claim ends with its connection, as the queue does it when nothing else happens.

    A session's advisory lock or a backend's process id may be what a claim rests on. The worker is
    told that its connection broke, and knows what that means.
    """
    if offer.held or offer.queue.lease_seconds is None:
        return True
    reaper = (script("reaper", RECOVER),) if "recover" in offer.queue.offers else ()
    breaks = script("nemesis", terminate(1))
    stages = in_turn(SETTLE, script("w1", claim()), breaks, *reaper, script("w2", claim()))
    _, *later = runner.run(Program(ONE, stages)).history.of_kind("claim")
    return bool(later and later[0].ids)


def _reaper(offer: Offer) -> tuple[Script, ...]:
    return (script("reaper", RECOVER),) if "recover" in offer.queue.offers else ()


def _beats(runner: Runner, offer: Offer) -> bool:
    """Whether a claim extends the lease of what its worker has already."""
    lease = offer.queue.lease_seconds
    if offer.held or lease is None or offer.queue.jobs_per_worker is not None:
        return False
    over = script("clock", advance(past(lease)))
    mine = script("w1", claim())
    stages = in_turn(SETTLE, mine, over, mine, *_reaper(offer), script("w2", claim()))
    _, *later = runner.run(Program(ONE, stages)).history.of_kind("claim")
    return len(later) > 1 and not (later[0].ids or later[1].ids)


def _waits(runner: Runner, offer: Offer) -> float | None:
    """How long a crashed worker's job waits after a claim that takes it back and answers nothing.

    None where the first claim gets it, or none does.
    """
    lease = offer.queue.lease_seconds
    if offer.held or lease is None or offer.queue.stale is not None:
        return None
    gone = in_turn(SETTLE, script("w1", claim(), crash()))
    over = script("clock", advance(past(lease)))
    stages = (*gone, *in_turn(over, *_reaper(offer), script("w2", claim())))
    for wait in WAITS:
        stages += in_turn(script("clock", advance(wait)), *_reaper(offer), script("w2", claim()))
    _, *later = runner.run(Program(ONE, stages)).history.of_kind("claim")
    tries = zip((None, *WAITS), later, strict=False)
    return next((wait for wait, call in tries if call.ids), None)


def _due_by_recover(runner: Runner, offer: Offer) -> bool:
    """Whether a failed job comes back when it is due only after a recovery."""
    bound = offer.queue.max_attempts
    if not _reaper(offer) or "fail" not in offer.queue.offers or bound == 1:
        return False
    mine = script("w2", claim())
    failed = in_turn(SETTLE, script("w1", claim(), fail()), script("clock", advance(DAY)))
    stages = (*failed, *in_turn(mine, *_reaper(offer), mine))
    _, *later = runner.run(Program(ONE, stages)).history.of_kind("claim")
    return len(later) > 1 and not later[0].ids and bool(later[1].ids)


def _retries(runner: Runner, offer: Offer) -> bool:
    """Whether a job that failed comes back, as the queue does it when nothing else happens."""
    bound = offer.queue.max_attempts
    if "fail" not in offer.queue.offers or bound == 1:
        return False
    run = runner.run(Program(ONE, in_turn(SETTLE, script("w1", claim(), fail()))))
    return sum(bool(call.ids) for call in run.history.of_kind("claim")) > 1


def _must_work(lab: Lab, run: Run, call: Call, *, answered: bool) -> None:
    for index, (error, step) in run.errors.items():
        if index <= call.index:
            raise lab.refused(run.history.calls[index].kind, step, error)
    if answered:
        return
    if call.kind == "claim":
        message = "claim returned nothing, although a job was enqueued and nobody acted"
    else:
        message = f"{call.kind} was refused to the job's only holder, just after its claim"
    raise QueueError(message, lab.queue.source_of(call.kind))


# --- replay -------------------------------------------------------------------------------------


def encode_token(digest: str, guarantee: str, seed: int, **data: object) -> str:
    """A story as one word: queue, guarantee, seed, and program with schedule, or plan cell.

    Args:
        digest: Of the queue.
        guarantee: The id of the one that is broken.
        seed: Of the check.
        **data: What `replay` needs to see it again, as JSON has it.
    """
    packed = json.dumps([digest, guarantee, seed, data], separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(packed.encode(), 9)).decode().rstrip("=")


def decode_token(token: str) -> tuple[str, str, int, dict[str, Any]]:
    """What `encode_token` packed.

    Raises:
        QueueproofError: It is not a token.
    """
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        digest, guarantee, seed, data = json.loads(zlib.decompress(packed))
    except (ValueError, TypeError, binascii.Error, zlib.error) as error:
        raise QueueproofError("this is not a replay token: copy it whole from a story") from error
    if not isinstance(data, dict) or not data.keys() & {"program", "probe"}:
        raise QueueproofError("this is not a replay token: copy it whole from a story")
    if "program" in data and not data.keys() >= {"schedule", "under", "broken"}:
        raise QueueproofError("this token is of an older queueproof: check the queue anew")
    return digest, guarantee, seed, data


@dataclass(frozen=True, slots=True)
class Replayed:
    """A story that happened again.

    Attributes:
        guarantee: What it breaks.
        told: The story.
        data: What its token holds: program with schedule, or what a probe needs.
        failure: What happened; None for a probe's story.
    """

    guarantee: str
    told: Told
    data: Mapping[str, Any]
    failure: Failure | None = None

    @property
    def story(self) -> str:
        """The story as text."""
        return to_text(self.told)


def replay(lab: Lab, token: str) -> Replayed | None:
    """The story again, or None where it does not happen any more.

    Where the queue has been edited since, its program is run under every order, up to
    `EXHAUSTIVE` of them: the schedule of the token counts statements that may have gone.

    Args:
        lab: Where the queue is installed.
        token: What `encode_token` made.

    Raises:
        QueueproofError: It is no token, or its program does not fit the queue any more.
    """
    digest, guarantee, seed, data = decode_token(token)
    offer = calibrate(lab)
    if "probe" in data:
        found = PROBES[guarantee].replay(lab, offer, data["probe"])
        return Replayed(guarantee, tell_found(found, guarantee), data) if found else None
    program = Program.from_data(data["program"])
    conditions = Conditions(**data["under"])
    runner = runner_under(lab, offer, conditions, anew=True)
    if digest != lab.queue.digest:
        _refuse_unfit(lab.queue, program)
        found_anew = find(
            runner, declare(offer), program, data["broken"], budget=EXHAUSTIVE, seed=seed
        )
        if found_anew is None:
            return None
        data = {**data, "schedule": list(found_anew.schedule)}
        story = tell(found_anew.run, found_anew.violation, conditions, guarantee)
        return Replayed(guarantee, story, data, found_anew)
    for _ in range(REPLAYS):
        run = runner.run(program, data["schedule"])
        for violation in breaches(run, declare(offer)):
            if violation.guarantee == data["broken"]:
                story = tell(run, violation, conditions, guarantee)
                story = replace(story, cast=lab.queue.cast)
                failure = Failure(program, tuple(data["schedule"]), run, violation, conditions)
                return Replayed(guarantee, story, data, failure)
        if not run.ambiguous:
            break
    return None


def _refuse_unfit(queue: Queue, program: Program) -> None:
    """See that an edited queue still has what a story's program does.

    Raises:
        QueueproofError: It has not; then nothing that the program does could break it.
    """
    kinds = {do.kind for stage in program.stages for _, dos in stage for do in dos}
    lacking = sorted((kinds & OPERATIONS.keys()) - queue.offers)
    if lacking:
        raise QueueproofError(
            f"{queue.name} has changed, and the story's program needs {' and '.join(lacking)},"
            " which it no longer offers: check it anew"
        )
