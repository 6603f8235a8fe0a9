"""A queue's offer: what it was declared to bring, and what it was seen to do."""

from __future__ import annotations

from dataclasses import dataclass

from queueproof.queues.model import Queue


@dataclass(frozen=True, slots=True)
class Offer:
    """The facts that decide if a guarantee can be asked of a queue, most of them seen."""

    queue: Queue
    held: bool  # its claim ends inside a transaction, so that the row lock is the claim
    # A claim ends with the connection that it was made on: because it is held, or there is no
    # lease, or as the queue itself was seen to do.
    tied: bool = False
    retries: bool = False  # a job that failed at its first attempt of several came back
    beats: bool = False  # a worker's next claim extended the lease of what it holds
    renews: bool = False  # a heartbeat changed the claim's token
    # Seconds for which a crashed worker's job waited after it was taken back by a claim that
    # answered nothing; None where the first claim got it.
    waits: float | None = None
    # A crashed worker's job, beside no living one's, was still running when its lease was over:
    # leases may last longer than declared.
    late: bool = False
    keyed: bool = False  # an enqueue like one before made no second job
    exclusive: bool = False  # a job waited while another one with its payload ran
    # Claims passed a ready job by although nobody acted: more often in a row than one that looks
    # into a part of the jobs may.
    misses: bool = False
    passes: int = 0  # how often in a row they did, where they may
    several: frozenset[str] = frozenset()  # operations that sent several statements

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
