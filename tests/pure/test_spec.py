"""The life of one job, rule by rule: every legal answer is accepted, every other one is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from queueproof.history.calls import Answer, Call, CallKind
from queueproof.judge.spec import Act, Breach, Declared, Job, Phase, step
from queueproof.schedule.moments import grace
from tests.fix_histories import LEASE, Case, Told, cases

LEASED = Declared(lease=LEASE, held=False, worker_heartbeat=False, recovers=True)
TAKES_OVER = replace(LEASED, recovers=False)
HELD = replace(LEASED, lease=None, held=True)


def call(
    kind: CallKind,
    began: float,
    ended: float | None = None,
    actor: str = "w1",
    *,
    bound: int | None = None,
) -> Call:
    """A call between two moments; without an end it takes a millisecond."""
    ended = began + 0.001 if ended is None else ended
    invoked, returned = round(began * 10_000), round(ended * 10_000)
    return Call(0, kind, actor, invoked, began, returned, ended, bound=bound)


def act(made: Call, holder: Call | None = None, answer: Answer = "accepted") -> Act:
    """What a call meant for the job that it names."""
    return Act(made, made.kind, answer, holder)


def life(rules: Declared, *acts: Act) -> list[Job]:
    """The states that a job may be in after some acts, all of them legal."""
    jobs = [Job()]
    for one in acts:
        jobs = [job for before in jobs for job in legal(step(rules, before, one))]
        assert jobs, f"{one.kind} is not legal in any state"
    return jobs


def legal(outcome: Sequence[Job] | Breach) -> Sequence[Job]:
    """The states of an outcome; none of a breach."""
    return () if isinstance(outcome, Breach) else outcome


def steps(jobs: Sequence[Job], late: Act) -> list[Job]:
    """The states in which jobs may be after an act."""
    return [job for before in jobs for job in legal(step(LEASED, before, late))]


def phases(jobs: Sequence[Job]) -> set[Phase]:
    """The phases of some states."""
    return {job.phase for job in jobs}


def blamed(rules: Declared, jobs: Sequence[Job], late: Act) -> set[str]:
    """The guarantees that an act breaks in some states; empty if it is legal in one of them."""
    outcomes = [step(rules, job, late) for job in jobs]
    breaches = {outcome.guarantee for outcome in outcomes if isinstance(outcome, Breach)}
    return breaches if breaches and all(isinstance(o, Breach) for o in outcomes) else set()


def enqueued(*, bound: int | None = None) -> Act:
    """A job's enqueue at second 0."""
    return act(call("enqueue", 0.0, bound=bound))


CLAIM = call("claim", 1.0, 2.0)
AFTER = CLAIM.ended + LEASE  # its lease has certainly run out


def acts(story: str) -> list[Act]:
    """What the calls of a history meant for its one job, in the order of their answers."""
    calls = Told(story).history.calls
    return [
        act(made, calls[made.refs[0].call] if made.refs else None, made.answer)
        for made in sorted(calls, key=lambda made: made.ended)
    ]


@cases("""
    a claim that ended before the delay was over came too early
        enqueue 1 delay=5; w1 claims 1 => not-early
    a job that becomes due in the midst of a claim may be in its answer
        enqueue 1 delay=1; begin w1 claims; +1; end w1 1 => holds
    rule 11: the enqueue's delay binds the first attempt, a retry has none of its own
        enqueue 1; w1 claims 1; w1 fails 1; w2 claims 1 => holds
    rule 21: claims that race each other are single-claim, with a lease
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; end w2 1 => single-claim
    rule 21: claims that race each other are single-claim, where claims take over
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; end w2 1
        => single-claim where recovers=False
    rule 21: claims that race each other are single-claim, without a lease
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; end w2 1
        => single-claim where lease=None
    rule 21: claims that race each other are single-claim, in a transaction
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; end w2 1
        => single-claim where lease=None held=True
    a claim that overlaps the first one is single-claim even if the job has finished since
        enqueue 1; begin w1 claims; begin w2 claims; end w1 1; w1 completes 1; end w2 1
        => single-claim
    rule 4: a lease lasts from the claim's invocation on, and nobody may take the job over
        enqueue 1; begin w1 claims; +1; end w1 1; +28.9; w2 claims 1
        => live-lease where recovers=False
    rule 4: a lease may be over so long after the claim's invocation
        enqueue 1; begin w1 claims; +1; end w1 1; +29; w2 claims 1 => holds where recovers=False
    a recover that answers a job whose lease runs took it from its worker
        enqueue 1; w1 claims 1; +10; recover 1 => live-lease
    rule 21: a job held twice because its fresh lease was taken over is live-lease
        enqueue 1; w1 claims 1; +20; w2 claims 1 => live-lease where recovers=False
    a worker whose lease runs is not refused its complete
        enqueue 1; w1 claims 1; +10; w1 completes 1 -> rejected => live-lease
    a worker whose lease runs is not refused its fail
        enqueue 1; w1 claims 1; +10; w1 fails 1 -> rejected => live-lease
    a worker whose lease runs is not refused its heartbeat
        enqueue 1; w1 claims 1; +10; w1 beats 1 -> rejected => live-lease
    where no lease is declared a refused holder is judged by what becomes of its job
        enqueue 1; w1 claims 1; +10; w1 completes 1 -> rejected => holds where lease=None
    rule 5: after a late complete was accepted the job never runs again
        enqueue 1; w1 claims 1; +31; w1 completes 1; w2 claims 1 => final-state
    rule 5: after a late heartbeat was accepted nobody gets the job while that lease is fresh
        enqueue 1; w1 claims 1; +31; w1 beats 1; +19; w2 claims 1 => live-lease where recovers=False
    rule 5: nor where the job was recovered before that heartbeat
        enqueue 1; w1 claims 1; +31; recover 1; w1 beats 1; +19; w2 claims 1
        => live-lease where recovers=False
    a lease runs anew from an accepted heartbeat
        enqueue 1; w1 claims 1; +20; w1 beats 1; +29; w2 claims 1 => live-lease where recovers=False
    a lease runs out after a heartbeat too
        enqueue 1; w1 claims 1; +20; w1 beats 1; +31; w2 claims 1 => holds where recovers=False
    rule 21: who claims a completed job breaks final-state
        enqueue 1 bound=2; w1 claims 1; w1 completes 1; w2 claims 1 => final-state
    rule 21: a finished job that a late fail revived is final-state once it is claimed
        enqueue 1; w1 claims 1; w1 completes 1; w1 fails 1; w2 claims 1 => final-state
    rule 3: a worker's heartbeat is accepted whatever became of the job that it names
        enqueue 1; w1 claims 1; +31; w2 claims 1; w1 beats 1 => holds where worker_heartbeat=True
    rule 12: a crash counts as an attempt, and after the only one no other begins
        enqueue 1 bound=1; w1 claims 1; w1 crashes; +99; w9 claims 1
        => retry-bound where recovers=False
    rule 12: after the last of two attempts no other begins
        enqueue 1 bound=2; w1 claims 1; w1 crashes; +99; w2 claims 1; w2 crashes; +99; w9 claims 1
        => retry-bound where recovers=False
    rule 12: after the last of three attempts no other begins
        enqueue 1 bound=3; w1 claims 1; w1 crashes; +99; w2 claims 1; w2 crashes; +99; w3 claims 1;
        w3 crashes; +99; w9 claims 1 => retry-bound where recovers=False

    who is gone holds nothing: a takeover may come early
        enqueue 1; w1 claims 1; w1 crashes; w2 claims 1 => holds where recovers=False
    who is gone holds nothing: a recovery may come early
        enqueue 1; w1 claims 1; w1 crashes; recover 1 => holds
    where nothing says how long a claim holds, a crashed worker's job is free to be taken
        enqueue 1; w1 claims 1; w1 crashes; w1 claims 1 => holds where lease=None
    whoever holds the job is refused because a lost claim's operation may have ended it
        enqueue 1; w1 claims 1; +31; w2 claims 1; w1 completes 1 -> unknown;
        w2 completes 1 -> rejected => fencing
    a session's claim ends with its connection alone, however late a recovery comes
        enqueue 1; w1 claims 1; +1000000; recover 1 => live-lease where lease=None session=True
    a session's claim ends with its connection
        enqueue 1; w1 claims 1; w1 crashes; recover 1 => holds where lease=None session=True
    an operation with the token before the last heartbeat may be refused: its worker cannot know
        enqueue 1; w1 claims 1; w1 beats 1; w1 completes 1 -> rejected => holds where renews=True
    an operation with the new token may not be refused
        enqueue 1; w1 claims 1; w1 beats 1; w1 completes 1 token=1 -> rejected
        => live-lease where renews=True
    at least once a late completion counts, and the next holder's own may be refused
        enqueue 1; w1 claims 1; +39; w2 claims 1; w1 completes 1; w2 completes 1 -> rejected
        => holds where at_least_once=True
    at least once a late failure does nothing from which nobody suffers
        enqueue 1; w1 claims 1; +39; w2 claims 1; w1 fails 1; w2 completes 1
        => holds where at_least_once=True
    at least once a late failure is blamed when the next holder is refused
        enqueue 1; w1 claims 1; +39; w2 claims 1; w1 fails 1; w2 completes 1 -> rejected
        => fencing where at_least_once=True
    at least once a late failure is blamed when the job is claimed once more
        enqueue 1; w1 claims 1; +39; w2 claims 1; w1 fails 1; w3 claims 1
        => fencing where at_least_once=True
    a stale job that should fail does not run again by a claim that takes it over
        enqueue 1; w1 claims 1; w1 crashes; +58; w2 claims 1
        => stale-recovery where stale_fails=True
    a stale job that should fail does not run again after a recovery
        enqueue 1; w1 claims 1; w1 crashes; +48; recover 1; +10; w2 claims 1
        => stale-recovery where stale_fails=True
    rule 4: a claim that reads what its worker holds after the lease begins an attempt
        enqueue 1 bound=1; w1 claims 1; +39; begin w1 claims; +20; end w1 1 => retry-bound
    rule 4: another worker's claim begins an attempt, whenever it read the job
        enqueue 1 bound=1; w1 claims 1; +19; begin w2 claims; +40; end w2 1 => retry-bound
    a worker of one job may be handed it again, and another worker may not
        enqueue 1; w1 claims 1; w2 claims 1 => single-claim where one_each=True
""")
def test_the_last_act_of_a_life_is_blamed_by_the_rules(case: Case) -> None:
    """All before it is legal; it breaks the guarantee, or is legal in one of the job's states."""
    rules = replace(LEASED, **case.facts)
    *before, last = acts(case.story)
    assert blamed(rules, life(rules, *before), last) == set(case.breaks)


@cases("""
    a queued job that is due runs after a claim
        enqueue 1; w1 claims 1 => running
    a recovered job with attempts left is queued again
        enqueue 1 bound=2; w1 claims 1; +31; recover 1 => queued
    rule 14: recover names what it acted on, and no other job is the worse for it
        enqueue 1; recover 1 => queued
    a claim whose answer was lost may have taken the job
        enqueue 1; w1 claims -> unknown => queued or running
    an enqueue whose answer was lost never brings a finished job back
        enqueue 1; w1 claims 1; w1 completes 1; begin enqueue; end producer -> unknown => completed
    rule 19: where the transaction is the claim, a crash frees the job at once
        enqueue 1; w1 claims 1; w1 crashes; w2 claims 1 => running where lease=None held=True
    a completed job stays completed, whatever became of a complete
        enqueue 1; w1 claims 1; w1 completes 1; w1 completes 1 -> unknown => completed
    a completed job stays completed, whatever became of a fail
        enqueue 1; w1 claims 1; w1 completes 1; w1 fails 1 -> unknown => completed
    a completed job stays completed, whatever became of a heartbeat
        enqueue 1; w1 claims 1; w1 completes 1; w1 beats 1 -> unknown => completed
    a stale job that should fail has failed after a recovery
        enqueue 1; w1 claims 1; w1 crashes; +48; recover 1 => failed where stale_fails=True
""")
def test_a_life_leads_to_these_phases(case: Case) -> None:
    """All of it is legal, and where several are possible each is kept in mind."""
    states = life(replace(LEASED, **case.facts), *acts(case.story))
    assert phases(states) == {Phase(one) for one in case.breaks[0].split(" or ")}


def test_a_claim_whose_answer_was_lost_has_no_worker() -> None:
    """Whoever it was is gone."""
    states = life(LEASED, *acts("enqueue 1; w1 claims -> unknown"))
    assert all(job.crashed for job in states if job.phase == Phase.RUNNING)


def test_a_held_job_is_nobody_elses() -> None:
    """As long as the transaction of its claim is open nobody gets the job."""
    *before, last = acts("enqueue 1; w1 claims 1; w2 claims 1")
    breach = blamed(HELD, life(HELD, *before), last)
    assert breach <= {"single-claim", "live-lease"}
    assert breach


def test_without_a_bound_a_job_may_be_attempted_for_ever() -> None:
    """Where the queue declares no max_attempts no number of attempts is too many."""
    assert life(TAKES_OVER, *acts("enqueue 1" + "; w1 claims 1; w1 crashes; +99" * 50))


def test_at_exactly_its_end_a_lease_counts_either_way() -> None:
    """Rule 4: a claim that ends at the very end of the lease may have taken the job over."""
    edge = act(call("claim", 30.5, CLAIM.began + LEASE, "w2"))
    assert life(TAKES_OVER, enqueued(), act(CLAIM), edge)


@pytest.mark.parametrize("kind", ["complete", "fail", "heartbeat"])
@pytest.mark.parametrize("answer", ["accepted", "rejected"])
def test_after_the_lease_the_old_holder_may_be_told_either(kind: CallKind, answer: Answer) -> None:
    """Rule 5: between the lease's end and the next claim both answers are legal."""
    late = act(call(kind, AFTER + 1), CLAIM, answer)
    recovered = act(call("recover", AFTER + 0.5, actor="reaper"))
    assert life(LEASED, enqueued(), act(CLAIM), late)
    assert life(LEASED, enqueued(), act(CLAIM), recovered, late)


def test_a_heartbeat_may_add_to_what_is_left_of_the_lease() -> None:
    """Rule 4: a lease lasts at least the declared time, from the heartbeat or from its end on."""
    (beaten,) = life(LEASED, enqueued(), act(CLAIM), act(call("heartbeat", 20.0), CLAIM))
    assert beaten.fresh_until < 20.0 + LEASE + 1
    assert beaten.stale_after >= CLAIM.ended + 2 * LEASE


def test_heartbeats_do_not_add_up() -> None:
    """Rule 32: the lease is over a lease after the last one, and what late leases take longer."""
    beats = [act(call("heartbeat", 2.0 + n), CLAIM) for n in range(20)]
    (beaten,) = life(LEASED, enqueued(), act(CLAIM), *beats)
    last = beats[-1].call.ended
    assert last + LEASE <= beaten.stale_after <= last + LEASE + grace(LEASE)


def test_a_heartbeat_of_another_job_may_or_may_not_extend_this_one() -> None:
    """Rule 3: a heartbeat may extend all jobs of its worker; neither reading is accused."""
    other = Act(call("heartbeat", 20.0), "heartbeat", named=False)
    (job,) = life(LEASED, enqueued(), act(CLAIM), other)
    assert job.fresh_until == CLAIM.began + LEASE
    assert job.stale_after >= 20.0 + LEASE


def test_a_job_that_recover_ended_refuses_its_old_holder() -> None:
    """Rule 5: a job that recover ended as failed rejects its old holder's operations."""
    recovered = act(call("recover", AFTER + 0.5, actor="reaper"))
    states = life(LEASED, enqueued(bound=1), act(CLAIM), recovered)
    assert phases(states) == {Phase.QUEUED, Phase.FAILED}
    ended = [job for job in states if job.phase == Phase.FAILED]
    assert blamed(LEASED, ended, act(call("complete", AFTER + 1), CLAIM)) == {"fencing"}


ENDED = [
    pytest.param("enqueue 1; w1 claims 1; w1 completes 1", id="it is completed"),
    pytest.param("enqueue 1 bound=1; w1 claims 1; w1 fails 1", id="it failed at its last attempt"),
]
TO_BE_TRIED_AGAIN = "enqueue 1 bound=2; w1 claims 1; w1 fails 1"


@pytest.mark.parametrize("story", ENDED)
@pytest.mark.parametrize("late", ["w1 completes 1", "w1 fails 1", "w1 beats 1"])
@pytest.mark.parametrize("answer", ["accepted", "rejected"])
def test_what_follows_the_end_of_a_job_changes_nothing(
    story: str, late: str, answer: Answer
) -> None:
    """Rule 6: a holder that repeats itself may be told either, and its job stays ended."""
    *before, last = acts(f"{story}; {late} -> {answer}")
    done = life(LEASED, *before)
    assert steps(done, last) == done


@pytest.mark.parametrize("late", ["w1 fails 1", "w1 beats 1"])
def test_what_follows_a_fail_with_attempts_left_changes_nothing(late: str) -> None:
    """Rule 6: a job that is to be tried again is not tried twice for a fail that is repeated."""
    *before, last = acts(f"{TO_BE_TRIED_AGAIN}; {late}")
    failed = life(LEASED, *before)
    assert steps(failed, last) == failed


def test_a_job_that_failed_for_good_and_is_claimed_again_is_final_state() -> None:
    """Rule 21: where its fail has ended it although it had attempts left."""
    *before, last = acts(f"{TO_BE_TRIED_AGAIN}; w2 claims 1")
    ended = [job for job in life(LEASED, *before) if job.phase != Phase.QUEUED]
    assert blamed(LEASED, ended, last) == {"final-state"}


def test_a_job_that_is_to_be_tried_again_may_be_completed_after_all() -> None:
    """Rule 6: a complete behind a fail that left attempts ends the job, or changes nothing."""
    failed = life(LEASED, enqueued(bound=2), act(CLAIM), act(call("fail", 3.0), CLAIM))
    queued = [job for job in failed if job.phase == Phase.QUEUED]
    after = steps(queued, act(call("complete", 4.0), CLAIM))
    assert phases(after) == {Phase.QUEUED, Phase.COMPLETED}
    again = [job for job in after if job.phase == Phase.COMPLETED]
    assert blamed(LEASED, again, act(call("claim", 5.0, actor="w2"))) == {"final-state"}


@pytest.mark.parametrize("owner", ["w1", "w2"])
@pytest.mark.parametrize("late", ["complete", "fail", "heartbeat"])
def test_once_the_job_is_claimed_again_nothing_may_be_repeated(late: CallKind, owner: str) -> None:
    """Rule 6: from the next claim on every operation of the claim that failed is refused."""
    failed = life(LEASED, enqueued(bound=3), act(CLAIM), act(call("fail", 3.0), CLAIM))
    again = steps(failed, act(call("claim", 4.0, actor=owner)))
    accepted = act(call(late, 5.0), CLAIM)
    assert blamed(LEASED, again, accepted) == {"fencing"}
    ended = steps(again, act(call("fail", 4.5, actor=owner), again[0].holder))
    assert blamed(LEASED, ended, accepted) == {"fencing"}


def test_what_strays_to_another_job_of_its_worker_is_fencing_once_it_shows() -> None:
    """A worker that loses a job by what it repeats for another one is refused, which is fencing."""
    held = life(LEASED, enqueued(), act(CLAIM))
    hit = steps(held, Act(call("complete", 3.0), "complete", named=False))
    assert not blamed(LEASED, hit, act(call("complete", 4.0), CLAIM))
    assert blamed(LEASED, hit, act(call("complete", 4.0), CLAIM, "rejected")) == {"fencing"}
    assert blamed(LEASED, hit, act(call("claim", 4.0, actor="w2"))) == {"fencing"}


@pytest.mark.parametrize("owner", ["w1", "w2"])
@pytest.mark.parametrize("late", ["complete", "fail", "heartbeat"])
def test_a_claim_that_was_taken_over_is_refused(late: CallKind, owner: str) -> None:
    """A worker that lost its job is refused, even if the same worker has claimed it again."""
    taken = life(TAKES_OVER, enqueued(), act(CLAIM), act(call("claim", AFTER + 1, actor=owner)))
    assert blamed(TAKES_OVER, taken, act(call(late, AFTER + 2), CLAIM)) == {"fencing"}
    assert not blamed(TAKES_OVER, taken, act(call(late, AFTER + 2), CLAIM, "rejected"))


@pytest.mark.parametrize("kind", ["complete", "fail", "heartbeat", "recover", "enqueue"])
def test_an_operation_whose_answer_was_lost_may_have_happened_or_not(kind: CallKind) -> None:
    """After an unknown answer the job may still be what it was."""
    before = life(LEASED, enqueued(), act(CLAIM))
    if kind == "enqueue":
        before = [Job()]
    late = Act(call(kind, AFTER + 1), kind, "unknown", CLAIM)
    assert set(before) < {job for state in before for job in legal(step(LEASED, state, late))}


def test_a_crash_of_somebody_else_changes_nothing() -> None:
    """Only the holder's crash counts."""
    running = life(LEASED, enqueued(), act(CLAIM))
    assert life(LEASED, enqueued(), act(CLAIM), act(call("crash", 3.0, actor="w2"))) == running


ONE_EACH = replace(LEASED, one_each=True)


def test_another_operation_may_beat_for_what_its_worker_holds() -> None:
    """It moves the certain end of the lease, and not its certain run."""
    first = call("claim", 1)
    (job,) = life(LEASED, act(call("enqueue", 0)), act(first))
    (signed,) = legal(step(LEASED, job, Act(call("claim", 25), "sign")))
    assert (signed.fresh_until, signed.stale_after) == (job.fresh_until, 25.001 + LEASE)
    assert [job] == legal(step(LEASED, job, Act(call("claim", 25, actor="w2"), "sign")))


def test_a_claim_that_answers_what_runs_out_meanwhile_may_begin_no_attempt() -> None:
    """Rule 4: what its worker held while the lease ran is no retry."""
    taken = life(LEASED, act(call("enqueue", 0, bound=1)), act(call("claim", 1)))
    assert {job.claims for job in legal(step(LEASED, taken[0], act(call("claim", 20, 60))))} == {1}


def test_a_worker_of_one_job_may_be_handed_it_again() -> None:
    """That is no double claim, and an attempt or none."""
    taken = life(ONE_EACH, act(call("enqueue", 0)), act(call("claim", 1)))
    assert {job.claims for job in legal(step(ONE_EACH, taken[0], act(call("claim", 2))))} == {1, 2}
