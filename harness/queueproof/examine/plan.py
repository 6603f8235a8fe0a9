"""The work of a check in its order, and when it is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from queueproof.errors import OWN_SERVERS
from queueproof.examine.findings import STORIES, Findings, is_apart
from queueproof.examine.profiles import Profile
from queueproof.examine.work import Draws, Exploration, Probing, Unit, key_of, runs_of
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.guarantees.suites import Suite
from queueproof.probes.probes import PROBES, Seen
from queueproof.run import wallclock
from queueproof.run.free import free_run
from queueproof.run.lab import Lab
from queueproof.run.places import FreeFault
from queueproof.schedule.conditions import PLAIN, Conditions, Gate
from queueproof.schedule.programs import DoKind, Program, Schedule
from queueproof.search.explore import explore
from queueproof.search.shrink import breaches, find
from queueproof.space.situations import Space, drawn

AT_ONCE = 5  # crowds
CLOCKED = 4  # of so many crowds one is run again by workers with other zones and wrong clocks
FAR = 3  # of so many units of them one with ids beyond an int4
_INSIDE: Gate = "every"
_GATES: tuple[Gate | None, ...] = (None, "statement", "query")
TINY = 4  # jobs and operations; the schedules of so short a program are worth more than others
FURTHER = 2  # schedules of each program, once a guarantee is known to be broken
OVERTAKEN: Schedule = (0, 1)  # the late batch begins, and the other one is let past
ENOUGH = 100  # schedules that show whether a program breaks a guarantee under any conditions
MANY = 20  # schedules: most programs have no more, whatever the budget
DEARER = 20  # times as long does a probe take at the next level
FREE = 1_000  # runs that take as long as a free one
FREE_JOBS, FREE_WORKERS = 2_000, 4
FREE_FAULTS: Mapping[FreeFault, int] = {"kill": 24, "pause": 12, "terminate": 24, "restart": 3}

Progress = Callable[[str, float | None], None]
"""Called with what is being done and which fraction of all is; None where nobody knows the end."""


class _Part(NamedTuple):
    """Something to do.

    Attributes:
        what: Its name.
        act: Does it.
        units: That it will probably ask for.
        runs: About how many it takes beside those of its units.
        beside: Whether it is of a guarantee that was not asked for: its runs are judged by all.
    """

    what: str
    act: Callable[[], None]
    units: Sequence[Unit] = ()
    runs: int = 0
    beside: bool = False


class Headway:
    """How far an examination is, in about the runs that its parts take.

    Args:
        parts: All of them, in their order.
        progress: Told.
        ahead: Units that others have done ahead of their turn.
    """

    def __init__(
        self,
        parts: Sequence[_Part],
        progress: Progress,
        ahead: Callable[[], Iterable[Unit]] = tuple,
    ) -> None:
        self._progress, self._ahead = progress, ahead
        self._units = {key_of(unit): _weight(unit) for part in parts for unit in part.units}
        self._later = sum(part.runs for part in parts)
        self._rest = 0  # of the part's runs beside its units
        self._total = self._left
        self._what, self._fraction = "", 0.0

    @property
    def _left(self) -> int:
        return sum(self._units.values()) + self._later + self._rest

    def begin(self, part: _Part) -> None:
        """A part begins."""
        self._what, self._rest = part.what, part.runs
        self._later -= part.runs
        self._tell()

    def done(self, unit: Unit) -> None:
        """A unit is done, or nobody needs it."""
        self._units.pop(key_of(unit), None)
        self._tell()

    def end(self, part: _Part) -> None:
        """A part is done, whatever it has left out."""
        self._rest = 0
        for unit in part.units:
            self._units.pop(key_of(unit), None)

    def _tell(self) -> None:
        left = self._left - sum(map(_weight, self._ahead()))
        done = 1 - left / (self._total or 1)
        self._fraction = max(self._fraction, done)  # of what was given back to be done here
        self._progress(self._what, min(1.0, self._fraction))


def _weight(unit: Unit) -> int:
    """About how many runs take as long as a unit."""
    match unit:
        case Exploration():
            return min(unit.budget, MANY)
        case Probing():
            return runs_of(unit) * int(DEARER**unit.level)
        case _:
            return runs_of(unit)


class Examination:
    """The work that guarantees need, in its order.

    Args:
        findings: What it is for, and where what is found goes.
        profile: How thoroughly.
        through: Only programs that do this operation; None for all.
    """

    def __init__(self, findings: Findings, profile: Profile, through: DoKind | None = None) -> None:
        self._found = findings
        self.profile = profile
        self._lab, self._offer, self._crew = findings.lab, findings.offer, findings.crew
        self._suite = Suite(findings.offer, through)
        self._plain: set[str] = set()  # guarantees whose programs have been run
        self._losing: dict[Program, bool] = {}  # without any fault
        self._explored: dict[Exploration, int] = {}  # to how many schedules
        self._headway = Headway((), lambda _what, _fraction: None)

    def examine(
        self,
        wanted: Sequence[Guarantee],
        progress: Progress,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """Run everything that the guarantees need, or as much as is enough.

        Whatever runs is judged by all guarantees. So what was asked gets the verdict that it has
        in a check of everything only where the others' programs run too, unless its own settle it.

        Args:
            wanted: The guarantees; those that the queue does not offer are left out.
            progress: Told how far it is.
            enough: Whether what was found by now is enough; asked after each part of the work.
                None: the verdict is to be that of a check of everything.
        """
        asked = [g for g in wanted if g.needs(self._offer) is None]
        ids = [g.id for g in asked]
        rest = [g for g in CATALOGUE.values() if g not in wanted and g.needs(self._offer) is None]
        parts = self._plain_parts(asked)
        if enough is None:
            parts += [part._replace(beside=True) for part in self._plain_parts(rest)]
        for guarantee in asked:
            for variation in guarantee.variations:
                units = list(self._variations(guarantee, variation))
                vary = partial(self._vary, guarantee, variation.conditions, units)
                parts.append(_Part(guarantee.id, vary, units))
        level = self.profile.level
        for guarantee in wanted:
            if guarantee.id in PROBES and (guarantee in asked or (guarantee.told_anyway and level)):
                unit = Probing(guarantee.id, level)
                parts.append(_Part(guarantee.id, partial(self._probe, unit), [unit]))
        crowds = self._crowds()
        random = [
            _Part("random programs", partial(self._draw, unit, ids), [unit]) for unit in crowds
        ]
        units = list(self._situations())
        meetings = [_Part("situations", partial(self._draw, unit, ids), [unit]) for unit in units]
        parts = [*random, *parts, *meetings]
        if not self._crew.is_alone:
            ahead: list[Unit] = [
                unit for part in parts if not self._is_spared(part, ids) for unit in part.units
            ]
            # What finds most goes first, and of the rest what takes longest.
            ahead.sort(
                key=lambda unit: (not isinstance(unit, Draws), not isinstance(unit, Probing))
            )
            self._crew.go_ahead(ahead)
        parts += [
            _Part("free runs", partial(self._run_free, ids, number), (), FREE)
            for number in range(self.profile.free)
        ]
        self._headway = Headway(parts, progress, lambda: self._crew.ahead)
        spared = []
        for part in parts:
            if self._is_spared(part, ids):
                spared.append(part)
                self._headway.end(part)
                self._crew.leave(part.units)
            else:
                self._do(part)
            if enough is not None and enough():
                return
        # What broke under some conditions counts only where it does not break without them: that is
        # asked by the programs of what broke.
        broken = {
            self._found.failures[g.id].violation.guarantee
            for g in asked
            if g.variations and g.id in self._found.failures
        }
        for part in spared:
            if part.what in broken:
                self._do(part)

    def _do(self, part: _Part) -> None:
        self._headway.begin(part)
        with self._found.timing(part.what):
            part.act()
        self._headway.end(part)
        self._crew.leave(part.units)

    def _is_spared(self, part: _Part, asked: Iterable[str]) -> bool:
        """Whether a part would change no verdict that was asked for."""
        return part.beside and all(is_apart(one) or self._found.is_certain(one) for one in asked)

    def _plain_parts(self, guarantees: Sequence[Guarantee]) -> list[_Part]:
        """The programs of some guarantees, by which others may be seen to break as well."""
        # The gates' triggers are made and dropped once, not for each guarantee.
        parts = [
            self._exploring(guarantee, Conditions(gate=gate))
            for gate in _GATES
            if gate is None or gate in self._lab.gates
            for guarantee in guarantees
            if guarantee.programs is not None
        ]
        parts += [
            self._exploring(guarantee, conditions)
            for guarantee in guarantees
            for conditions in guarantee.extra
        ]
        for guarantee in guarantees:
            if guarantee.late is not None:
                late = list(self._overtaking(guarantee))
                parts.append(_Part(guarantee.id, partial(self._overtake, late), late))
        return parts

    def _probe(self, unit: Probing) -> None:
        name = unit.guarantee
        if PROBES[name].says_less and name in self._found.failures:
            return
        self._found.probed[name] = self._crew.probe(unit)
        self._headway.done(unit)

    def _exploring(self, guarantee: Guarantee, conditions: Conditions) -> _Part:
        units = list(self._explorations(guarantee, conditions))
        return _Part(guarantee.id, partial(self._explore_all, units, guarantee, conditions), units)

    def _explorations(
        self, guarantee: Guarantee, conditions: Conditions = PLAIN
    ) -> Iterator[Exploration]:
        """The programs of a guarantee; those that stop inside a statement where they race."""
        inside = conditions.gate is not None
        budget = self.profile.inside if inside else self.profile.schedules
        for program in self._suite.programs(guarantee):
            if program.races or not inside:
                yield Exploration(program, conditions, budget, until=guarantee.id)

    def _explore_all(
        self, units: Iterable[Exploration], guarantee: Guarantee, conditions: Conditions = PLAIN
    ) -> None:
        name = guarantee.id
        for unit in units:
            if self._lab.unmoved and guarantee.timed:
                return
            if not self._found.is_firm(name):
                self._explore(unit, name)
            elif conditions != PLAIN or not self._found.causes:
                return
            else:
                self._look_further(unit.program, name)
        if conditions == PLAIN:
            self._plain.add(name)

    def _explore(self, unit: Exploration, guarantee: str) -> None:
        what = unit._replace(until="")
        if what in self._explored:  # for another guarantee: all that these runs break was noted
            self._found.evidence[guarantee, "schedules"] += self._explored[what]
            return
        count = 0
        for tried in self._crew.tries(unit):
            count += 1
            self._found.evidence[guarantee, "schedules"] += 1
            self._found.note(tried)
            if self._found.is_firm(guarantee):
                return
        self._explored[what] = count
        self._headway.done(unit)

    def _look_further(self, program: Program, guarantee: str) -> None:
        """Look a little for another operation that breaks what is broken, or hurts another."""
        known = [
            self._found.failures[guarantee],
            *self._found.others.get(guarantee, {}).values(),
        ]
        if len(known) == STORIES and not any(one.violation.alone for one in known):
            return
        for tried in self._crew.tries(Exploration(program, PLAIN, FURTHER)):
            self._found.evidence[guarantee, "schedules"] += 1
            self._found.note(tried)

    def _overtaking(self, guarantee: Guarantee) -> Iterator[Exploration]:
        """Programs in which somebody acts late, after another has overtaken it."""
        conditions, budget = Conditions(gate="every"), 4 * self.profile.inside
        for program in self._suite.late(guarantee):
            yield Exploration(program, conditions, budget, OVERTAKEN, guarantee.id)

    def _overtake(self, units: Iterable[Exploration]) -> None:
        for unit in units:
            if unit.until not in self._found.failures and not self._lab.unmoved:
                self._explore(unit, unit.until)

    def _variations(
        self, guarantee: Guarantee, variation: Variation
    ) -> Iterator[Exploration | Draws]:
        """Programs under conditions that should change nothing."""
        conditions = variation.conditions
        if conditions.pooled and not self._lab.chooses_connections:
            return  # a worker process chooses its connections; PgBouncer itself is asked
        if conditions.clocks and self._lab.by_clients:
            conditions = replace(conditions, styles=False)
        if conditions.killed and not self._lab.server.ours:
            return
        profile = self.profile
        for program in self._suite.varied(variation):
            budget = profile.schedules if program.size <= TINY else profile.varied
            budget = profile.kills if conditions.killed else budget
            yield Exploration(program, conditions, budget, counting=guarantee.id)
        if conditions.clocks:  # what waits is about time, and only many steps show all of it
            for first in range(0, profile.crowds // CLOCKED, AT_ONCE):
                yield Draws(first, AT_ONCE, conditions, guarantee.id)

    def _vary(
        self,
        guarantee: Guarantee,
        conditions: Conditions,
        units: Iterable[Exploration | Draws],
    ) -> None:
        """Look for what breaks under some conditions only."""
        name = guarantee.id
        if conditions.clocks and self._lab.has_own_clock and not wallclock.MOVABLE:
            self._found.probed[name] = Seen({}, lacks=wallclock.MISSING)
        if conditions.killed and not self._lab.server.ours:
            self._found.probed[name] = _unkilled(self._lab)
        for unit in units:
            for tried in self._crew.tries(unit):
                program = tried.program
                self._found.evidence[name, "schedules"] += 1
                self._found.evidence += Counter(tried.evidence)
                self._found.hit.update(tried.faults)
                for failure in tried.failures([*tried.violations, *tried.unexpected]):
                    broken = failure.violation.guarantee
                    known = CATALOGUE.get(broken)
                    about_time = conditions.clocks and known is not None and known.timed
                    if known is not None and not known.acknowledged and not about_time:
                        continue  # who waits for whom, and in which order: another's business
                    if guarantee.faults and (
                        broken not in CATALOGUE or self._loses_anyway(program.undisturbed)
                    ):
                        continue
                    if self._breaks_anyway(program.undisturbed, broken):
                        continue
                    self._found.record(name, failure)
            self._headway.done(unit)
            if name in self._found.failures:
                return

    def _breaks_anyway(self, program: Program, broken: str) -> bool:
        """Whether a guarantee breaks under plain conditions too."""
        known = CATALOGUE.get(broken)
        if known and known.programs and broken not in self._plain and not known.needs(self._offer):
            self._explore_all(self._explorations(known), known)
        if broken in self._found.failures or broken in self._found.errors:
            return True
        failure = find(self._found.runner(), self._found.declared, program, broken, budget=ENOUGH)
        if failure is not None and broken not in CATALOGUE:
            self._found.errors.add(broken)
        return failure is not None

    def _loses_anyway(self, program: Program) -> bool:
        """Whether a program loses or doubles a job without any fault, whatever that breaks."""
        if program not in self._losing:
            runs = explore(self._found.runner(), program, budget=ENOUGH)
            found = (
                violation for _, run in runs for violation in breaches(run, self._found.declared)
            )
            self._losing[program] = any(
                one.guarantee in CATALOGUE and CATALOGUE[one.guarantee].acknowledged
                for one in found
            )
        return self._losing[program]

    def _crowds(self) -> list[Draws]:
        """Random programs under random schedules; the last of them stop inside statements."""
        gates = [gate for gate in _GATES if gate is None or gate in self._lab.gates]
        units = []
        for n in range(-(-self.profile.crowds // AT_ONCE)):
            at = max(0, n * AT_ONCE * (len(gates) + 1) // self.profile.crowds - 1)
            inside = gates[at]
            far = inside is None and n % FAR == 1
            units.append(Draws(n * AT_ONCE, AT_ONCE, Conditions(gate=inside, far=far)))
        return units

    def _situations(self) -> Iterator[Exploration]:
        """Acts of a job's life in each of its situations: alone, and while that life goes on."""
        profile, inside = self.profile, Conditions(gate=_INSIDE)
        under = inside if _INSIDE in self._lab.gates else PLAIN
        known = partial(drawn, self._suite, self._found.declared, self._found.seed)
        if profile.situations:
            for program in islice(known(Space.alone), profile.situations):
                yield Exploration(program, PLAIN, profile.each)
            for program in islice(known(Space.meetings), profile.meetings):
                yield Exploration(program, under, profile.each)

    def _draw(self, unit: Draws | Exploration, asked: Sequence[str]) -> None:
        """Run what was drawn, unless it would change no verdict."""
        if all(map(self._found.is_settled, asked)):
            return
        what = "random programs" if isinstance(unit, Draws) else "runs of one job's situations"
        for tried in self._crew.tries(unit):
            self._found.evidence["", what] += 1
            self._found.note(tried)
        self._headway.done(unit)

    def _run_free(self, asked: Sequence[str], number: int) -> None:
        """Run processes without a scheduler, when the controlled runs have found nothing."""
        if any(map(self._found.suspects, asked)) or self._lab.unmoved or self._lab.queue.cast:
            return  # whose workers would not know which version they run
        self._lab.forget_sessions()
        self._lab.reset()
        free = free_run(
            self._lab,
            self._offer,
            self._found.declared,
            jobs=FREE_JOBS,
            workers=FREE_WORKERS,
            seed=self._found.seed + number,
            faults=FREE_FAULTS,
        )
        self._lab.reset()
        self._found.evidence["", "operations in free runs"] += free.evidence.get("operations", 0)
        for name, violation in free.broken.items():
            self._found.freed.setdefault(name, (free, violation))


def _unkilled(lab: Lab) -> Seen:
    """What is left to say of kills where the server is somebody's."""
    if emptied := lab.unlogged():
        return Seen(
            {},
            unable=f"a crash of the server empties what is UNLOGGED ({', '.join(emptied)}), and "
            f"this one is not ours to kill: use --postgres {OWN_SERVERS}",
        )
    return Seen({}, remark="the server was not killed, because it is not ours")
