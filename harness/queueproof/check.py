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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from queueproof.checker import Declared, check
from queueproof.errors import QueueError, QueueproofError
from queueproof.explore import wallclock
from queueproof.explore.conditions import PLAIN, Conditions
from queueproof.explore.draws import BACKEND
from queueproof.explore.lab import Gate, Lab, rejected
from queueproof.explore.programs import (
    COMPLETE_ALL,
    OBSERVE,
    RECOVER,
    Do,
    Program,
    claim,
    complete,
    fail,
    heartbeat,
    in_turn,
    script,
)
from queueproof.explore.runner import Run, Runner
from queueproof.explore.schedules import Schedule, explore
from queueproof.explore.shrink import TRIES, Failure, breaches, find, shrink
from queueproof.explore.suites import ONE, TWO, Suite, drawn_programs
from queueproof.guarantees import CATALOGUE, Guarantee, Offer
from queueproof.history import Call
from queueproof.probes import PROBES, Seen
from queueproof.report.card import Card, Judgement
from queueproof.report.story import tell


@dataclass(frozen=True, slots=True)
class Profile:
    """How thorough a check is, in counts: a budget in seconds would make a seed's verdict vary.

    Attributes:
        schedules: Most schedules of each fixed program.
        inside: Most schedules of each, with sessions that stop inside their statements.
        varied: Most schedules of each under conditions that should change nothing.
        drawn: Random programs.
        level: How much the probes measure.
    """

    schedules: int
    inside: int
    varied: int
    drawn: int
    level: int


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(schedules=16, inside=6, varied=3, drawn=40, level=0),
    "default": Profile(schedules=250, inside=50, varied=30, drawn=800, level=1),
    "deep": Profile(schedules=2500, inside=800, varied=500, drawn=12_000, level=2),
}

VARIATIONS: Mapping[str, Sequence[Conditions]] = {
    "server-clock": (Conditions(clocks=True),),
    "isolation": (Conditions(isolation="repeatable read"), Conditions(isolation="serializable")),
}
"""Conditions that a guarantee says change nothing."""

Progress = Callable[[str, float], None]
"""Called with what is being done and which fraction of it is."""


@dataclass(slots=True)
class _Broken:
    """How a guarantee was seen to break."""

    reason: str
    story: str
    replay: str


@dataclass(slots=True)
class Examination:
    """A queue on a server, with what has been found so far.

    Attributes:
        lab: Where it is installed.
        offer: What it brings.
        declared: What the checker must know of it.
    """

    lab: Lab
    offer: Offer
    declared: Declared
    seed: int
    profile: Profile
    failures: dict[str, Failure] = field(default_factory=dict)
    probed: dict[str, Seen] = field(default_factory=dict)
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_turn: bool = False  # a job was claimed twice without a race and without a lease in play
    _plain: set[str] = field(default_factory=set)  # guarantees whose programs have been run

    def examine(
        self,
        wanted: Sequence[Guarantee],
        progress: Progress,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run everything that the guarantees need, or as much as is enough."""
        asked = [g.id for g in wanted if g.needs(self.offer) is None]
        suite = Suite(self.offer)
        # The gates' triggers are made and dropped once, not for each guarantee.
        parts: list[tuple[str, Callable[[], None]]] = [
            (name, partial(self._explore_all, suite, name, Conditions(gate=gate)))
            for gate in _GATES
            for name in asked
            if suite.has_programs(name)
        ]
        if "order" in asked:
            no_index = Conditions(planner="no index")
            parts.append(("order", partial(self._explore_all, suite, "order", no_index)))
        if "no-deadlock" in asked:
            rows = Conditions(gate="row")
            parts.append(("no-deadlock", partial(self._explore_all, suite, "no-deadlock", rows)))
        parts += [
            (name, partial(self._vary, suite, name, conditions))
            for name in asked
            for conditions in VARIATIONS.get(name, ())
        ]
        parts += [(name, partial(self._probe, name)) for name in asked if name in PROBES]
        parts.append(("random programs", partial(self._draw, suite, asked)))
        for n, (what, act) in enumerate(parts):
            progress(what, n / len(parts))
            act()
            if enough():
                return

    def _runner(self, conditions: Conditions = PLAIN) -> Runner:
        return Runner(self.lab, held=self.offer.held, conditions=conditions)

    def _probe(self, name: str) -> None:
        self.lab.set_gate(None)
        self.lab.set_sessions(PLAIN.settings, PLAIN.skew)
        self.probed[name] = PROBES[name].watch(self.lab, self.offer, self.profile.level)

    def _explore_all(self, suite: Suite, guarantee: str, conditions: Conditions = PLAIN) -> None:
        runner = self._runner(conditions)
        inside = conditions.gate is not None
        budget = self.profile.inside if inside else self.profile.schedules
        for program in suite.programs(guarantee):
            if guarantee in self.failures:
                return
            if inside and not program.races:
                continue
            for schedule, run in explore(runner, program, budget=budget, seed=self.seed):
                self.evidence[guarantee, "schedules"] += 1
                self._judge(program, schedule, run, runner)
                if guarantee in self.failures:
                    return
        if conditions == PLAIN:
            self._plain.add(guarantee)

    def _vary(self, suite: Suite, name: str, conditions: Conditions) -> None:
        """Look for what breaks under some conditions and holds without them."""
        if conditions.clocks and self.lab.has_own_clock and not wallclock.MOVABLE:
            self.probed[name] = Seen({}, unable=wallclock.MISSING)
        runner = self._runner(conditions)
        for program in suite.varied(races=conditions.isolation is not None):
            profile = self.profile
            budget = profile.schedules if program.size <= TINY else profile.varied
            for schedule, run in explore(runner, program, budget=budget, seed=self.seed):
                self.evidence[name, "schedules"] += 1
                if not run.ambiguous:
                    self.evidence += _varied_evidence(name, run)
                for violation in breaches(run, self.declared):
                    if self._breaks_anyway(suite, program, violation.guarantee):
                        continue
                    failure = Failure(program, schedule, run, violation, conditions)
                    known = self.failures.get(name)
                    if known is None or failure.firmness > known.firmness:
                        self.failures[name] = failure
            if name in self.failures:
                return

    def _breaks_anyway(self, suite: Suite, program: Program, broken: str) -> bool:
        """Whether a guarantee breaks under plain conditions too."""
        known = broken in self._plain or not suite.has_programs(broken)
        if not known and CATALOGUE[broken].needs(self.offer) is None:
            self._explore_all(suite, broken)
            self._plain.add(broken)
        return (
            broken in self.failures
            or find(self._runner(), self.declared, program, broken, budget=ENOUGH) is not None
        )

    def _judge(self, program: Program, schedule: Schedule, run: Run, runner: Runner) -> None:
        findings = check(run.history, self.declared)
        if not run.ambiguous:
            self.evidence += findings.evidence
        for violation in findings.violations:
            if runner.conditions.gate and violation.guarantee == "non-blocking":
                # A session that stopped in the middle of a statement works with an old snapshot;
                # following a row's later versions may wait, even with SKIP LOCKED.
                continue
            self.in_turn = self.in_turn or violation.in_turn
            failure = Failure(program, schedule, run, violation, runner.conditions)
            known = self.failures.get(violation.guarantee)
            if known is None or failure.firmness > known.firmness:
                self.failures[violation.guarantee] = failure

    def _draw(self, suite: Suite, asked: Sequence[str]) -> None:
        """Run random programs under random schedules."""
        runner = self._runner()
        stopped: list[BaseException] = []

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
        def run_one(program: Program, schedule: list[int]) -> None:
            if stopped or all(map(self._found, asked)):
                return
            try:
                run = runner.run(program, schedule)
            except QueueproofError as error:
                stopped.append(error)  # not a falsifying example: Hypothesis must not report it
                return
            self.evidence["", "random programs"] += 1
            self._judge(program, tuple(schedule), run, runner)

        if not all(map(self._found, asked)):
            with _without_a_directory():
                run_one()
        if stopped:
            raise stopped[0]

    def _found(self, name: str) -> bool:
        """Whether more runs would not change the verdict on a guarantee."""
        return self.suspects(name) or _apart(name)

    def suspects(self, name: str) -> bool:
        """Whether a guarantee was seen to break, be it that something else explains it."""
        broken = name in self.probed and self.probed[name].broken
        return name in self.failures or bool(broken)

    def judgement(self, guarantee: Guarantee) -> Judgement:
        """The verdict on one guarantee."""
        name = guarantee.id
        missing = guarantee.needs(self.offer)
        if missing is not None:
            return Judgement(name, "not-offered", missing)
        evidence = self._evidence(name)
        accepted = self.offer.queue.breaks.get(name)
        broken = self._broken(name)
        if broken is not None:
            if accepted is not None:
                reason = f"{broken.reason} (declared: {accepted})"
                return Judgement(name, "accepted", reason, broken.story, broken.replay, evidence)
            return Judgement(name, "broken", broken.reason, broken.story, broken.replay, evidence)
        if name in self.failures:
            explained = self._explained(name)
            return Judgement(name, "inconclusive", explained, evidence=evidence)
        if unable := name in self.probed and self.probed[name].unable:
            return Judgement(name, "inconclusive", unable, evidence=evidence)
        seen = {what: n for what, n in evidence.items() if what not in _EFFORT}
        if not seen:
            return Judgement(name, "inconclusive", _NO_EVIDENCE, evidence=evidence)
        reason = ", ".join(f"{n:,} {what}" for what, n in evidence.items())
        if remark := name in self.probed and self.probed[name].remark:
            reason += f"; {remark}"
        if accepted is not None:
            reason = f"declared in [breaks] but not seen to break: {reason}"
        return Judgement(name, "holds", reason, evidence=evidence)

    def _explained(self, name: str) -> str:
        """What else was found that explains a breach, so that it counts once; or nothing."""
        for seen in self.probed.values():
            if seen.broken and name in seen.explains:
                return seen.explains[name]
        failure = self.failures[name]
        if name in VARIATIONS and failure.violation.guarantee in self.failures:
            return f"{failure.violation.guarantee} is broken without it too"
        if self.in_turn and failure.violation.doubtful:
            return (
                "jobs were claimed while their lease was fresh, as single-claim's breach explains"
            )
        return ""

    def _evidence(self, name: str) -> dict[str, int]:
        evidence = {what: n for (g, what), n in sorted(self.evidence.items()) if g == name}
        drawn = self.evidence["", "random programs"]
        if drawn and not _apart(name):
            evidence["random programs"] = drawn
        if name in self.probed:
            evidence |= self.probed[name].evidence
        return {what: n for what, n in evidence.items() if n}

    def _broken(self, name: str) -> _Broken | None:
        seen = self.probed.get(name)
        if seen is not None and seen.broken:
            token = encode_token(self.lab.queue.digest, name, self.seed, probe=seen.data)
            return _Broken(seen.broken, seen.story, token)
        failure = self.failures.get(name)
        if failure is None or self._explained(name):
            return None
        failure = shrink(self._runner(failure.conditions), self.declared, failure)
        broken = failure.violation.guarantee
        if broken != name and find(
            self._runner(), self.declared, failure.program, broken, budget=TRIES
        ):
            return None
        token = encode_token(
            self.lab.queue.digest,
            name,
            self.seed,
            program=failure.program.to_data(),
            schedule=list(failure.schedule),
            under=failure.conditions.to_data(),
            broken=broken,
        )
        story = tell(failure.run, failure.violation, failure.conditions, name)
        return _Broken(failure.violation.because, story, token)


def _apart(name: str) -> bool:
    """Whether a guarantee is asked in runs of its own, so that others say nothing about it."""
    return name in VARIATIONS or (name in PROBES and name != "claim-limit")


def _varied_evidence(name: str, run: Run) -> Counter[tuple[str, str]]:
    """What makes a run under other conditions worth something."""
    calls = run.history.calls
    if name == "server-clock":
        claims = sum(len(call.ids) for call in run.history.of_kind("claim"))
        return Counter({(name, "claims by sessions in other time zones"): claims})
    finished = [call for call in calls if call.returned is not None]
    pairs = itertools.combinations(finished, 2)
    return Counter(
        {
            (name, "operations in the midst of another's"): sum(
                one.actor != other.actor and one.overlaps(other) for one, other in pairs
            ),
            (name, "retryable errors"): sum(call.answer == "retry" for call in calls),
        }
    )


@contextmanager
def _without_a_directory() -> Iterator[None]:
    """Keep Hypothesis from writing a cache into the user's working directory."""
    set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


_GATES: tuple[Gate | None, ...] = (None, "statement")
TINY = 4  # jobs and operations; the schedules of so short a program are worth more than others
ENOUGH = 5  # schedules that show whether a program breaks a guarantee under any conditions
REPLAYS = 10  # of a run in which the server chose who of several waiting sessions went on
_EFFORT = frozenset({"schedules", "random programs"})
_NO_EVIDENCE = "no run put it to the test"


def check_queue(
    lab: Lab,
    wanted: Sequence[Guarantee],
    *,
    seed: int = 0,
    profile: str = "default",
    progress: Progress = lambda _what, _fraction: None,
) -> Card:
    """Judge an installed queue.

    Args:
        lab: Where it is installed.
        wanted: The guarantees to judge.
        seed: Of the random programs and schedules: the same seed gives the same card.
        profile: A key of `PROFILES`.
        progress: Called as it goes on.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    began = time.monotonic()
    offer = calibrate(lab)
    examination = Examination(lab, offer, declare(offer), seed, PROFILES[profile])
    examination.examine(wanted, progress)
    progress("stories", 1.0)
    judgements = [examination.judgement(guarantee) for guarantee in wanted]
    return Card(lab.queue.name, lab.server.label, seed, time.monotonic() - began, judgements)


def first_break(
    lab: Lab, wanted: Sequence[Guarantee], *, seed: int = 0, profile: str = "default"
) -> Judgement | None:
    """The first break that an examination meets, of those that count; None where there is none.

    Args:
        lab: Where the queue is installed.
        wanted: The guarantees in question.
        seed: As for `check_queue`.
        profile: As for `check_queue`.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    offer = calibrate(lab)
    examination = Examination(lab, offer, declare(offer), seed, PROFILES[profile])
    found: list[Judgement] = []

    def enough() -> bool:
        suspects = (guarantee for guarantee in wanted if examination.suspects(guarantee.id))
        judgements = map(examination.judgement, suspects)
        found.extend(itertools.islice((j for j in judgements if j.verdict == "broken"), 1))
        return bool(found)

    examination.examine(wanted, lambda _what, _fraction: None, enough)
    return found[0] if found else None


def declare(offer: Offer) -> Declared:
    """What the checker must know of a queue."""
    queue = offer.queue
    return Declared(
        lease=queue.lease.total_seconds() if queue.lease else None,
        held=offer.held,
        worker_heartbeat="heartbeat" in queue.offers and "job" not in queue.takes("heartbeat"),
        recovers="recover" in queue.offers,
        observable="jobs" in queue.offers,
        order=queue.order,
        cap=queue.concurrency_limit,
    )


# --- does it work at all ------------------------------------------------------------------------


def calibrate(lab: Lab) -> Offer:
    """Use every operation once, undisturbed, and see how the queue claims.

    Raises:
        QueueError: An operation does not work although nobody disturbs it.
    """
    runner = Runner(lab, split=False, held=True)
    offers = lab.queue.offers
    run = runner.run(Program(ONE, in_turn(script("w1", claim()))))
    first = next(iter(run.history.of_kind("claim")))
    _must_work(run, first, answered=bool(first.ids))
    offer = Offer(lab.queue, first.held)
    pair = 1 if first.held or "limit" not in lab.queue.takes("claim") else 2
    trials = {
        "complete": (ONE, (claim(), complete())),
        "fail": (ONE, (claim(), fail())),
        "heartbeat": (ONE, (claim(), heartbeat())),
        "recover": (ONE, (claim(), RECOVER)),
        "jobs": (ONE, (OBSERVE,)),
        "cleanup": (ONE, (Do("cleanup", seconds=0.0),)),
        "complete_many": (TWO, (claim(pair), COMPLETE_ALL)),
    }
    for kind, (jobs, dos) in trials.items():
        if kind not in offers:
            continue
        run = runner.run(Program(jobs, in_turn(script("w1", *dos))))
        for call in (c for c in run.history.of_kind(kind) if c.actor == "w1"):
            _must_work(run, call, answered=call.answer != "rejected")
    return offer


def _must_work(run: Run, call: Call, *, answered: bool) -> None:
    for index, (error, step) in run.errors.items():
        if index <= call.index:
            raise rejected(step, error)
    if answered:
        return
    if call.kind == "claim":
        raise QueueError("claim returned nothing, although a job was enqueued and nobody acted")
    raise QueueError(f"{call.kind} was refused to the job's only holder, just after its claim")


# --- replay -------------------------------------------------------------------------------------


def encode_token(digest: str, guarantee: str, seed: int, **data: object) -> str:
    """A story as one word: queue, guarantee, seed, and program with schedule, or plan cell."""
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
    return digest, guarantee, seed, data


def replay(lab: Lab, token: str) -> str | None:
    """The story again, or None where it does not happen any more.

    Raises:
        QueueproofError: The token is another queue's, or none.
    """
    digest, guarantee, _, data = decode_token(token)
    if digest != lab.queue.digest:
        raise QueueproofError(
            f"this token belongs to another queue, or to another version of {lab.queue.name}: "
            f"after a change, `queueproof check {lab.queue.name} --only {guarantee}` asks anew"
        )
    offer = calibrate(lab)
    if "probe" in data:
        return PROBES[guarantee].replay(lab, offer, data["probe"])
    program = Program.from_data(data["program"])
    conditions = Conditions(**data["under"])
    runner = Runner(lab, held=offer.held, conditions=conditions)
    for _ in range(REPLAYS):
        run = runner.run(program, data["schedule"])
        for violation in breaches(run, declare(offer)):
            if violation.guarantee == data["broken"]:
                return tell(run, violation, conditions, guarantee)
        if not run.ambiguous:
            break
    return None
