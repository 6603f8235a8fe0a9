"""The life of one job, rule by rule: every legal answer is accepted, every other one is blamed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from queueproof.history.calls import Answer
from queueproof.judge.spec import Act, Declared, Job, Phase, step
from queueproof.judge.violations import Violation
from queueproof.schedule.moments import grace
from tests.fix_histories import LEASE, Case, Told, cases

LEASED = Declared(lease=LEASE, held=False, worker_heartbeat=False, recovers=True)
TAKES_OVER = replace(LEASED, recovers=False)
CLAIMED = "enqueue 1; w1 claims 1"
FAILED = "enqueue 1 bound=3; w1 claims 1; w1 fails 1"  # and is to be tried again
LATE = [f"{CLAIMED}; +31; {late}" for late in ("w1 completes 1", "w1 fails 1", "w1 beats 1")]


def acts(story: str) -> list[Act]:
    """What the calls of a history meant for its one job, in the order of their answers."""
    calls = Told(story).history.calls
    return [
        Act(made, made.kind, made.answer, calls[made.refs[0].call] if made.refs else None)
        for made in sorted(calls, key=lambda made: made.ended)
    ]


def steps(jobs: Sequence[Job], act: Act, rules: Declared = LEASED) -> list[Job]:
    """The states in which jobs may be after an act; none where it is a breach."""
    outcomes = [step(rules, before, act) for before in jobs]
    return [job for one in outcomes if not isinstance(one, Violation) for job in one]


def life(story: str | Sequence[Act], rules: Declared = LEASED) -> list[Job]:
    """The states that a job may be in after a history, all of it legal."""
    jobs = [Job()]
    for one in acts(story) if isinstance(story, str) else story:
        jobs = steps(jobs, one, rules)
        assert jobs, f"{one.kind} is not legal in any state"
    return jobs


def phases(jobs: Sequence[Job]) -> set[Phase]:
    """The phases of some states."""
    return {job.phase for job in jobs}


def blamed(jobs: Sequence[Job], late: Act, rules: Declared = LEASED) -> set[str]:
    """The guarantees that an act breaks in some states; empty if it is legal in one of them."""
    outcomes = [step(rules, job, late) for job in jobs]
    breaches = {outcome.guarantee for outcome in outcomes if isinstance(outcome, Violation)}
    return breaches if breaches and all(isinstance(o, Violation) for o in outcomes) else set()


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
    where the transaction is the claim, nobody else gets the job while it is open
        enqueue 1; w1 claims 1; w2 claims 1 => single-claim where lease=None held=True
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
    assert blamed(life(before, rules), last, rules) == set(case.breaks)


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
    states = life(case.story, replace(LEASED, **case.facts))
    assert phases(states) == {Phase(one) for one in case.breaks[0].split(" or ")}


def test_a_claim_whose_answer_was_lost_has_no_worker() -> None:
    """Whoever it was is gone."""
    states = life("enqueue 1; w1 claims -> unknown")
    assert all(job.crashed for job in states if job.phase == Phase.RUNNING)


def test_without_a_bound_a_job_may_be_attempted_for_ever() -> None:
    """Where the queue declares no max_attempts no number of attempts is too many."""
    assert life("enqueue 1" + "; w1 claims 1; w1 crashes; +99" * 50, TAKES_OVER)


def test_at_exactly_its_end_a_lease_counts_either_way() -> None:
    """Rule 4: a claim that ends at the very end of the lease may have taken the job over."""
    *known, edge = acts(f"{CLAIMED}; +29; w2 claims 1")
    ends = replace(edge.call, ended=known[1].call.began + LEASE)
    assert life([*known, edge._replace(call=ends)], TAKES_OVER)


@pytest.mark.parametrize("does", ["completes", "fails", "beats"])
@pytest.mark.parametrize("answer", ["accepted", "rejected"])
@pytest.mark.parametrize("recovery", ["", "recover 1; "])
def test_after_the_lease_either_answer_is_legal(does: str, answer: Answer, recovery: str) -> None:
    """Rule 5: between the lease's end and the next claim both answers are legal."""
    assert life(f"{CLAIMED}; +31; {recovery}w1 {does} 1 -> {answer}")


def test_a_heartbeat_may_add_to_what_is_left_of_the_lease_once() -> None:
    """Rules 4 and 32: a lease lasts from the last heartbeat or from its end on, and no longer."""
    _, claim, beat = told = acts(f"{CLAIMED}; +20; w1 beats 1")
    (beaten,) = life(told)
    assert beaten.fresh_until < beat.call.began + LEASE + 1
    assert beaten.stale_after >= claim.call.ended + 2 * LEASE
    told = acts(CLAIMED + "; +1; w1 beats 1" * 20)
    (beaten,) = life(told)
    over = told[-1].call.ended + LEASE
    assert over <= beaten.stale_after <= over + grace(LEASE)


def test_a_heartbeat_of_another_job_may_or_may_not_extend_this_one() -> None:
    """Rule 3: a heartbeat may extend all jobs of its worker; neither reading is accused."""
    *known, beat = acts(f"{CLAIMED}; +20; w1 beats 1")
    (job,) = life([*known, beat._replace(named=False)])
    assert job.fresh_until == known[1].call.began + LEASE
    assert job.stale_after >= beat.call.began + LEASE


def test_a_job_that_recover_ended_refuses_its_old_holder() -> None:
    """Rule 5: a job that recover ended as failed rejects its old holder's operations."""
    *known, late = acts("enqueue 1 bound=1; w1 claims 1; +31; recover 1; w1 completes 1")
    states = life(known)
    assert phases(states) == {Phase.QUEUED, Phase.FAILED}
    assert blamed([job for job in states if job.phase == Phase.FAILED], late) == {"fencing"}


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(f"{CLAIMED}; w1 completes 1", id="it is completed"),
        pytest.param("enqueue 1 bound=1; w1 claims 1; w1 fails 1", id="at its last attempt"),
        pytest.param(FAILED, id="it is to be tried again"),
    ],
)
@pytest.mark.parametrize("late", ["completes", "fails", "beats"])
@pytest.mark.parametrize("answer", ["accepted", "rejected"])
def test_what_follows_a_jobs_end_changes_nothing(story: str, late: str, answer: Answer) -> None:
    """Rule 6: a holder that repeats itself may be told either, and its job stays as it is."""
    # But for a complete that ends what is to be tried again.
    *known, last = acts(f"{story}; w1 {late} 1 -> {answer}")
    done = life(known)
    ends = story == FAILED and (late, answer) == ("completes", "accepted")
    assert (steps(done, last) == done) is not ends


def test_what_comes_after_a_fail_that_left_attempts() -> None:
    """Rules 6 and 21: what has ended is not claimed; what has not may be completed after all."""
    *known, last = acts(f"{FAILED}; w2 claims 1")
    ended = [job for job in life(known) if job.phase != Phase.QUEUED]
    assert blamed(ended, last) == {"final-state"}
    # A complete behind a fail that left attempts ends the job, or changes nothing.
    *known, complete, claim = acts(f"{FAILED}; w1 completes 1; w2 claims 1")
    after = steps([job for job in life(known) if job.phase == Phase.QUEUED], complete)
    assert phases(after) == {Phase.QUEUED, Phase.COMPLETED}
    assert blamed([job for job in after if job.phase == Phase.COMPLETED], claim) == {"final-state"}


@pytest.mark.parametrize("owner", ["w1", "w2"])
@pytest.mark.parametrize("late", ["completes", "fails", "beats"])
@pytest.mark.parametrize(
    ("story", "answer", "breaks"),
    [
        (FAILED + "; {0} claims 1", "accepted", {"fencing"}),
        (FAILED + "; {0} claims 1; {0} fails 1", "accepted", {"fencing"}),
        (CLAIMED + "; +31; {0} claims 1", "accepted", {"fencing"}),
        (CLAIMED + "; +31; {0} claims 1", "rejected", set()),
    ],
    ids=["it failed", "it failed twice", "taken over", "taken over, and refused"],
)
def test_once_the_job_is_claimed_again_its_first_holder_is_refused(
    owner: str, late: str, story: str, answer: Answer, breaks: set[str]
) -> None:
    """Rule 6: every operation of that claim, even if the same worker has claimed it again."""
    *known, last = acts(f"{story.format(owner)}; {owner} {late} 1 -> {answer}")
    late_one = last._replace(holder=known[1].call)
    assert blamed(life(known, TAKES_OVER), late_one, TAKES_OVER) == breaks


def test_what_strays_to_another_job_of_its_worker_is_fencing_once_it_shows() -> None:
    """A worker that loses a job by what it repeats for another one is refused, which is fencing."""
    *known, stray, late = acts(f"{CLAIMED}; w1 completes 1; w1 completes 1")
    hit = steps(life(known), stray._replace(holder=None, named=False))
    assert not blamed(hit, late)
    assert blamed(hit, late._replace(answer="rejected")) == {"fencing"}
    assert blamed(hit, acts(f"{CLAIMED}; w2 claims 1")[-1]) == {"fencing"}


@pytest.mark.parametrize("story", [*LATE, f"{CLAIMED}; +31; recover 1", "enqueue"])
def test_an_operation_whose_answer_was_lost_may_have_happened_or_not(story: str) -> None:
    """After an unknown answer the job may still be what it was."""
    *known, last = acts(f"{story} -> unknown")
    before = life(known)
    assert set(before) < set(steps(before, last))


def test_only_what_the_holder_does_counts() -> None:
    """Only the holder's crash counts; other operations of its own may move the certain end."""
    *known, crash = acts(f"{CLAIMED}; w2 crashes")
    running = life(known)
    assert steps(running, crash) == running
    # A sign moves the certain end of the lease, and not its certain run.
    *known, mine, theirs = (
        act._replace(kind="sign") if act.call.began > 1 else act
        for act in acts(f"{CLAIMED}; +24; w1 claims; w2 claims")
    )
    (job,) = life(known)
    (signed,) = steps([job], mine)
    assert (signed.fresh_until, signed.stale_after) == (job.fresh_until, mine.call.ended + LEASE)
    assert steps([job], theirs) == [job]


def test_a_claim_may_answer_what_its_worker_has() -> None:
    """Rule 4: what its worker held while the lease ran is no retry, nor a double claim."""
    told = "enqueue 1 bound=1; w1 claims 1; +19; begin w1 claims; +40; end w1 1"
    assert {job.claims for job in life(told)} == {1}
    again = life(f"{CLAIMED}; w1 claims 1", replace(LEASED, one_each=True))
    assert {job.claims for job in again} == {1, 2}
