"""A trial of each operation once, undisturbed: whether a queue works at all, and how it claims."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Literal

from queueproof.errors import QueueError, ServerError
from queueproof.history.calls import Call
from queueproof.queues.model import FAILURE
from queueproof.queues.offer import Offer
from queueproof.queues.sqltext import first_keyword
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.run.session import drive
from queueproof.schedule.actors import DRAINER, identity
from queueproof.schedule.moments import DAY, HOUR, past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    OBSERVE,
    PROMOTE,
    RECOVER,
    Do,
    JobSpec,
    OperationKind,
    Program,
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
from queueproof.space.pieces import DELAY, LOOKS, ONE, SAME, SETTLE, TWO

PHASES = (0.0, 20.3, 40.6)  # seconds; of a minute
CRASHED = 4  # jobs
WAITS = (0.0, 61.3, HOUR, DAY)  # seconds; what a job may wait that was taken back
SHORT = 1.0  # seconds; a delay that really passes
_WITHIN = 0.6  # of a lease
_CLAIM = script("w1", claim())
_CONTROL = frozenset({"", "BEGIN", "START", "COMMIT", "END", "SET"})  # at which nobody is late
_DATA_EXCEPTION = "22"  # the class of SQLSTATE
_TRIALS = 8  # times that an operation is tried which is refused at first
_MISSES, _LOOKS = 3, 40  # claims that may pass a job by; that are tried where more do


def calibrate(lab: Lab, *, replayed: bool = False) -> Offer:
    """Use every operation once, undisturbed, and see how the queue claims.

    Args:
        replayed: Only what judging a run needs: of a queue that is known, with its program.

    Raises:
        QueueError: An operation does not work although nobody disturbs it.
    """
    runner = Runner(lab, split=False, held=True)  # for all that is known of it yet
    offers = lab.queue.offers
    run = runner.run(Program(TWO, in_turn(SETTLE, _CLAIM)))
    claims = run.history.of_kind("claim")
    # One that comes back empty now and then is judged (no-starvation); one that always does not.
    first = next((call for call in claims if call.ids), claims[0])
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
            message = (
                f"claim answered the id {job}, which no enqueue had answered: does the schema put"
                " jobs into a table? Leave them out"
            )
            raise QueueError(message, lab.queue.source_of("claim"))
    offer = Offer(lab.queue, first.held)
    runner = _Watching(lab, split=False, held=offer.held)
    offer = replace(offer, tied=_is_tied(runner, offer), retries=_retries(runner, offer))
    offer = replace(
        offer,
        waits=(waits := _waits(runner, offer)),
        beats=waits is None and _beats(runner, offer),
        late=any(_is_late(runner, offer, phase) for phase in PHASES),
    )
    pair = lab.queue.most("claim", 2, held=offer.held)
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
        if kind not in offers or (replayed and kind != "heartbeat"):
            continue
        # What completes and claims is a completion of which the claim is a part.
        done: OperationKind = "complete_many" if kind == "complete_and_claim" else kind
        for times in (1, _TRIALS):  # what is refused now and then is judged
            scripts = (
                script("observer" if do == OBSERVE else f"w{worker}", do)
                for worker in range(1, times + 1)
                for do in dos
            )
            run = runner.run(Program(jobs * times, in_turn(SETTLE, *scripts)))
            calls = [call for call in run.history.of_kind(done) if call.actor != DRAINER]
            if works := any(call.answer != "rejected" for call in calls):
                break
        if kind == "heartbeat":
            ends = run.history.of_kind("complete", "complete_many", "fail")
            offer = replace(offer, renews=any(call.token for call in ends))
            works = works or _beats_later(runner, offer)
        for call in calls:
            idle = kind == "heartbeat" and not call.refs  # which may be refused
            _must_work(lab, run, call, answered=idle or works)
    if replayed:
        return offer
    passes = _passes(runner)
    alike = runner.run(Program((SAME, SAME), in_turn(SETTLE))).history.of_kind("enqueue")
    offer = replace(
        offer,
        keyed=len({job for call in alike for job in call.ids}) == 1,
        exclusive="complete" in offers and _is_exclusive(runner, passes),
        misses=passes > _MISSES or first is not claims[0],
        passes=passes if passes <= _MISSES else 0,
        several=frozenset(runner.several),
    )
    _must_follow_the_clock(lab, _LOOKS if offer.misses else _MISSES + offer.passes)
    return offer


class _Watching(Runner):
    """Notes which operations send several statements, in `several`."""

    several: AbstractSet[str] = frozenset()

    def run(self, program: Program, schedule: Sequence[int] = (), ahead: float = 0.0) -> Run:
        """See `Runner`."""
        run = super().run(program, schedule, ahead)
        sent = Counter(
            beat.call
            for beat in run.trace
            if beat.event == "sql" and first_keyword(beat.text) not in _CONTROL
        )
        self.several |= {run.history.calls[call].kind for call, times in sent.items() if times > 1}
        return run


def _passes(runner: Runner) -> int:
    """The most claims in a row that pass by a ready job which a later one gets."""
    added: set[str] = set()
    missed = most = 0
    for call in runner.run(LOOKS).history.calls:
        match call.kind:
            case "enqueue":
                added, missed = set(call.ids), 0
            case "claim" if call.actor != DRAINER and added and added.isdisjoint(call.ids):
                missed += 1
            case "claim":
                if added and call.actor != DRAINER:
                    most = max(most, missed)
                added.clear()
            case _:
                pass
    return most


def _is_exclusive(runner: Runner, passes: int) -> bool:
    """True if one of two jobs waits while the other runs, only if their payloads are the same."""
    looks = (claim(),) * (1 + passes)
    scripts = (script("w1", *looks), script("w2", *looks), script("w1", complete()))
    stages = in_turn(SETTLE, *scripts, script("w3", *looks))

    def first_two(*jobs: JobSpec) -> list[str]:
        claims = runner.run(Program(jobs, stages)).history.of_kind("claim")
        return [call.actor for call in claims if call.ids][:2]

    return first_two(SAME, SAME) == ["w1", "w3"] and first_two(*TWO) == ["w1", "w2"]


def _must_follow_the_clock(lab: Lab, looks: int) -> None:
    """A job with a delay comes when the clock moves, if it does when real time passes.

    Raises:
        QueueError: It comes in real time alone: the queue has a time that nobody can move.
    """
    if "delay" not in lab.queue.takes("enqueue") or lab.unmoved:
        return
    moved, waited = partial(lab.advance, DAY), partial(time.sleep, 2 * SHORT)
    if _comes(lab, moved, looks) or not _comes(lab, waited, looks):
        return
    message = (
        "claim does not see that the database's clock was moved: a job with a delay of "
        f"{SHORT:g} s comes when that has really passed, and does not when the clock is moved by a "
        "day. Read the time by now(), CURRENT_TIMESTAMP or clock_timestamp()"
    )
    raise QueueError(message, lab.queue.source_of("claim"))


def _comes(lab: Lab, pass_time: Callable[[], object], looks: int) -> bool:
    """True if one of some claims gets a job with a short delay once time has passed."""
    lab.reset()
    soon = {**lab.defaults(), "delay": timedelta(seconds=SHORT)}
    drive(lab.session("producer"), lab.start("enqueue", **soon))
    pass_time()
    arguments = {**lab.defaults(), "worker": identity("w1"), "limit": 1}
    for _ in range(looks):  # a claim may do what a promoter does elsewhere, and answer nothing
        lab.maintain()
        with suppress(ServerError):  # judged where claims are
            if drive(lab.session("w1"), lab.start("claim", **arguments)):
                return True
        if lab.session("w1").in_transaction:
            lab.session("w1").run("ROLLBACK")
    return False


def _various(lab: Lab) -> tuple[JobSpec, ...]:
    """Jobs that differ in everything by which a list of jobs may leave some out."""
    queue = "other" if lab.queue.routes else "default"
    return (JobSpec(), JobSpec(priority=1), JobSpec(delay=DELAY), JobSpec(queue=queue))


def _is_tied(runner: Runner, offer: Offer) -> bool:
    """True if a claim ends with its connection, as the queue does it when nothing else happens.

    A session's advisory lock or a backend's process id may be what a claim rests on. The worker is
    told that its connection broke, and knows what that means.
    """
    if offer.held or offer.queue.lease_seconds is None:
        return True
    breaks = script("nemesis", terminate(1))
    _, *later = _claims(runner, _CLAIM, breaks, *_reaper(offer), script("w2", claim()))
    return bool(later and later[0].ids)


def _claims(runner: Runner, *scripts: Script) -> list[Call]:
    """The claims of one job, by scripts that are run one after the other."""
    return runner.run(Program(ONE, in_turn(SETTLE, *scripts))).history.of_kind("claim")


def _reaper(offer: Offer) -> tuple[Script, ...]:
    return (script("reaper", RECOVER),) if "recover" in offer.queue.offers else ()


def _beats(runner: Runner, offer: Offer) -> bool:
    """True if a claim extends the lease of what its worker has already."""
    lease = offer.queue.lease_seconds
    if offer.held or lease is None or offer.queue.jobs_per_worker is not None:
        return False
    over = script("clock", advance(past(lease)))
    _, *later = _claims(runner, _CLAIM, over, _CLAIM, *_reaper(offer), script("w2", claim()))
    return len(later) > 1 and not (later[0].ids or later[1].ids)


def _beats_later(runner: Runner, offer: Offer) -> bool:
    """A heartbeat that is refused at first is accepted later: what comes of that is judged."""
    within = script("clock", advance(_WITHIN * (offer.queue.lease_seconds or 0.0)))
    beat = script("w1", heartbeat())
    run = runner.run(Program(ONE, in_turn(SETTLE, _CLAIM, beat, within, beat)))
    return any(call.answer == "accepted" for call in run.history.of_kind("heartbeat"))


def _waits(runner: Runner, offer: Offer) -> float | None:
    """Seconds that a crashed worker's job waits after a claim that took it back and got nothing.

    None where the first claim gets it, or none does.
    """
    lease = offer.queue.lease_seconds
    if offer.held or lease is None or offer.queue.stale is not None:
        return None
    scripts = [script("w1", claim(), crash())]
    for wait in (past(lease), *WAITS):
        scripts += [script("clock", advance(wait)), *_reaper(offer), script("w2", claim())]
    _, *later = _claims(runner, *scripts)
    tries = zip((None, *WAITS), later, strict=False)
    return next((wait for wait, call in tries if call.ids), None)


def _is_late(runner: Runner, offer: Offer, phase: float) -> bool:
    """True if one of some crashed workers' jobs still runs when its lease is over.

    Args:
        phase: Seconds that pass before their claim: a lease may end with the minute.
    """
    lease = offer.queue.lease_seconds
    if offer.held or lease is None:
        return False
    limited = "limit" in offer.queue.takes("claim")
    take = [claim(CRASHED)] if limited else [claim()] * CRASHED
    look = (script("observer", OBSERVE),) if "jobs" in offer.queue.offers else ()
    stages = in_turn(
        *(SETTLE, script("clock", advance(phase)), script("w1", *take, crash())),
        script("clock", advance(past(lease))),
        *_reaper(offer) * (CRASHED + 1),  # it may take back one at a time
        *(script("w2", *take), *look),
    )
    history = runner.run(Program(ONE * CRASHED, stages)).history
    crashed, back = (
        {job for call in history.of_kind("claim") if call.actor == name for job in call.ids}
        for name in ("w1", "w2")
    )
    states = next((call.states for call in history.of_kind("jobs")), None)
    return any(states is None or states.get(job) == "running" for job in crashed - back)


def _retries(runner: Runner, offer: Offer) -> bool:
    """True if a job that failed comes back, as the queue does it when nothing else happens."""
    bound = offer.queue.max_attempts
    if "fail" not in offer.queue.offers or bound == 1:
        return False
    claims = _claims(runner, script("w1", claim(), fail()))
    return sum(bool(call.ids) for call in claims) > 1


def _must_work(lab: Lab, run: Run, call: Call, *, answered: bool) -> None:
    for index, (error, step) in run.errors.items():
        kind = run.history.calls[index].kind
        unfit = kind == "fail" and error.sqlstate.startswith(_DATA_EXCEPTION)
        if unfit and lab.queue.backoff is not None:
            continue  # its SQL does not bear what was caught: what comes of that is judged
        if index <= call.index:
            raise lab.refused(kind, step, _with_its_text(error) if unfit else error)
    if answered:
        return
    if call.kind == "claim":
        message = "claim returned nothing, although a job was enqueued and nobody acted"
    else:
        message = f"{call.kind} was refused to the job's only holder, just after its claim"
    raise QueueError(message, lab.queue.source_of(call.kind))


def _with_its_text(error: ServerError) -> ServerError:
    """The error of a fail that does not bear what was caught, with that."""
    told = f"{error.message}; what was caught may be any text, and here was {FAILURE!r}"
    return ServerError(error.sqlstate, told, error.position)
