"""The catalogue: every guarantee once: its sentence, its reason, what it needs of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from queueproof.errors import QueueproofError, nearest
from queueproof.queues.offer import Offer


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One sentence that a queue keeps or breaks.

    Attributes:
        id: Public and frozen: it stands in files, reports and exit messages.
        sentence: The guarantee.
        why: What its breach does to a user.
        source: Where the idea or a known case is written down.
        needs: What is missing where the guarantee cannot be asked, None where it can.
    """

    id: str
    sentence: str
    why: str
    source: str
    needs: Callable[[Offer], str | None] = lambda _: None


def _finishing(offer: Offer) -> str | None:
    offered = offer.any_of("complete", "complete_many", "fail")
    return None if offered else "neither complete nor fail is offered"


def _expiry(offer: Offer) -> str | None:
    return None if offer.expires else "no lease is declared and no claim is held in a transaction"


def _losing(offer: Offer) -> str | None:
    if (missing := _finishing(offer)) is not None:
        return missing
    if offer.held:
        return "a claim is its open transaction: nobody acts with one that has ended"
    if offer.queue.lease is None and not offer.retries:
        return "nobody loses a job: no lease is declared, and what failed is not tried again"
    return None


def _bound(offer: Offer) -> str | None:
    if offer.queue.max_attempts is None:
        return "no max_attempts is declared"
    if offer.any_of("fail") or offer.queue.lease is not None:
        return None
    return "neither fail nor a lease is offered: a job is attempted once"


def _ordered(offer: Offer) -> str | None:
    return "no order is declared" if offer.queue.order == "none" else None


def _waiting(offer: Offer) -> str | None:
    if "fail" not in offer.queue.offers:
        return "fail is not offered"
    return "no backoff is declared" if offer.queue.backoff is None else None


def _routed(offer: Offer) -> str | None:
    takes = offer.queue.takes
    if "queue" in takes("enqueue") and "queue" in takes("claim"):
        return None
    return "enqueue and claim do not both take a queue"


def _capped(offer: Offer) -> str | None:
    return "no concurrency_limit is declared" if offer.queue.concurrency_limit is None else None


def _promised_snapshot(offer: Offer) -> str | None:
    promised = "old-snapshot" in offer.queue.promises
    return None if promised else "not in promises; most queues lose here"


_ALL = (
    Guarantee(
        "single-claim",
        "No job is held by two workers at once.",
        "the job's effect happens twice: two mails, two payments",
        "https://www.postgresql.org/docs/current/sql-select.html (The Locking Clause)",
    ),
    Guarantee(
        "claim-limit",
        "A claim never takes more than its limit, whatever plan the server chooses.",
        "one worker swallows the whole queue, and its leases run out while it works",
        "https://github.com/oban-bg/oban/issues/4",
    ),
    Guarantee(
        "no-lost-job",
        "Every enqueued job ends completed or failed, or can still be claimed.",
        "work that was accepted is never done, and nobody is told",
        "https://github.com/riverqueue/river/pull/619",
    ),
    Guarantee(
        "not-early",
        "A job is not claimed before its time, nor before its enqueue commits.",
        "a reminder is sent before it is due, or for an order that was rolled back",
        "https://github.com/pgmq/pgmq/issues/367",
    ),
    Guarantee(
        "order",
        "Jobs that are free are claimed in the declared order.",
        "urgent work waits behind bulk work",
        "https://github.com/procrastinate-org/procrastinate/issues/212",
        needs=_ordered,
    ),
    Guarantee(
        "stale-recovery",
        "A crashed worker's job becomes claimable once its lease has run out.",
        "a deployment or a crash strands the jobs that were running",
        "https://github.com/RealOrangeOne/django-tasks/issues/46",
        needs=_expiry,
    ),
    Guarantee(
        "live-lease",
        "A worker whose lease or heartbeat is fresh keeps its job.",
        "a long job is started again while it still runs",
        "https://github.com/janbjorge/pgqueuer/issues/430",
        needs=_expiry,
    ),
    Guarantee(
        "fencing",
        "A worker that lost its job cannot complete, fail or extend it, "
        "not even when the same worker has claimed it again.",
        "a paused worker wakes up and marks somebody else's attempt as done",
        "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
        needs=_losing,
    ),
    Guarantee(
        "retry-bound",
        "A job is attempted at most max_attempts times, crashes included.",
        "a poisoned job takes down one worker after another, for ever",
        "https://github.com/elizaOS/eliza/issues/10854",
        needs=_bound,
    ),
    Guarantee(
        "retry-given",
        "A failed job that has attempts left is tried again, and so is a crashed worker's.",
        "a passing fault, or a worker that dies, ends a job for good",
        "https://github.com/inferablehq/inferable/blob/c67acb8/control-plane/src/modules/jobs/self-heal-jobs.ts",
        needs=_bound,
    ),
    Guarantee(
        "backoff",
        "A failed job waits before its next attempt; the wait grows, is capped, "
        "and never overflows.",
        "a failing dependency is hammered, or a job is retried in the year 9999",
        "https://github.com/riverqueue/river/pull/698",
        needs=_waiting,
    ),
    Guarantee(
        "final-state",
        "A completed or failed job never runs again.",
        "finished work is done a second time, hours later",
        "https://github.com/riverqueue/river/issues/1302",
        needs=_finishing,
    ),
    Guarantee(
        "non-blocking",
        "A claim, a heartbeat or a recovery never waits for another worker's job.",
        "workers form a convoy: adding some makes nothing faster",
        "https://www.postgresql.org/docs/current/explicit-locking.html",
    ),
    Guarantee(
        "no-deadlock",
        "No interleaving of operations deadlocks.",
        "operations are aborted at random under load",
        "https://github.com/timgit/pg-boss/issues/282",
    ),
    Guarantee(
        "no-starvation",
        "A job that cannot run now does not keep ready jobs from being claimed.",
        "the queue stands still although there is work",
        "https://github.com/oban-bg/oban/issues/1498",
    ),
    Guarantee(
        "server-clock",
        "Time is the database's; a worker's wrong clock changes nothing.",
        "a worker whose clock is wrong steals running jobs, or runs jobs before their time",
        "https://github.com/earendil-works/absurd",
    ),
    Guarantee(
        "isolation",
        "Under REPEATABLE READ and SERIALIZABLE the worst answer is a retryable error.",
        "a changed default of the database turns into lost or doubled work",
        "https://www.postgresql.org/docs/current/transaction-iso.html",
    ),
    Guarantee(
        "crash-safe",
        "Nothing acknowledged is lost or doubled when worker, connection or server dies at any "
        "step, the acknowledgement of COMMIT included.",
        "an outage of a second costs jobs",
        "https://github.com/rails/solid_queue/issues/748",
    ),
    Guarantee(
        "pooler-safe",
        "It works through a transaction-pooling proxy.",
        "session locks and settings leak between workers",
        "https://www.pgbouncer.org/features.html",
    ),
    Guarantee(
        "steady-cost",
        "A claim on a vacuumed table touches no more buffers with a million finished jobs or a "
        "deep backlog.",
        "the queue gets slower every week",
        "https://brandur.org/postgres-queues",
    ),
    Guarantee(
        "old-snapshot",
        "Nor while an old snapshot is held open.",
        "one forgotten transaction slows every claim",
        "https://brandur.org/postgres-queues",
        needs=_promised_snapshot,
    ),
    Guarantee(
        "routing",
        "A worker of one queue never gets another queue's job.",
        "jobs run where their code is not deployed",
        "https://www.inferable.ai/blog/posts/postgres-skip-locked",
        needs=_routed,
    ),
    Guarantee(
        "concurrency-limit",
        "Never more running jobs than the declared cap.",
        "the dependency that the cap protects is overrun",
        "https://github.com/janbjorge/pgqueuer/issues/761",
        needs=_capped,
    ),
)

CATALOGUE: dict[str, Guarantee] = {guarantee.id: guarantee for guarantee in _ALL}
"""Every guarantee by its id, in the order of the catalogue."""


def select(
    ids: Iterable[str] | None, *, skip: Iterable[str] = (), require: Iterable[str] = ()
) -> list[Guarantee]:
    """The guarantees to judge, in the order of the catalogue.

    Args:
        ids: Those that are asked for; None for all.
        skip: Those that are left out.
        require: Those that must be among them.

    Raises:
        QueueproofError: An id is unknown, or one that is required is left out, or all are.
    """
    chosen = list(CATALOGUE if ids is None else ids)
    left_out, required = list(skip), list(require)
    for name in (*chosen, *left_out, *required):
        if name not in CATALOGUE:
            near = nearest(name, CATALOGUE) or "; `queueproof guarantees` lists them"
            raise QueueproofError(f"unknown guarantee {name!r}{near}")
    asked = [guarantee for guarantee in _ALL if guarantee.id in {*chosen} - {*left_out}]
    if lost := {*required} - {guarantee.id for guarantee in asked}:
        raise QueueproofError(f"{min(lost)} is required and left out at the same time")
    if not asked:
        raise QueueproofError("nothing is left to judge: every guarantee asked for is skipped")
    return asked
