"""Guarantees on what is claimed: it is kept while it is worked on, and comes back after."""

from __future__ import annotations

from collections.abc import Iterator

from queueproof.guarantees.guarantee import Guarantee, finishing, followed
from queueproof.queues.offer import Offer
from queueproof.schedule.moments import DAY, past
from queueproof.schedule.programs import (
    COMPLETE_ACROSS,
    COMPLETE_ALL,
    COMPLETE_SOME,
    OBSERVE,
    RECOVER,
    START,
    JobSpec,
    Program,
    Stage,
    advance,
    claim,
    complete,
    crash,
    fail,
    heartbeat,
    in_turn,
    script,
    until,
    whole,
)
from queueproof.space.pieces import (
    ALIGNED,
    CLEAN_OLD,
    ELSEWHERE,
    NEW,
    ONE,
    PAGE,
    SAME,
    SPENT,
    THREE,
    TWO,
    Pieces,
)

BEATS = 25  # heartbeats, one after the other: a job that takes long


def _expiry(offer: Offer) -> str | None:
    if offer.expires:
        return followed(offer)
    return "no lease is declared and no claim is held in a transaction"


def _losing(offer: Offer) -> str | None:
    if (missing := finishing(offer)) is not None:
        return missing
    if offer.held:
        return "a claim is its open transaction: nobody acts with one that has ended"
    if offer.queue.lease_seconds is None and not offer.retries:
        return "nobody loses a job and lives: no lease runs out, and what failed is not tried again"
    return None


def _stale_recovery(pieces: Pieces) -> Iterator[Program]:
    gone = script("w1", claim(), crash())
    yield Program(ONE, in_turn(gone))
    yield Program(ONE, in_turn(gone, script("clock", advance(DAY))))
    if 1 in pieces.bounds():
        yield Program((JobSpec(bound=1),), in_turn(gone))
    yield Program(TWO, in_turn(gone, script("w2", claim())))
    if pieces.lease is not None:
        # Another worker comes before anybody has looked for what is stale.
        over = script("clock", advance(past(pieces.lease)))
        yield Program(ONE, in_turn(gone, over, script("w2", claim())))
        for begins in pieces.beginning():
            yield Program(ONE, in_turn(gone, over, begins, *pieces.reaper()))
        # A claim that commits once its lease has run out, after somebody has looked for such.
        looks = [script(actor, *over[1], *dos) for actor, dos in pieces.reaper()[:1]]
        yield from (Program(ONE, ((gone, look),)) for look in looks)
    yield Program(ONE, ((script("w1", claim()), script("nemesis", crash(1))),))
    if pieces.takes_limit:
        yield Program(TWO, in_turn(script("w1", claim(2), crash())))
    if "heartbeat" in pieces.offers:
        yield Program(ONE, in_turn(script("w1", claim(), heartbeat(), crash())))
        if pieces.lease is not None:
            beat = script("w1", heartbeat(), crash())
            yield Program(ONE, in_turn(script("w1", claim()), pieces.within(), beat))
            # However often it has beaten, its job is back one lease after the last time.
            beats = [heartbeat()] * BEATS
            yield Program(ONE, in_turn(script("w1", claim(), *beats, crash())))
    known = pieces.by_worker or "start" in pieces.offers
    if pieces.lease is not None and known and not pieces.one_each:
        # A worker that was given up may claim on: what it has then is to come back as well.
        paused = in_turn(script("w1", claim()))
        yield Program(TWO, (*paused, *pieces.lapse(), *in_turn(*pieces.reaper(), gone)))
    yield from _behind_live(pieces)
    yield from _beside_beaten(pieces)
    if 1 in pieces.bounds():
        spent = SAME._replace(bound=1)
        yield Program((spent, spent), in_turn(gone, script("w2", claim(), crash())))
    if pieces.routes():
        yield Program(ELSEWHERE, in_turn(script("w1", claim(queue="other"), crash())))
    by_session = pieces.offer.queue.by_session
    if (pieces.lease is not None or by_session) and (pieces.bound is None or pieces.bound > 1):
        again = in_turn(script("w2", claim(), crash()))
        yield Program(ONE, (*in_turn(gone), *pieces.lapse(), *again))
        both = (script("w1", claim()), *pieces.reaper(), script("nemesis", crash(1)))
        yield Program(ONE, (both,))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        retried = in_turn(script("w2", claim(), crash()))
        yield Program(ONE, (*in_turn(script("w1", claim(), fail())), *pieces.wait_out(), *retried))
    for ender in pieces.enders():
        if ender.kind != "heartbeat":
            yield Program(TWO, in_turn(script("w1", claim(), ender, claim(), crash())))


def _behind_live(pieces: Pieces) -> Iterator[Program]:
    """A stale job behind more jobs with fresh leases than a reaper may look at."""
    priority = "priority" in pieces.offer.queue.takes("enqueue")
    if pieces.lease is None or not pieces.offer.queue.by_priority or not priority:
        return
    last = JobSpec(priority=5)
    page = [claim(PAGE)] if pieces.takes_limit else [claim()] * PAGE
    yield Program(
        (*[JobSpec()] * PAGE, last),
        in_turn(
            script("w2", claim(), crash()),
            pieces.within(),
            script("w1", *page),
            pieces.within(),
            script("w1", crash()),
        ),
    )


def _beside_beaten(pieces: Pieces) -> Iterator[Program]:
    """A stale job behind others that are older and live by their heartbeats."""
    if pieces.lease is None or pieces.one_each or "heartbeat" not in pieces.offers:
        return
    page = [claim(SPENT)] if pieces.takes_limit else [claim()] * SPENT
    yield Program(
        (JobSpec(),) * (SPENT + 1),
        in_turn(
            script("w1", *page),
            script("w2", claim(), crash()),
            pieces.within(),
            script("w1", *(heartbeat(n) for n in range(SPENT))),
            pieces.within(),
            script("w1", crash()),
        ),
    )


def _live_lease(pieces: Pieces) -> Iterator[Program]:
    first = in_turn(script("w1", claim()))
    steal = in_turn(*pieces.reaper(), script("w2", claim()))
    yield Program(ONE, (*first, *steal))
    # Who begins may take back what seems to run, as if nobody else were there.
    for begins in pieces.beginning(claim()):
        yield Program(ONE, ((script("w1", claim()), begins),))
    if pieces.lease is None:
        yield Program(ONE, (*first, *pieces.wait_out(), *steal))
        return
    almost = script("clock", until(pieces.lease))
    aligned = (*in_turn(ALIGNED), *first)
    # Where workers beat for themselves the lease may have begun a moment before the claim.
    later = in_turn(pieces.within() if pieces.by_worker else almost)
    yield Program(ONE, (*aligned, *later, *steal))
    if pieces.takes_limit:  # what is claimed in a batch is held for as long
        yield Program(TWO, (*in_turn(ALIGNED, script("w1", claim(2))), *later, *steal))
    yield from _ends_late(pieces, later)
    if "complete_many" in pieces.offers and pieces.takes_limit:
        # Of what was claimed together one may still be at work, between two that are done.
        yield Program(THREE, in_turn(script("w1", claim(3), COMPLETE_SOME)))
    if "heartbeat" in pieces.offers:
        beat = in_turn(pieces.within(), script("w1", heartbeat()), pieces.within())
        yield Program(ONE, (*aligned, *beat[:2], *in_turn(almost), *steal))
        # An early one counts from when it came, too.
        early, rest = (script("clock", advance(part * pieces.lease)) for part in (0.3, 0.8))
        yield Program(ONE, (*first, *in_turn(early, script("w1", heartbeat()), rest), *steal))
        yield Program(ONE, (*first, *beat, *beat[1:], *steal))
        if pieces.routes():
            elsewhere = in_turn(script("w1", claim(queue="other")))
            taker = in_turn(*pieces.reaper(), script("w2", claim(queue="other")))
            yield Program(ELSEWHERE, (*elsewhere, *beat, *taker))
        yield Program(ONE, (*first, *beat, *beat[1:] * BEATS, *steal))
        over = in_turn(script("clock", advance(past(pieces.lease))))
        # A late one, while nobody else has the job, counts from when it came.
        late = in_turn(
            script("clock", advance(past(1.5 * pieces.lease))), script("w1", heartbeat())
        )
        yield Program(ONE, (*first, *late, *in_turn(pieces.within()), *steal))
        pair: Stage = (script("w1", heartbeat()), *pieces.reaper())
        yield Program(ONE, (*first, *over, pair, *in_turn(script("w2", claim()))))
        meanwhile = script("w1", whole(heartbeat()))
        if pieces.reaper() and 1 in pieces.bounds():
            yield Program((JobSpec(bound=1),), (*first, *over, (meanwhile, *pieces.reaper())))
        # A claim may take over as well.
        race: Stage = (meanwhile, script("w2", claim()))
        yield Program(ONE, (*first, *over, race, *in_turn(script("w3", claim()))))
        if pieces.takes_limit:
            # The second one: a worker's heartbeat is for all that it holds.
            two = in_turn(script("w1", claim(2)), pieces.within(), script("w1", heartbeat(1)))
            yield Program(TWO, (*two, *in_turn(pieces.within()), *steal))
    over = in_turn(script("clock", advance(past(pieces.lease))))
    # What a reaper has read is old when it acts: another job was claimed, or this one freed by
    # somebody else and claimed anew.
    for reaper in pieces.reaper():
        freed = () if pieces.offer.queue.leader else (whole(RECOVER), whole(claim()))
        others = script("w2", whole(claim()), *freed)
        later = in_turn(script("w3", claim()))
        yield Program(TWO, (*first, *over, (reaper, others), *later))
    yield from _next_attempts(pieces)
    if "cleanup" in pieces.offers and "start" in pieces.offers:
        # A worker that began long ago is none that is gone.
        beaten = (heartbeat(),) if pieces.by_worker else ()
        old = in_turn(script("w1", START), script("clock", advance(DAY)), NEW)
        taken = in_turn(script("w1", *beaten, claim()), CLEAN_OLD)
        yield Program((), (*old, *taken, *steal), reserve=ONE)


def _next_attempts(pieces: Pieces) -> Iterator[Program]:
    """A later attempt's lease is as fresh as the first one's."""
    # What an earlier attempt has left behind, its heartbeat too, is not the next one's.
    beaten = (heartbeat(),) if "heartbeat" in pieces.offers else ()
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        failed = in_turn(script("w1", claim(), *beaten, fail()))
        late = in_turn(script("w2", claim()), pieces.within(), *pieces.reaper())
        yield Program(ONE, (*failed, *pieces.wait_out(), *late, *in_turn(script("w3", claim()))))
    if pieces.joins and pieces.lease is not None:
        # One that comes with the completion of another, too.
        gone = in_turn(script("w1", claim(), crash()), script("clock", advance(past(pieces.lease))))
        joined = in_turn(script("w2", claim()), *pieces.reaper(), script("w2", complete(), claim()))
        steal = in_turn(*pieces.reaper(), script("w3", claim()))
        yield Program(TWO, (*gone, *joined, *steal))
    # A job that was taken over is as fresh as any other.
    if pieces.bound is None or pieces.bound > 1:
        held = in_turn(script("w1", claim(), *beaten))
        taken = in_turn(script("w2", claim()), pieces.within(), *pieces.reaper())
        yield Program(ONE, (*held, *pieces.lapse(), *taken, *in_turn(script("w3", claim()))))


def _ends_late(pieces: Pieces, later: tuple[Stage, ...]) -> Iterator[Program]:
    """What takes as long as its lease ends as well as what does not.

    Args:
        pieces: What the queue offers.
        later: A move of the clock nearly to the lease's end.
    """
    if "fail" in pieces.offers:
        single = in_turn(ALIGNED, script("w1", claim()))
        yield Program(ONE, (*single, *later, *in_turn(script("w1", fail()))))
    if "complete_many" in pieces.offers and pieces.takes_limit:
        batch = in_turn(ALIGNED, script("w1", claim(2)))
        yield Program(TWO, (*batch, *later, *in_turn(script("w1", COMPLETE_ALL))))


def _fencing(pieces: Pieces) -> Iterator[Program]:
    first = in_turn(script("w1", claim()))
    enders = pieces.enders()
    for ended in (do for do in enders if do.kind != "heartbeat"):
        for late in enders:
            # It may not fall on the job that the same worker has claimed since.
            yield Program(TWO, in_turn(script("w1", claim(), ended, claim(), late)))
    if pieces.offer.queue.delivery == "at-least-once" and pieces.lease is not None:
        # It may be accepted: what comes of it shows in the attempt that has begun since.
        taken = in_turn(script("w2", claim()), pieces.within())
        for late in enders:
            followed = in_turn(script("w1", late), script("w3", claim()))
            gone = in_turn(script("w2", crash()), pieces.within(), *pieces.reaper())
            yield Program(ONE, (*first, *pieces.lapse(), *taken, *followed))
            # Who was late is gone as well, or it would complete the job after all.
            lost = in_turn(script("w1", late, crash()))
            yield Program(ONE, (*first, *pieces.lapse(), *taken, *lost, *gone))
    for late in enders:
        if pieces.lease is not None:
            over = in_turn(script("clock", advance(past(pieces.lease))))
            for owner in ("w2", "w1"):
                again = in_turn(script(owner, claim()), script("w1", late))
                yield Program(ONE, (*first, *pieces.lapse(), *again))
            # Nor once the next lease has run out as well, nor once the next worker has ended.
            ends = in_turn(*(script("w2", do) for do in pieces.ending()), script("w1", late))
            again = (*in_turn(script("w2", claim())), *over, *in_turn(script("w1", late)))
            yield Program(ONE, (*first, *pieces.lapse(), *again, *ends))
            race: Stage = (script("w1", late), *pieces.reaper(), script("w2", claim()))
            yield Program(ONE, (*first, *over, race))
            if pieces.bound is not None and 1 in pieces.bounds():
                last = in_turn(script("reaper", OBSERVE), script("w1", late))
                yield Program((JobSpec(bound=1),), (*first, *pieces.lapse(), *last))
        if "fail" in pieces.offers:
            yield Program(ONE, in_turn(script("w1", claim(), fail(), claim(), late)))
            failed = in_turn(script("w1", claim(), fail()))
            for owner in ("w2", "w1"):
                again = in_turn(script(owner, claim()), script("w1", late))
                yield Program(ONE, (*failed, *pieces.wait_out(), *again))
    if "complete" in pieces.offers and "payload" in pieces.offer.queue.takes("enqueue"):
        # A job that is enqueued once more after its end is another attempt's.
        again = in_turn(script("w1", claim(), complete()), NEW, script("w2", claim()))
        yield Program((SAME,), (*again, *in_turn(script("w1", complete()))), reserve=(SAME,))
    if "complete_many" in pieces.offers and pieces.takes_limit and pieces.lease is not None:
        batch = in_turn(script("w1", claim(2)))
        for owner in ("w2", "w1"):
            again = in_turn(script(owner, claim()), script("w1", COMPLETE_ALL))
            yield Program(TWO, (*batch, *pieces.lapse(), *again))
        if pieces.bound is None or pieces.bound > 2:  # noqa: PLR2004 - as it is claimed
            # The first job is an attempt ahead of the second: whose token is whose matters.
            ahead = (*in_turn(script("w2", claim())), *pieces.lapse(), *batch, *pieces.lapse())
            again = in_turn(script("w1", claim(2)), script("w1", COMPLETE_ALL))
            yield Program(TWO, (*ahead, *again))
        # A batch over two claims: the one's token is not the other's job's.
        twice = (*batch, *pieces.lapse(), *batch)
        yield Program(TWO, (*twice, *in_turn(script("w1", COMPLETE_ACROSS))))
        over = in_turn(script("clock", advance(past(pieces.lease))))
        takes_over = [do for _, dos in pieces.reaper() for do in dos] + [claim()]
        race = (script("w2", *takes_over), script("w1", COMPLETE_ALL))
        yield Program(TWO, (*batch, *over, race))


def _overtaken(pieces: Pieces) -> Iterator[Program]:
    """Programs in which somebody late is overtaken between its check and its change."""
    if pieces.lease is None or pieces.offer.held:
        return
    stale = in_turn(script("w1", claim()), script("clock", advance(past(pieces.lease))))
    takes_over = [*(do for _, dos in pieces.reaper() for do in dos), claim()]
    for late in pieces.enders():
        race: Stage = (script("w1", late), script("w2", *map(whole, takes_over)))
        yield Program(ONE, (*stale, race))


GUARANTEES = (
    Guarantee(
        id="stale-recovery",
        sentence="A crashed worker's job becomes claimable once its lease has run out.",
        why="a deployment or a crash strands the jobs that were running",
        source="https://github.com/RealOrangeOne/django-tasks/issues/46",
        wild=(
            "The claim leaves the lease NULL until the first heartbeat: a worker that dies before "
            "it is never noticed. Or the reaper looks at a page or at the last hours only, or "
            "passes over jobs without an attempt left, which stay running for ever. Or, the "
            "commonest of all, nothing takes anything back."
        ),
        safe=(
            "Begin the lease in the claim itself. Recover every row WHERE status = 'running' AND "
            "locked_at < now() - lease, and end there, as failed, the jobs that have no attempt "
            'left. Where a person is to look after them, declare it: stale = "stays"; where a '
            'claim ends the job: delivery = "at-most-once".'
        ),
        example="stale_recovery_null_lease",
        needs=followed,
        accepted=lambda offer: 'stale = "stays"' if offer.queue.stale == "stays" else "",
        programs=_stale_recovery,
        life=True,
        acknowledged=True,
        lacking="jobs of crashed workers claimed again",
        timed=True,
    ),
    Guarantee(
        id="live-lease",
        sentence="A worker whose lease or heartbeat is fresh keeps its job.",
        why="a long job is started again while it still runs",
        whys=dict.fromkeys(
            ("complete", "complete_many", "fail"),
            "what a worker has done is not taken down, and is done once more",
        )
        | {"heartbeat": "a worker gives up a job that is still its own"},
        source="https://github.com/janbjorge/pgqueuer/issues/430",
        wild=(
            "The reaper reads the stale jobs and frees them by id, or by UPDATE ... WHERE id IN "
            "(SELECT ...) without a lock: a heartbeat or a new claim that came in between is "
            "undone. Or the heartbeat moves a column that the reaper does not read. Or each worker "
            "that begins requeues all that runs, as if no other were there."
        ),
        safe=(
            "The statement that frees a job asks of the row that it locks whether the lease has "
            "run out: FOR UPDATE SKIP LOCKED in the sub-select, or the same condition again in the "
            "UPDATE's own WHERE."
        ),
        example="live_lease_two_step",
        asks="a lease in the header, or a claim that ends inside its transaction",
        needs=_expiry,
        programs=_live_lease,
        life=True,
        acknowledged=True,
        lacking="claims and recoveries during a fresh lease",
        timed=True,
    ),
    Guarantee(
        id="fencing",
        sentence=(
            "A worker that lost its job cannot complete, fail or extend it, not even when the same "
            "worker has claimed it again."
        ),
        why="a paused worker wakes up and marks somebody else's attempt as done",
        whys={
            "complete alone": "the answer of an attempt that was given up ends the one that runs",
            "fail": "a paused worker wakes up and ends somebody else's attempt as failed",
            "fail alone": "the failure of an attempt that was given up ends the one that runs",
            "heartbeat": "a paused worker wakes up and keeps alive what is no longer its own: when"
            " the holder dies, nobody notices",
        },
        source="https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
        wild=(
            "complete, fail or the heartbeat ask for the id alone, or for the worker's name: a "
            "worker that paused past its lease ends the next worker's attempt, or its own second "
            "one with the answer of its first."
        ),
        safe=(
            "A token for each attempt, such as the count that the claim raises: UPDATE jobs SET "
            "... WHERE id = $1 AND status = 'running' AND attempts = $2. No row changed means that "
            "the job is lost, and the worker is told so."
        ),
        example="fencing_id_only",
        asks=(
            "complete, complete_many or fail, and a way to lose a job: "
            "a lease in the header, or a fail after which the job is tried again"
        ),
        needs=_losing,
        programs=_fencing,
        late=_overtaken,
        life=True,
        acknowledged=True,
        lacking="operations with a lost claim refused",
        shows_late=True,
    ),
)
"""In the order of the scenarios."""
