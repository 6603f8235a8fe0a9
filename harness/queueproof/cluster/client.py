"""The workers of a cluster as those who do a check's units."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any

import cloudpickle
from dask import config
from distributed import Client, Security, get_worker, rpc
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from queueproof import waits
from queueproof.cluster.seat import Seat
from queueproof.errors import QueueproofError
from queueproof.examine.processes import UnableError
from queueproof.examine.work import Done, Helpers, Unit, ends
from queueproof.queues.model import Queue
from queueproof.queues.offer import Offer
from queueproof.queues.worker import WorkerQueue
from queueproof.run.lab import Lab

PART = waits.BULK  # seconds for one unit, with the start of a server before the first
JOIN = waits.BEGIN  # seconds for a worker to come where there is none
LOOK = 1.0  # seconds between two looks at who is there
CLOSE = 1.0  # seconds for a scheduler to hear that we go
TIMES = 3  # that a unit is tried, while it loses its process; of workers, the scheduler has a limit

_ADDRESS = re.compile(r"(tcp|tls)://\S+:\d+")


def refuse_address(address: str) -> None:
    """Raise QueueproofError for what can be no scheduler's address."""
    if not _ADDRESS.fullmatch(address):
        raise QueueproofError(f"--cluster {address!r}: write tcp://host:port of a scheduler")


@contextmanager
def on_cluster(address: str, lab: Lab, tell: Callable[[str], object]) -> Iterator[Helpers]:
    """The workers of a cluster, until the end of the block; nothing of ours is left there then.

    The address is that of its scheduler; `tell` is told of a worker that was lost.

    Raises:
        QueueproofError: There is no such cluster, or its workers cannot do this.
    """
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
    with joined(address) as client:
        cluster = _Cluster(client, address, lab, tell)
        yield cluster
        with suppress(QueueproofError):  # all has been done
            cluster.someone_works()


@contextmanager
def joined(address: str) -> Iterator[Client]:
    """A cluster, by its scheduler's address, as `on_cluster` has it."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what matters is told here
    for name in ("asyncio", "tornado.application"):
        logging.getLogger(name).addFilter(_matters)
    try:
        asyncio.run(_answering(address))
        client = Client(address, timeout=waits.CONNECT, set_as_default=False)
    except Exception as error:
        why = " ".join(str(error).split()) or "it is silent, or no scheduler"
        if address.startswith("tls:") and not config.get("distributed.comm.tls.client.cert"):
            why = "tls:// needs certificates: see `distributed.comm.tls` in dask's configuration"
        raise QueueproofError(
            f"no dask scheduler answers at {address} within {waits.CONNECT:g} s: {why}\n"
            "One is started by `dask scheduler`, and its workers by `dask worker ADDRESS`."
        ) from error
    try:
        yield client
    finally:
        try:
            client.close(timeout=CLOSE)  # the scheduler forgets what we asked for, and seats end
        except TimeoutError:  # it does so all the same once the connection has gone
            client.status = "closed"  # or dask waits for it again when it collects its client


async def _answering(address: str) -> None:
    """See that a scheduler answers: with who does not, dask's client stays for minutes.

    What dask raises where nobody does, in time, differs with who is there instead.
    """
    security = Security().get_connection_args("client")
    async with asyncio.timeout(waits.CONNECT):
        who = rpc(address, connection_args=security)
        try:
            found = await who.identity()
        finally:
            await who.close_rpc()
    if found.get("type") != "Scheduler":
        raise ValueError(f"it is a {found.get('type')}")


def _matters(record: logging.LogRecord) -> bool:
    """False of what only says that nobody waits any more for an answer of the cluster's."""
    given_up = (CommClosedError, CancelledError)
    return not (record.exc_info and isinstance(record.exc_info[1], given_up))


class _Cluster(Helpers):
    """Workers to which dask gives units: the next one waits there while they do the first.

    What a dead worker was at, dask's scheduler gives to another one.
    """

    shares = False

    def __init__(
        self, client: Client, address: str, lab: Lab, tell: Callable[[str], object]
    ) -> None:
        self._client, self._address, self._lab, self._tell = client, address, lab, tell
        self._executor = client.get_executor(pure=False, retries=TIMES - 1)
        self._workers: set[str] = set()  # those who were there a moment ago
        self._looked = -math.inf
        self._look()
        self.count = len(self._workers)

    def given(self, offer: Offer, seed: int) -> Any:  # noqa: ANN401 - a future of dask's
        """See `Helpers.given`: a `Seat`."""
        queue = self._lab.queue
        brief = (_shipped(queue, what) for what in (queue, (offer, seed)))
        return self._client.submit(Seat, self._lab.server.lent(), *brief, pure=False)

    def submit(self, given: Any, unit: Unit) -> Future[Any]:  # noqa: ANN401 - the same
        """See `Helpers.submit`."""
        asked: Future[Any] = self._executor.submit(_do, given, pickle.dumps(unit))
        return asked

    def result(self, future: Future[Any]) -> Done:
        """See `Helpers.result`: another process has done it where the first was lost."""
        ends(future, math.inf, self._look)
        try:
            worker, told = future.result()
        except (BrokenProcessPool, KilledWorker):
            raise QueueproofError(
                f"workers of {self._address} were lost one after the other at the same part of the"
                " check: look into their logs, and whether they have memory enough"
            ) from None
        except CancelledError:
            raise self._gone() from None
        found = pickle.loads(told)  # noqa: S301 - as `Seat.submit` has it
        if isinstance(found, UnableError):
            raise QueueproofError(f"the cluster's worker {worker}: {found}")
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Done)
        return found

    def _look(self) -> None:
        """See now and then who works there; an error where nobody does, and nobody joins."""
        if time.monotonic() > self._looked + LOOK:
            what = f"a worker to join the cluster of {self._address}"
            waits.until(self.someone_works, JOIN, what)
            self._looked = time.monotonic()

    def someone_works(self) -> bool:
        """True if there is a worker; who is lost is told, and who is another version refused."""
        if self._client.status != "running":
            raise self._gone()
        try:
            there = self._client.nthreads().keys()
        except (OSError, CancelledError):
            raise self._gone() from None
        for worker in self._workers - there:
            self._tell(f"lost the cluster's worker {worker}: what it was at is done again")
        if there - self._workers:
            _refuse_others(self._client)
        self._workers = set(there)
        return bool(there)

    def _gone(self) -> QueueproofError:
        return QueueproofError(
            f"the cluster's scheduler {self._address} went away in the middle of the work, so there"
            " is no result"
        )


def _do(seat: Seat, unit: bytes) -> tuple[str, bytes]:
    """Do a unit at a worker, by its seat: the worker's address, and what comes of it.

    A process that was killed, or has not done it in time, is a BrokenProcessPool.
    """
    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    future = seat.submit(unit)

    def end_where_unwanted() -> None:
        if task.state == "cancelled":  # its client has gone
            seat.kill()

    if not ends(future, PART, end_where_unwanted):
        seat.kill()
    try:
        return worker.address, future.result()
    finally:
        # Its error holds this frame, which held it: the seat would stay until somebody looks for
        # cycles, and who is idle does not.
        del future


def _refuse_others(client: Client) -> None:
    """Raise QueueproofError for a worker of another version than this process."""
    found = client.get_versions(packages=["queueproof"])
    here = _version(found["client"])
    for at, of_worker in found["workers"].items():
        if (there := _version(of_worker)) != here:
            raise QueueproofError(
                f"the cluster's worker {at} has {there}, and here it is {here}: the same would not"
                " be found. Install the same there."
            )


def _version(found: dict[str, dict[str, str | None]]) -> str:
    python = ".".join(str(found["host"]["python"]).split(".")[:2])
    return f"Python {python} and queueproof {found['packages']['queueproof'] or '(none)'}"


def _shipped(queue: Queue, what: object) -> bytes:
    """A queue or what it brings, with the module of its class where it has one of its own."""
    queue.digest  # noqa: B018 - from its source, which stands here
    kinds = type(queue).__mro__
    names = {kind.__module__ for kind in kinds[: kinds.index(Queue)]}
    modules = [sys.modules[name] for name in names if name.split(".")[0] != "queueproof"]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(what))
    except Exception as error:
        raise QueueproofError(
            f"{queue.name} cannot be sent to the cluster's workers: {error}. Its module holds"
            " something that stays in this process; check it with --jobs N."
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
