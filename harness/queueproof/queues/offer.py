"""A queue's offer: what it was declared to bring, and what it was seen to do."""

from __future__ import annotations

from dataclasses import dataclass

from queueproof.queues.model import Queue


@dataclass(frozen=True, slots=True)
class Offer:
    """The facts about a queue that decide whether a guarantee can be asked of it.

    Attributes:
        queue: The queue under test.
        held: Whether its claim ends inside a transaction, so that the row lock is the claim.
        tied: Whether a claim ends with the connection that it was made on: because it is held, or
            there is no lease, or as the queue itself was seen to do.
        retries: Whether a job that failed at its first attempt of several was seen to come back.
        beats: Whether a worker's next claim was seen to extend the lease of what it holds.
        renews: Whether a heartbeat was seen to change the claim's token.
        waits: Seconds for which a crashed worker's job was seen to wait after it was taken back by
            a claim that answered nothing; None where the first claim got it.
        late: Whether a crashed worker's job, beside no living one's, was seen to be still running
            when its lease was over: leases may last longer than declared.
        keyed: Whether an enqueue like one before was seen to make no second job.
        exclusive: Whether a job was seen to wait while another one with its payload ran.
        misses: Whether claims were seen to pass a ready job by although nobody acted: more often in
            a row than one that looks into a part of the jobs may.
        passes: How often in a row they were seen to, where they may.
        several: Operations that were seen to send several statements: others may come between.
    """

    queue: Queue
    held: bool
    tied: bool = False
    retries: bool = False
    beats: bool = False
    renews: bool = False
    waits: float | None = None
    late: bool = False
    keyed: bool = False
    exclusive: bool = False
    misses: bool = False
    passes: int = 0
    several: frozenset[str] = frozenset()

    def any_of(self, *operations: str) -> bool:
        """True if at least one of the operations is offered."""
        return not self.queue.offers.isdisjoint(operations)

    @property
    def joins(self) -> bool:
        """True if a claim can complete jobs that its worker holds: several, in no transaction."""
        alone = self.held or self.queue.jobs_per_worker is not None
        return not alone and "complete_and_claim" in self.queue.offers

    @property
    def expires(self) -> bool:
        """True if a claim can end without its worker: by its lease or by its connection."""
        return self.queue.lease is not None or self.held
