"""Answers that contradict each other: then it is the queue's operation that tells wrong things.

What a verdict rests on is what the queue answers. An enqueue that gives two jobs one id, a recovery
of a job that nobody enqueued, a list that leaves a job out: nothing can be judged by these, and the
queue's author has to mend the operation first (rule 30). Only what no race and no fault
explains counts, and only what a later answer proves: a job that is left out and never seen again
may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from queueproof.history.calls import Call, Contradiction
from queueproof.schedule.programs import FAULTS

_TIMES, _BESIDE = 3, 10  # rows for each job that there is, and jobs that the schema put there
_PLAIN = frozenset({"accepted", "rejected", "retry"})
_DONE = {
    "complete": "completed",
    "complete_many": "completed",
    "fail": "failed by its holder",
    "heartbeat": "extended",
}
_ENDS = _DONE.keys() - {"heartbeat"}


def contradiction(calls: Sequence[Call], *, by_worker: bool = False) -> Contradiction | None:
    """The first answer of a run that cannot be true, whatever the queue does; or nothing.

    Args:
        by_worker: Heartbeats name a worker: what they are answered says nothing of its jobs.
    """
    return _enqueued_twice(calls) or _unknown(calls) or _wrong_list(calls, by_worker=by_worker)


def is_raced(calls: Sequence[Call], wrong: Contradiction) -> bool:
    """True if operations overlapped before an answer that cannot be true: they may have made it.

    Then it is the queue that is broken, and not what it tells (rule 30).
    """
    before = calls[: wrong.call + 1]
    return bool(wrong.raced) and any(
        one.actor != other.actor and one.overlaps(other)
        for n, one in enumerate(before)
        for other in before[:n]
    )


def flood(calls: Sequence[Call], limit: int, ids: Sequence[str]) -> str:
    """The message for a claim of more rows than there can be jobs; empty for any other.

    A job too many is a breach of claim-limit, and a row too many a join's mistake. But each row is
    a job to be completed: by the thousand they would keep a run busy for ever.
    """
    known = {job for call in calls if call.kind == "enqueue" for job in call.ids}
    if len(ids) <= _TIMES * (len(known) + limit) + _BESIDE:
        return ""
    often, count = Counter(ids).most_common(1)[0]
    strange = next((job for job in ids if job not in known), None)
    shown = f"among them {often} {count:,} times" if count > 1 else f"among them {strange}"
    return (
        f"claim answered {len(ids):,} rows, {shown}, when {len(known)} "
        f"job{'' if len(known) == 1 else 's'} had been enqueued: it answers a row for each job that"
        " it took"
    )


def _enqueued_twice(calls: Sequence[Call]) -> Contradiction | None:
    """Two enqueues answer one id, without a fault that has lost what the server knew.

    Where they bring the same, the second may answer the job that is there (rule 34).
    """
    known: dict[str, Call] = {}
    for call in calls:
        if call.kind in FAULTS or (call.kind != "enqueue" and call.answer not in _PLAIN):
            known.clear()
        for job in call.ids if call.kind == "enqueue" else ():
            if job in known and not call.payload == known[job].payload == "same":
                ended = any(_names(one, job) for one in calls[known[job].index + 1 : call.index])
                how = (
                    "again, which another job has had: what is late for that one would meet the"
                    " new job; it answers an id that is never used again"
                    if ended
                    else "for two jobs whose payloads differ: it answers the new job's id"
                )
                because = f"enqueue answered the id {job} {how}"
                return Contradiction("enqueue", because, call.index, "no-lost-job", job)
            known[job] = call
    return None


def _names(call: Call, job: str) -> bool:
    """True if a call is about a job, or may be about any."""
    return job in call.ids or any(ref.job == job for ref in call.refs) or call.kind == "cleanup"


def _unknown(calls: Sequence[Call]) -> Contradiction | None:
    """An answer names a job that does not exist."""
    for n, call in enumerate(calls):
        if call.kind == "complete_many":
            given = {ref.job for ref in call.refs}
            for job in call.ids:
                if job not in given:
                    because = f"{call.kind} answered the id {job}, which it was not given"
                    return Contradiction(call.kind, because, call.index)
        if call.kind != "recover" or not call.ids:
            continue
        before = calls[:n]
        if any(c.kind == "enqueue" and (c.answer != "accepted" or not c.ids) for c in calls):
            continue  # it may be that job
        known = {job for c in before for job in (*c.ids, *(c.states or ())) if c.kind != "recover"}
        # An enqueue may have been on its way to its answer.
        known.update(job for c in calls[n:] if c.kind == "enqueue" for job in c.ids)
        for job in call.ids:
            if job not in known:
                return Contradiction(
                    call.kind,
                    f"{call.kind} answered the id {job}, which no enqueue had answered: "
                    "it answers the ids of the jobs that it took back",
                    call.index,
                )
    return None


def _wrong_list(calls: Sequence[Call], *, by_worker: bool) -> Contradiction | None:
    """A list of jobs was made while nobody else acted, and later answers prove it wrong."""
    for n, call in enumerate(calls):
        if call.answer not in _PLAIN or call.kind in FAULTS:
            return None  # what was done by halves may look like anything
        if call.kind != "jobs" or call.states is None or not _is_quiet(calls, n):
            continue
        for job in call.ids:
            if call.ids.count(job) > 1:
                because = f"jobs lists job {job} more than once"
                return Contradiction("jobs", because, call.index, "single-claim", job)
        for job in dict.fromkeys(j for c in calls[:n] if c.kind == "enqueue" for j in c.ids):
            said = _misjudged(calls, n, job)
            later = _life(calls, n, job, by_worker=by_worker) if said else ""
            if said and later:
                how = "; list it, or leave the block out" if job not in call.ids else ""
                because = f"jobs {said}, and it was {later} afterwards{how}"
                return Contradiction("jobs", because, call.index, "final-state", job)
    return None


def _is_quiet(calls: Sequence[Call], n: int) -> bool:
    """True if no other operation was under way during a call."""
    call = calls[n]
    if call.returned is None or any(
        (c.returned or call.invoked) >= call.invoked for c in calls[:n]
    ):
        return False
    return n + 1 == len(calls) or calls[n + 1].invoked > call.returned


def _misjudged(calls: Sequence[Call], n: int, job: str) -> str:
    """The way a list contradicts the answers before it on a job; empty where they agree."""
    enqueued = max(k for k, c in enumerate(calls[:n]) if c.kind == "enqueue" and job in c.ids)
    since = calls[enqueued + 1 : n]
    if any(c.kind in {"cleanup", "start"} or (c.kind == "recover" and job in c.ids) for c in since):
        return ""
    state = (calls[n].states or {}).get(job)
    ended = {
        "fail" if c.kind == "fail" else "complete"
        for c in since
        if c.kind in _ENDS and job in c.accepted
    }
    if not ended and state is None:
        return f"left out job {job}, which had been enqueued and not ended"
    bound = calls[enqueued].bound
    claims = sum(c.kind == "claim" and job in c.ids for c in since)
    # A state may follow from the clock, or from a count: its last attempt runs (rule 35).
    last = bound is not None and claims >= bound
    follows = state == "failed" and (last or any(c.kind == "advance" for c in since))
    if not ended and state in {"completed", "failed"} and not follows:
        return f"reported job {job} as {state}, although nothing had ended it"
    if ended == {"fail"} and state == "failed" and bound is not None and claims < bound:
        return f"reported job {job} as failed, which had attempts left and is queued"
    return ""


def _life(calls: Sequence[Call], n: int, job: str, *, by_worker: bool) -> str:
    """The later answer that proves that a job had not ended when a list was made."""
    claimed = max((c.index for c in calls[:n] if c.kind == "claim" and job in c.ids), default=-1)
    moved = False  # the clock, so that a lease may have run out
    for call in calls[n + 1 :]:
        moved = moved or call.kind == "advance"
        if call.kind == "enqueue" and (job in call.ids or call.answer != "accepted"):
            return ""  # it may be another one
        if call.kind == "claim" and job in call.ids:
            return "claimed"
        if call.answer != "accepted" or moved or (by_worker and call.kind == "heartbeat"):
            continue
        if call.kind in _DONE and (claimed, job) in call.refs:
            return _DONE[call.kind]
    return ""
