"""Guarantees on what a claim costs."""

from __future__ import annotations

from queueproof.guarantees.guarantee import Guarantee
from queueproof.queues.offer import Offer


def _promised_snapshot(offer: Offer) -> str | None:
    promised = "old-snapshot" in offer.queue.promises
    return None if promised else "this queue does not promise it; few queues can"


GUARANTEES = (
    Guarantee(
        id="steady-cost",
        called="bloat, slow claims, full table scan",
        apart=True,
        sentence="""A claim does not get slower as the table grows: on a vacuumed table it reads
            about as many buffers with many finished or waiting jobs as with a few.""",
        why="the queue gets slower every week",
        source="https://brandur.org/postgres-queues",
        wild="""No index holds just the runnable jobs, or one holds finished jobs too: they are
            the oldest, and each claim walks over all of them. One that is not in the claim's
            order has the whole backlog sorted.""",
        safe="""`CREATE INDEX ON jobs (queue, priority DESC, run_at, id) WHERE status =
            'queued'`: what may be claimed, in the order of the claim, and nothing that is over,
            failed jobs included.""",
        advised=True,
        probe="growth",
    ),
    Guarantee(
        id="old-snapshot",
        called="long transaction, idle in transaction, xmin horizon",
        apart=True,
        sentence="A claim does not read more buffers because an old snapshot is open.",
        why="one forgotten transaction slows every claim",
        source="https://brandur.org/postgres-queues",
        wild="""A forgotten transaction or a long report keeps vacuum from removing what is
            dead: every job that was claimed leaves an entry in the index of runnable ones, and
            every claim walks over them all.""",
        safe="""Claims that begin behind what is dead: where rows are only ever inserted, behind
            the last one that was claimed; else at a mark below which nothing can appear,
            `pg_snapshot_xmin(pg_current_snapshot())`, while jobs stand in line by
            `pg_current_xact_id()`. Else end such sessions:
            `idle_in_transaction_session_timeout`, and `transaction_timeout` from PostgreSQL 17.""",
        asks='promises = ["old-snapshot"] in the header',
        needs=_promised_snapshot,
        told_anyway=True,
        probe="growth under a snapshot",
    ),
)
