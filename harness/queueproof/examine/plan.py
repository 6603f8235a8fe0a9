"""The work of a check in its order, and when it is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from queueproof.errors import OWN_SERVERS
from queueproof.examine.findings import Findings
from queueproof.examine.profiles import Profile
from queueproof.examine.work import Draws, Exploration, Probing, Unit, runs_of
from queueproof.guarantees.catalogue import CATALOGUE, own_programs
from queueproof.guarantees.guarantee import Guarantee, Variation
from queueproof.probes.probes import PROBES, Seen
from queueproof.run import wallclock
from queueproof.run.lab import Lab
from queueproof.run.runner import SURE
from queueproof.schedule.actors import NEMESIS
from queueproof.schedule.conditions import PLAIN, PLANNED, Conditions, Gate
from queueproof.schedule.programs import DoKind, Program
from queueproof.search.explore import explore
from queueproof.search.shrink import Failure, breaches, find
from queueproof.space.suites import ALONE, MEETINGS, Suite

AT_ONCE = 5  # crowds
CLOCKED = 4  # of so many crowds one is run again by workers with other zones and wrong clocks
FAR = 3  # of so many units of them one with ids beyond an int4
TOGETHER = 20  # meetings
_INSIDE: Gate = "every"
_NO_INDEX = Conditions(planner="no index")  # rows come as they lie
_GATES: tuple[Gate | None, ...] = (None, "statement", "query")
ENOUGH = 100  # schedules that show whether a program breaks a guarantee under any conditions
MANY = 20  # schedules: most programs have no more, whatever the budget
DEARER = 20  # times as long does a probe take at the next level

_Searched: TypeAlias = tuple[str, Sequence[Exploration | Draws]]
"""Units that all guarantees judge, by the name of their part."""
Progress = Callable[[str, float | None], None]
"""Called with what is being done and which fraction of all is; None where nobody knows the end."""


class _Part(NamedTuple):
    """Something to do.

    Attributes:
        units: That it will probably ask for.
    """

    what: str
    act: Callable[[], None]
    units: Sequence[Unit]


class Headway:
    """The progress of an examination, in about the runs that its parts take.

    Args:
        ahead: Units that others have done ahead of their turn.
    """

    def __init__(
        self,
        parts: Sequence[_Part],
        progress: Progress,
        ahead: Callable[[], Iterable[Unit]] = tuple,
    ) -> None:
        self.progress, self._ahead = progress, ahead
        self._units = {unit: _weight(unit) for part in parts for unit in part.units}
        self._total = sum(self._units.values())
        self._what, self._fraction = "", 0.0

    def begin(self, part: _Part) -> None:
        """A part begins."""
        self._what = part.what
        self._tell()

    def done(self, unit: Unit) -> None:
        """A unit is done, or nobody needs it."""
        self._units.pop(unit, None)
        self._tell()

    def within(self, unit: Unit, fraction: float) -> None:
        """A unit that takes long goes on."""
        self._units[unit] = int(_weight(unit) * (1 - fraction))
        self._tell()

    def end(self, part: _Part) -> None:
        """A part is done, whatever it has left out."""
        for unit in part.units:
            self._units.pop(unit, None)

    def _tell(self) -> None:
        left = sum(self._units.values()) - sum(map(_weight, self._ahead()))
        done = 1 - left / (self._total or 1)
        self._fraction = max(self._fraction, done)  # of what was given back to be done here
        self.progress(self._what, min(1.0, self._fraction))


class _Broken:
    """The guarantees that a program breaks, looked for no further than somebody asks.

    Args:
        runs: What each of its schedules breaks; each is run once, whoever asks.
    """

    def __init__(self, runs: Iterator[set[str]]) -> None:
        self._runs = runs
        self._known: set[str] = set()

    def has(self, asked: Callable[[str], bool]) -> bool:
        """True if one of them is among those that are asked for."""
        while not any(map(asked, self._known)):
            if (more := next(self._runs, None)) is None:
                return False
            self._known |= more
        return True


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
        through: Only programs that do this operation; None for all.
    """

    def __init__(self, findings: Findings, profile: Profile, through: DoKind | None = None) -> None:
        self._found = findings
        self.profile = profile
        self._lab, self._offer, self._crew = findings.lab, findings.offer, findings.crew
        self._suite = Suite(findings.offer, through, findings.seed)
        self._done: set[Unit] = set()  # what all guarantees have judged
        self._anyway: dict[tuple[Program, Conditions], _Broken] = {}
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
            enough: Whether what was found by now is enough; asked after each part of the work.
                None: the verdict is to be that of a check of everything.
        """
        asked = [g for g in wanted if g.needs(self._offer) is None]
        ids = [g.id for g in asked]
        parts: list[_Part] = []
        if not self._is_settled(ids):
            if enough is not None:
                # They break most that is broken, and half a second goes into making all others.
                crowds = self._searches(ids, self._crowds())
                self._go_through(crowds, lambda what, _: progress(what, None), enough)
                if enough():
                    return
            parts = self._searches(ids, self._searched)
        own = []
        for guarantee in asked:
            for variation in guarantee.variations:
                units = list(self._variations(guarantee, variation))
                vary = partial(self._vary, guarantee, variation.conditions, units)
                own.append(_Part(guarantee.id, vary, units))
        level = self.profile.level
        for guarantee in wanted:
            if guarantee.id in PROBES and (guarantee in asked or (guarantee.told_anyway and level)):
                unit = Probing(guarantee.id, level)
                own.append(_Part(guarantee.id, partial(self._probe, unit), [unit]))
        # Where one break of little is enough, what finds nothing else comes first.
        little = enough is not None and len(wanted) < len(CATALOGUE)
        self._go_through([*own, *parts] if little else [*parts, *own], progress, enough)

    def go_on(self, asked: Sequence[str], progress: Progress) -> bool:
        """Run what was left out as needless, until some guarantees break.

        Returns:
            Whether anything had been left out.
        """
        known = len(self._done)
        self._go_through(self._searches(asked, self._searched), progress)
        return len(self._done) > known

    def _go_through(
        self,
        parts: Sequence[_Part],
        progress: Progress,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        if not self._crew.is_alone:
            # What finds most goes first, and of the rest what takes longest.
            ahead: list[Unit] = [unit for part in parts for unit in part.units]
            ahead.sort(
                key=lambda unit: (not isinstance(unit, Draws), not isinstance(unit, Probing))
            )
            self._crew.go_ahead(ahead)
        self._headway = Headway(parts, progress, lambda: self._crew.ahead)
        for part in parts:
            self._do(part)
            if enough is not None and enough():
                return

    def _searches(self, asked: Sequence[str], known: Iterable[_Searched]) -> list[_Part]:
        """The parts of a search that are left, of those known."""
        return [
            _Part(what, partial(self._search, what, left, asked), left)
            for what, units in known
            if (left := [unit for unit in units if unit not in self._done])
        ]

    def _do(self, part: _Part) -> None:
        self._headway.begin(part)
        with self._found.timing(part.what):
            part.act()
        self._headway.end(part)
        self._crew.leave(part.units)

    def _is_settled(self, asked: Iterable[str]) -> bool:
        """No run that all guarantees judge would change a verdict that was asked for."""
        return all(map(self._found.is_certain, asked))

    def _probe(self, unit: Probing) -> None:
        name = unit.guarantee
        if PROBES[name].says_less and name in self._found.failures:
            return
        seen = self._crew.probe(unit, partial(self._headway.within, unit))
        breach = seen.found.violation.guarantee if isinstance(seen.found, Failure) else None
        if breach in self._found.failures:
            # What breaks anyway may do so by chance: as between two jobs of one moment.
            told = f"{seen.broken}; {breach} breaks without that as well"
            seen = Seen(seen.evidence, unable=told)
        self._found.probed[name] = seen
        doubted = name in self._found.failures or (CATALOGUE[name].timed and self._lab.unmoved)
        if seen.broken and not doubted:
            self._found.told(name)
        self._headway.done(unit)

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
        programs = variation.programs(self._suite, profile.situations)
        if conditions.isolation == "repeatable read":
            programs += [one for one in own_programs(self._suite) if one.races]
        if conditions.isolation:
            # A snapshot is as old as the statement in whose midst others commit.
            conditions = replace(conditions, gate=self._inside.gate)
        for program in programs:
            budget = profile.kills if conditions.killed else profile.schedules
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
                self._found.evidence[name, "schedules"] += 1
                self._found.evidence += Counter(tried.evidence)
                self._found.hit.update(tried.faults)
                for failure in [*tried.broken, *tried.unexpected]:
                    plain, broken = failure.program.undisturbed, failure.violation.guarantee
                    known = CATALOGUE.get(broken)
                    about_time = conditions.clocks and known is not None and known.timed
                    if known is not None and not known.acknowledged and not about_time:
                        continue  # who waits for whom, and in which order: another's business
                    if guarantee.faults and (broken not in CATALOGUE or self._loses_anyway(plain)):
                        continue
                    # In turn there is one way that it goes, and clocks change no plan: what breaks
                    # then is due to them, whatever else breaks the same.
                    in_turn = conditions.clocks and known is not None and not plain.races
                    if self._breaks_anyway(plain, broken, in_turn=in_turn):
                        continue
                    if in_turn:
                        self._found.due.add(name)
                    self._found.record(name, failure)
            self._headway.done(unit)
            if name in self._found.failures:
                return

    def _breaks_anyway(self, program: Program, broken: str, *, in_turn: bool) -> bool:
        """True if a guarantee breaks under plain conditions too."""
        found = self._found
        if in_turn:
            plain = found.runner(PLANNED)
            alone = partial(find, plain, found.declared, program, broken, budget=1)
            return any(alone() is not None for _ in range(SURE))
        if broken in found.failures or broken in found.errors:
            return True
        if self._broken(program, PLANNED).has(broken.__eq__):
            if broken not in CATALOGUE:
                found.errors.add(broken)
            return True
        # Whoever asks for a part of a check is to hear what a whole one says.
        asking = self._headway
        told = f"whether {broken} breaks without that as well"
        self.go_on([broken], lambda _what, done: asking.progress(told, done))
        self._headway = asking
        return broken in found.failures or broken in found.errors

    def _loses_anyway(self, program: Program) -> bool:
        """True if a program loses or doubles a job without any fault, whatever that breaks."""
        return self._broken(program, PLAIN).has(
            lambda broken: broken in CATALOGUE and CATALOGUE[broken].acknowledged
        )

    def _broken(self, program: Program, conditions: Conditions) -> _Broken:
        runner = self._found.runner(conditions)
        runs = (run for _, run in explore(runner, program, budget=ENOUGH))
        broken = _Broken({v.guarantee for v in breaches(run, self._found.declared)} for run in runs)
        return self._anyway.setdefault((program, conditions), broken)

    @cached_property
    def _searched(self) -> list[_Searched]:
        """The units that all guarantees judge: random programs, a job's life, and the rest."""
        suite, profile, few = self._suite, self.profile, self.profile.schedules
        inside = self._inside
        own = own_programs(suite)
        turns = [one for one in own if not one.races]
        meetings = suite.first(MEETINGS, profile.meetings)
        known: dict[str, list[Exploration]] = {
            ALONE: [Exploration(one, PLAIN, 1) for one in suite.first(ALONE, profile.situations)],
            "own programs": [
                *(Exploration(one, PLAIN, 1) for one in turns),
                *(Exploration(one, _NO_INDEX, 1) for one in turns),
                *(Exploration(one, inside, few * _pairs_at_once(one)) for one in own if one.races),
            ],
            MEETINGS: [
                Exploration(
                    one, inside if n < profile.inside and not _dies(one) else PLAIN, few, fixed=1
                )
                for n, one in enumerate(meetings)
            ],
        }
        self._found.space = {ALONE: suite.known(ALONE), MEETINGS: suite.known(MEETINGS)}
        return [
            *self._crowds(),
            *(
                (what, units[at : at + TOGETHER])
                for what, units in known.items()
                for at in range(0, len(units), TOGETHER)
            ),
        ]

    @property
    def _inside(self) -> Conditions:
        """Statements stop in their midst, where the server can be made to."""
        return Conditions(gate=_INSIDE) if _INSIDE in self._lab.gates else PLAIN

    def _crowds(self) -> Iterator[_Searched]:
        """Random programs under random schedules; the last of them stop inside statements."""
        gates = [gate for gate in _GATES if gate is None or gate in self._lab.gates]
        for n in range(-(-self.profile.crowds // AT_ONCE)):
            at = max(0, n * AT_ONCE * (len(gates) + 1) // self.profile.crowds - 1)
            inside = gates[at]
            far = inside is None and n % FAR == 1
            yield "random programs", [Draws(n * AT_ONCE, AT_ONCE, Conditions(gate=inside, far=far))]

    def _search(
        self, what: str, units: Iterable[Exploration | Draws], asked: Sequence[str]
    ) -> None:
        """Run what all guarantees judge, unless it would change no verdict."""
        for unit in units:
            if self._is_settled(asked):
                return
            if unit in self._done:
                continue
            self._done.add(unit)
            runs = "schedules" if isinstance(unit, Exploration) else what
            for tried in self._crew.tries(unit):
                self._found.evidence["", runs] += 1
                self._found.note(tried)
            self._found.evidence["", what] += isinstance(unit, Exploration)
            self._headway.done(unit)


def _pairs_at_once(program: Program) -> int:
    """Pairs of places where operations race: so many schedules more have two preemptions."""
    most = max(sum(len(dos) for _, dos in stage) for stage in program.stages)
    return most * most // 2


def _dies(program: Program) -> bool:
    """Somebody dies at any moment: inside a statement that is before it, for others."""
    return any(actor == NEMESIS for stage in program.stages for actor, _ in stage)


def _unkilled(lab: Lab) -> Seen:
    """The result where kills are left out, as the server is somebody's."""
    if emptied := lab.tables.unlogged():
        return Seen(
            {},
            unable=f"a crash of the server empties what is UNLOGGED ({', '.join(emptied)}), and "
            f"this one is not ours to kill: use --postgres {OWN_SERVERS}",
        )
    return Seen({}, remark="the server was not killed, because it is not ours")
