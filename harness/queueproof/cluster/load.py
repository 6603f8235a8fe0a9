"""The workers of a cluster as those who drive a benchmark's loads, all on one server."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager

from distributed import Client
from distributed import Future as Task
from distributed.scheduler import KilledWorker

from queueproof import waits
from queueproof.bench.pool import GRACE, START_SECONDS, Drivers, RoundLostError, WorkerLostError
from queueproof.bench.worker import Load, Tally
from queueproof.cluster.clock import ahead
from queueproof.cluster.members import Members, joined, machine_of, refuse_address
from queueproof.cluster.orders import LateError, LoadBrief, Prepare, Release
from queueproof.cluster.seat import LoadSeat, LostError, do, exchange
from queueproof.errors import QueueError, QueueproofError
from queueproof.postgres import Server

SOON = 0.3  # seconds from the word to the start, twice as many after each time that it came late
LOOK = 0.01  # seconds between two looks at what has been answered
COUNT = 0.02, 0.25  # seconds between two counts of what is done: near the end, and at most


@contextmanager
def drivers(
    address: str, tell: Callable[[str], object], server: Server, size: int
) -> Iterator[Drivers]:
    """The workers of a cluster, until the end of the block; nothing of ours is left there then.

    Args:
        address: Of its scheduler: `tcp://host:port`.
        tell: Told of a round that does not count.
        server: That they put under load.
        size: Connections at most, of all of them together.

    Raises:
        QueueproofError: There is no such cluster, or its workers cannot do this.
    """
    refuse_address(address)
    if server.ours:
        raise QueueproofError(
            "bench --cluster: its workers share one server, which every one of them can reach; name"
            " that by --postgres DSN or $QUEUEPROOF_POSTGRES"
        )
    with joined(address) as members:
        yield _Drivers(members, size, tell)


class _Drivers:
    """Processes at the workers of a cluster, each with its share of a load's connections.

    Attributes:
        facts: How many workers at how many machines drove the last load, and how many rounds do not
            count.
    """

    def __init__(self, members: Members, size: int, tell: Callable[[str], object]) -> None:
        self._members = members
        self._size = size
        self._tell = tell
        self._soon = SOON
        self._seats: dict[str, Task] = {}
        self._busy: Sequence[str] = ()  # workers with a share of the load
        self._load: Load | None = None
        self._ahead = 0.0  # of the server's clock
        self.facts = {"workers": 0, "machines": 0, "lost": 0}
        self._begin()

    def _begin(self) -> None:
        """Have a process at each worker that is there."""
        there = self._members.some()
        for at, threads in sorted(there.items()):
            brief = LoadBrief(self._size, threads)
            self._seats[at] = self._members.client.submit(LoadSeat, brief, workers=[at], pure=False)
        machines = set(map(machine_of, there))
        self.facts |= {"workers": len(there), "machines": len(machines)}

    def prepare(self, conninfo: str, load: Load, workers: int) -> None:
        """See `Pool.prepare`."""
        if not self._seats:
            self._begin()
        self._ahead = ahead(conninfo)
        self._load = load
        busy = self._busy = list(self._seats)[:workers]
        orders = {
            at: Prepare(conninfo, load, workers, first, len(busy)) for first, at in enumerate(busy)
        }
        try:
            self._ask(orders, 2 * START_SECONDS, lambda: None)
        except QueueError:
            self._let_go()  # the others wait for a start that does not come
            raise

    def release(
        self, seconds: float, tick: Callable[[], None], *, warm_up: float = 0.0
    ) -> tuple[float, list[Tally]]:
        """See `Pool.release`: times are the server's."""
        assert self._load is not None
        start = time.monotonic() + self._soon
        order = Release(start + self._ahead, seconds, warm_up)
        keys = {at: self._seats[at].key for at in self._busy}
        # In an open loop nobody asks whether all is done.
        counts = None if self._load.rate else _Counts(self._members.client, keys, self._load.jobs)

        def look() -> None:
            if time.monotonic() > start:
                tick()
                if counts:
                    counts.look()

        orders = dict.fromkeys(self._busy, order)
        tallies = self._ask(orders, self._soon + warm_up + seconds + 2 * GRACE, look)
        return order.start + warm_up, tallies

    def _ask(
        self,
        orders: Mapping[str, Prepare | Release],
        seconds: float,
        look: Callable[[], None],
    ) -> list[Tally]:
        """What the workers answer, all of whom are waited for."""
        client = self._members.client
        tasks = {
            at: client.get_executor(workers=[at], pure=False).submit(
                do, self._seats[at], pickle.dumps(order)
            )
            for at, order in orders.items()
        }
        limit = waits.Limit(seconds, "the cluster's workers to do their part of a load")
        try:
            while left := wait(tasks.values(), limit.left(LOOK)).not_done:
                for at in tasks.keys() - self._members.there().keys():
                    if tasks[at] in left:
                        raise self._lost(f"lost the cluster's worker {at}")
                look()
        except waits.StoppedError:
            raise
        except waits.LimitError as error:
            raise self._lost(str(error)) from None
        return [tally for at, task in tasks.items() for tally in self._answer(at, task)]

    def _answer(self, at: str, task: Future[bytes]) -> Sequence[Tally]:
        try:
            found: Sequence[Tally] = pickle.loads(task.result())  # noqa: S301 - as its seat has it
        except LateError as error:
            self._soon *= 2
            raise self._lost(f"the cluster's worker {at} {error}") from None
        except (LostError, WorkerLostError, KilledWorker, CancelledError):
            self._members.there()  # which says so where it is the scheduler that has gone
            raise self._lost(f"lost the process at the cluster's worker {at}") from None
        except QueueError:
            raise
        except QueueproofError as error:
            raise QueueproofError(f"the cluster's worker {at}: {error}") from None
        return found

    def _lost(self, why: str) -> RoundLostError:
        """What is to be raised where a load has lost a part of those who drove it."""
        self._let_go()
        self.facts["lost"] += 1
        self._tell(f"{why}: the round does not count")
        return RoundLostError(why)

    def _let_go(self) -> None:
        """End all of them, whatever they do."""
        self._members.client.cancel(list(self._seats.values()), force=True)
        self._seats.clear()


class _Counts:
    """How much of a load is done everywhere, which each of its parts is told, to see the end.

    Args:
        client: Of the cluster's scheduler.
        seats: The keys of their processes, by worker.
        jobs: To be done in all.
    """

    def __init__(self, client: Client, seats: Mapping[str, str], jobs: int) -> None:
        self._client = client
        self._seats = seats
        self._jobs = jobs
        self._done = dict.fromkeys(seats, 0)
        self._began = self._next = time.monotonic()
        self._asked: Future[dict[str, int]] | None = None

    def look(self) -> None:
        """Hear the last answer, or ask again: the more often, the nearer the end seems."""
        now = time.monotonic()
        if self._asked is not None and self._asked.done():
            self._done |= self._asked.result()
            self._asked = None
            total = sum(self._done.values())
            left = (self._jobs - total) * (now - self._began) / max(1, total)
            self._next = now + min(max(left / 2, COUNT[0]), COUNT[1])
        if self._asked is None and now >= self._next:
            loop = self._client.loop.asyncio_loop
            self._asked = asyncio.run_coroutine_threadsafe(self._ask(), loop)

    async def _ask(self) -> dict[str, int]:
        total = sum(self._done.values())
        told = {at: (key, total - self._done[at]) for at, key in self._seats.items()}
        found: dict[str, int] = await self._client.run(
            exchange, told, workers=list(told), on_error="ignore"
        )
        return found
