"""From a queue and a server to a card: calibrate, explore, check, shrink, tell."""

from __future__ import annotations

import base64
import binascii
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

from queueproof import backoff, plans
from queueproof.checker import Declared, check
from queueproof.errors import QueueError, QueueproofError
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
from queueproof.explore.shrink import Failure, shrink
from queueproof.explore.suites import ONE, TWO, Suite, drawn_programs
from queueproof.guarantees import Guarantee, Offer
from queueproof.history import Call
from queueproof.report.card import Card, Judgement
from queueproof.report.story import tell, tell_overclaim, tell_waits


@dataclass(frozen=True, slots=True)
class Profile:
    """How thorough a check is, in counts: a budget in seconds would make a seed's verdict vary.

    Attributes:
        schedules: Most schedules of each fixed program.
        inside: Most schedules of each, with sessions that stop inside their statements.
        drawn: Random programs.
        plans: The plan grid's level.
    """

    schedules: int
    inside: int
    drawn: int
    plans: int


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(schedules=16, inside=6, drawn=40, plans=0),
    "default": Profile(schedules=250, inside=50, drawn=800, plans=1),
    "deep": Profile(schedules=2500, inside=800, drawn=12_000, plans=2),
}

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
    overclaim: plans.PlanFindings | None = None
    waits: backoff.Waits | None = None
    evidence: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_turn: bool = False  # a job was claimed twice without a race and without a lease in play

    def examine(self, wanted: Sequence[Guarantee], progress: Progress) -> None:
        """Run everything that the guarantees need."""
        asked = [g.id for g in wanted if g.needs(self.offer) is None]
        suite = Suite(self.offer)
        raced = [name for name in asked if name != "backoff"]  # one job and one worker
        # The gates' triggers are made and dropped once, not for each guarantee.
        parts: list[tuple[str, Callable[[], None]]] = [
            (name, partial(self._explore_all, suite, name, gate))
            for gate in (None, "statement")
            for name in raced
        ]
        if "order" in asked:
            parts.append(("order", partial(self._explore_all, suite, "order", None, "no index")))
        if "no-deadlock" in asked:
            parts.append(("no-deadlock", partial(self._explore_all, suite, "no-deadlock", "row")))
        if "backoff" in asked:
            parts.append(("backoff", self._watch_waits))
        if "claim-limit" in asked:
            parts.append(("plans", self._walk_plans))
        parts.append(("random programs", partial(self._draw, suite, asked)))
        for n, (what, act) in enumerate(parts):
            progress(what, n / len(parts))
            act()

    def _runner(self, gate: Gate | None = None, planner: str | None = None) -> Runner:
        return Runner(self.lab, held=self.offer.held, gate=gate, planner=planner)

    def _walk_plans(self) -> None:
        self.lab.set_gate(None)
        fillings = list(plans.fillings(self.profile.plans))
        self.overclaim = plans.walk(self.lab, self.offer, fillings)

    def _watch_waits(self) -> None:
        self.lab.set_gate(None)
        self.waits = backoff.watch(self.lab, self.offer)
        self.evidence["backoff", "waits measured"] += len(self.waits.found)

    def _explore_all(
        self, suite: Suite, guarantee: str, gate: Gate | None, planner: str | None = None
    ) -> None:
        runner = self._runner(gate, planner)
        budget = self.profile.inside if gate else self.profile.schedules
        for program in suite.programs(guarantee):
            if guarantee in self.failures:
                return
            if gate and not program.races:
                continue
            for schedule, run in explore(runner, program, budget=budget, seed=self.seed):
                self.evidence[guarantee, "schedules"] += 1
                self._judge(program, schedule, run, runner)
                if guarantee in self.failures:
                    return

    def _judge(self, program: Program, schedule: Schedule, run: Run, runner: Runner) -> None:
        findings = check(run.history, self.declared)
        if not run.ambiguous:
            self.evidence += findings.evidence
        for violation in findings.violations:
            if runner.gate and violation.guarantee == "non-blocking":
                # A session that stopped in the middle of a statement works with an old snapshot;
                # following a row's later versions may wait, even with SKIP LOCKED.
                continue
            self.in_turn = self.in_turn or violation.in_turn
            failure = Failure(program, schedule, run, violation, runner.gate, runner.planner)
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
        if name == "claim-limit" and self.overclaim is not None and self.overclaim.overclaim:
            return True
        # Waits are measured, not drawn.
        return name in self.failures or name == "backoff"

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
        seen = {what: n for what, n in evidence.items() if what not in _EFFORT}
        if not seen:
            return Judgement(name, "inconclusive", _NO_EVIDENCE, evidence=evidence)
        reason = ", ".join(f"{n} {what}" for what, n in evidence.items())
        if accepted is not None:
            reason = f"declared in [breaks] but not seen to break: {reason}"
        return Judgement(name, "holds", reason, evidence=evidence)

    def _explained(self, name: str) -> str:
        """What else was found that explains a breach, so that it counts once; or nothing."""
        over = self.overclaim.overclaim if self.overclaim else None
        if over is not None and over.silent and name in {"order", "no-starvation"}:
            return "jobs were passed over, as claims that take more than they return explain"
        if self.in_turn and self.failures[name].violation.doubtful:
            return (
                "jobs were claimed while their lease was fresh, as single-claim's breach explains"
            )
        return ""

    def _evidence(self, name: str) -> dict[str, int]:
        evidence = {what: n for (g, what), n in sorted(self.evidence.items()) if g == name}
        if drawn := self.evidence["", "random programs"]:
            evidence["random programs"] = drawn
        if name == "claim-limit" and self.overclaim is not None:
            evidence["claims with more jobs free than allowed"] = self.overclaim.claims
            evidence["distinct plans"] = len(self.overclaim.plans)
        return {what: n for what, n in evidence.items() if n}

    def _broken(self, name: str) -> _Broken | None:
        if name == "claim-limit" and self.overclaim is not None and self.overclaim.overclaim:
            over = self.overclaim.overclaim
            cell = [list(over.cell.filling), over.cell.setting, over.cell.limit]
            token = encode_token(self.lab.queue.digest, name, self.seed, cell=cell)
            reason = (
                f"a claim with limit {over.cell.limit} took {over.taken} "
                f"({over.cell.filling}; {over.cell.setting})"
            )
            return _Broken(reason, tell_overclaim(over), token)
        if name == "backoff" and self.waits is not None and self.waits.broken:
            token = encode_token(self.lab.queue.digest, name, self.seed, waits=True)
            return _Broken(self.waits.broken, tell_waits(self.waits), token)
        failure = self.failures.get(name)
        if failure is None or self._explained(name):
            return None
        failure = shrink(self._runner(failure.gate, failure.planner), self.declared, failure)
        token = encode_token(
            self.lab.queue.digest,
            name,
            self.seed,
            program=failure.program.to_data(),
            schedule=list(failure.schedule),
            gate=failure.gate,
            planner=failure.planner,
        )
        return _Broken(
            failure.violation.because, tell(failure.run, failure.violation, failure.planner), token
        )


@contextmanager
def _without_a_directory() -> Iterator[None]:
    """Keep Hypothesis from writing a cache into the user's working directory."""
    set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


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
    if not isinstance(data, dict) or not data.keys() & {"program", "cell", "waits"}:
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
    if "cell" in data:
        filling, setting, limit = data["cell"]
        cell = plans.Cell(plans.Filling(*filling), setting, limit)
        over = plans.replay(lab, offer, cell)
        return tell_overclaim(over) if over else None
    if "waits" in data:
        waits = backoff.watch(lab, offer)
        return tell_waits(waits) if waits.broken else None
    program = Program.from_data(data["program"])
    runner = Runner(lab, held=offer.held, gate=data.get("gate"), planner=data.get("planner"))
    for _ in range(REPLAYS):
        run = runner.run(program, data["schedule"])
        for violation in check(run.history, declare(offer)).violations:
            if violation.guarantee == guarantee:
                return tell(run, violation, runner.planner)
        if not run.ambiguous:
            break
    return None
