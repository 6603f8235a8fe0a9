"""The workers of a cluster as those who do a check's units."""

from __future__ import annotations

import pickle
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import NamedTuple

import cloudpickle
from distributed import Future as Task
from distributed.scheduler import KilledWorker

from queueproof import waits
from queueproof.cluster.members import Members, joined, refuse_address
from queueproof.cluster.orders import Brief, SeatError
from queueproof.cluster.seat import LostError, Seat, do
from queueproof.errors import QueueproofError
from queueproof.examine.work import Done, Draws, Exploration, Helpers, Unit
from queueproof.queues.model import Queue
from queueproof.queues.offer import Offer
from queueproof.queues.worker import WorkerQueue
from queueproof.run.lab import Lab

PART = waits.BULK  # seconds for one unit, with the start of a server before the first
TIMES = 3  # that a part is tried, while it loses its worker
AT_ONCE = 2  # parts that a worker is given: the next one waits there while it does the first
MOST = 16  # units in a part: a way there and back takes as much as half a unit


@contextmanager
def on_cluster(address: str, lab: Lab, tell: Callable[[str], object]) -> Iterator[Helpers]:
    """The workers of a cluster, until the end of the block; nothing of ours is left there then.

    Args:
        address: Of its scheduler: `tcp://host:port`.
        lab: Where the queue is installed here.
        tell: Told of a worker that was lost.

    Raises:
        QueueproofError: There is no such cluster, or its workers cannot do this.
    """
    refuse_address(address)
    if not lab.server.ours:
        raise QueueproofError(
            "--cluster: each worker starts a server of its own, and a DSN names one for all. Leave"
            " --postgres and $QUEUEPROOF_POSTGRES out, or check with --jobs N on that server."
        )
    if isinstance(lab.queue, WorkerQueue):
        raise QueueproofError(
            f"{lab.queue.name} is a program that stands on this machine, and the cluster's workers"
            " may not have it: check it with --jobs N"
        )
    with joined(address) as members:
        cluster = _Cluster(members, lab, tell)
        try:
            yield cluster
        finally:
            cluster.close()


class _Wanted(NamedTuple):
    """A unit that is to be done, and what comes of it."""

    unit: Unit
    future: Future[Done]

    @property
    def is_long(self) -> bool:
        """Whether it takes longer than most."""
        unit = self.unit
        if isinstance(unit, Exploration):
            return unit.conditions.killed
        return not isinstance(unit, Draws)


class _Cluster(Helpers):
    """Threads, each of which has some units done by a worker, and waits for them."""

    shares = False

    def __init__(self, members: Members, lab: Lab, tell: Callable[[str], object]) -> None:
        self._members = members
        self._client = members.client
        self._lab = lab
        self._tell = tell
        self._changed = threading.Condition()
        self._wanted: deque[_Wanted] = deque()
        self._given: Counter[str] = Counter()  # parts by worker
        self._seats: dict[str, Task] = {}
        self.count = len(members.some())
        self._threads = ThreadPoolExecutor(self.count * AT_ONCE, "cluster")

    def close(self) -> None:
        """End the threads."""
        self._members.leave()
        for one in self._wanted:
            one.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def given(self, offer: Offer, seed: int) -> bytes:
        """See `Helpers.given`."""
        return pickle.dumps(
            Brief(
                self._lab.server.source,
                self._lab.server.trusted,
                self._lab.server.version,
                _shipped(offer, seed),
            )
        )

    def submit(self, given: bytes, unit: Unit) -> Future[Done]:
        """See `Helpers.submit`."""
        wanted = _Wanted(unit, Future())
        self._wanted.append(wanted)
        self._threads.submit(self._do_some, given)
        return wanted.future

    def _do_some(self, given: bytes) -> None:
        """Do some of the units that are wanted, unless others have taken all of them."""
        if not (part := self._part()):
            return
        try:
            found = self._done(given, pickle.dumps([one.unit for one in part]))
        except BaseException as error:  # noqa: BLE001 - whoever waits for them raises it
            for one in part:
                one.future.set_exception(error)
            return
        for one, done in zip(part, found, strict=True):
            if isinstance(done, Done):
                one.future.set_result(done)
            else:
                one.future.set_exception(done)

    def _part(self) -> Sequence[_Wanted]:
        """The next units, so many that there are as many parts left for each who does them.

        What takes longer than others goes alone.
        """
        part: list[_Wanted] = []
        with self._changed:
            most = min(MOST, len(self._wanted) // (2 * AT_ONCE * self.count))
            while self._wanted and len(part) < max(1, most):
                if part and self._wanted[0].is_long:
                    break
                one = self._wanted.popleft()
                if one.future.set_running_or_notify_cancel():
                    part.append(one)
                if one.is_long:
                    break
        return part

    def _done(self, given: bytes, part: bytes) -> Sequence[Done | Exception]:
        """The results of some units, once a worker has lived to tell them."""
        for _ in range(TIMES):
            with self._worker() as worker:
                found = self._done_at(worker, given, part)
            if found is not None:
                done: list[Done | Exception] = pickle.loads(found)  # noqa: S301 - as its seat has it
                return done
        raise QueueproofError(
            f"{TIMES} workers of {self._members.address} were lost one after the other at the same"
            " part of the check: look into their logs, and whether they have memory enough"
        )

    def _done_at(self, worker: str, given: bytes, part: bytes) -> bytes | None:
        """The results of some units; None where the worker or its process was lost.

        Raises:
            QueueproofError: The worker cannot do it, or there is no scheduler any more.
        """
        at = self._client.get_executor(workers=[worker], pure=False)
        seat = self._seat(worker, given)
        # An executor's future can be waited for with a limit again and again; dask's own is let
        # go of in the middle of its answer then.
        task: Future[bytes] = at.submit(do, seat, part)
        limit = waits.Limit(PART, "a worker of the cluster")
        try:
            while not wait([task], limit.left()).done and worker in self._members.there():
                pass
        except waits.StoppedError:
            raise
        except waits.LimitError:
            pass  # it is frozen
        if task.done():
            try:
                return task.result()
            except SeatError as error:
                raise QueueproofError(f"the cluster's worker {worker}: {error}") from None
            except (LostError, KilledWorker, CancelledError):
                self._members.there()  # which says so where it is the scheduler that has gone
        task.cancel()
        with self._changed:
            if self._seats.get(worker) is not seat:
                return None  # whoever lost another part there has seen to it
            del self._seats[worker]
        self._client.cancel([seat], force=True)
        self._tell(f"lost the cluster's worker {worker}: what it was at is done again")
        return None

    def _seat(self, worker: str, given: bytes) -> Task:
        """The process at a worker, which begins with its first unit."""
        with self._changed:
            if worker not in self._seats:
                brief = pickle.loads(given)  # noqa: S301 - our own
                self._seats[worker] = self._client.submit(Seat, brief, workers=[worker], pure=False)
            return self._seats[worker]

    @contextmanager
    def _worker(self) -> Iterator[str]:
        """A worker that has the fewest parts, and not yet as many as it may have.

        Raises:
            LimitError: There is none any more.
        """
        with self._changed:
            while not (free := [one for one in self._members.some() if self._given[one] < AT_ONCE]):
                self._changed.wait(waits.SLICE)
            worker = min(free, key=lambda one: (self._given[one], one))
            self._given[worker] += 1
        try:
            yield worker
        finally:
            with self._changed:
                self._given[worker] -= 1
                self._changed.notify()


def _shipped(offer: Offer, seed: int) -> bytes:
    """What a queue brings, with the module of its class where it has one of its own.

    Raises:
        QueueproofError: It cannot be sent.
    """
    queue = offer.queue
    queue.digest  # noqa: B018 - from its source, which stands here
    kinds = type(queue).__mro__
    names = {kind.__module__ for kind in kinds[: kinds.index(Queue)]}
    modules = [sys.modules[name] for name in names if name.split(".")[0] != "queueproof"]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        sent: bytes = cloudpickle.dumps((offer, seed))
    except Exception as error:
        raise QueueproofError(
            f"{queue.name} cannot be sent to the cluster's workers: {error}. Its module holds"
            " something that stays in this process; check it with --jobs N."
        ) from error
    else:
        return sent
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
