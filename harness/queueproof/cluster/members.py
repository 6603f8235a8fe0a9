"""A cluster's scheduler, and who works there."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager

from dask import config
from distributed import Client, Security, rpc
from distributed.comm import CommClosedError

from queueproof import waits
from queueproof.errors import QueueproofError

JOIN = waits.BEGIN  # seconds for a worker to come where there is none
LOOK = 1.0  # seconds between two looks at who is there
CLOSE = 1.0  # seconds for a scheduler to hear that we go

_ADDRESS = re.compile(r"(tcp|tls)://\S+:\d+")


def refuse_address(address: str) -> None:
    """Refuse what is no address of a scheduler.

    Raises:
        QueueproofError: It is none.
    """
    if not _ADDRESS.fullmatch(address):
        raise QueueproofError(f"--cluster {address!r}: write tcp://host:port of a scheduler")


@contextmanager
def joined(address: str) -> Iterator[Members]:
    """A cluster, until the end of the block; nothing of ours is left there then.

    Args:
        address: Of its scheduler: `tcp://host:port`.

    Raises:
        QueueproofError: There is no such cluster.
    """
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
    members = Members(client, address)
    try:
        yield members
    finally:
        members.leave()
        client.close(timeout=CLOSE)  # the scheduler forgets what we asked for, and seats end


async def _answering(address: str) -> None:
    """See that a scheduler answers: with who does not, dask's client stays for minutes.

    Raises:
        Exception: Nobody does, in time; what dask raises differs with who is there instead.
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


class Members:
    """Who works at a cluster.

    Args:
        client: Of its scheduler.
        address: Of the same.

    Attributes:
        client: The same.
        address: The same.
    """

    def __init__(self, client: Client, address: str) -> None:
        self.client = client
        self.address = address
        self._left = False
        self._look = threading.Lock()
        self._looked = -math.inf
        self._living: Mapping[str, int] = {}

    def leave(self) -> None:
        """Have nobody wait for them any more."""
        self._left = True

    def some(self) -> Mapping[str, int]:
        """Those who are there, with their threads, once there is one.

        Raises:
            LimitError: None came.
        """
        limit = waits.Limit(JOIN, f"a worker to join the cluster of {self.address}")
        while not (there := self.there()):
            time.sleep(limit.left())
        return there

    def there(self) -> Mapping[str, int]:
        """Those who were there a moment ago, with their threads.

        Raises:
            StoppedError: Nobody wants to know any more.
            QueueproofError: The scheduler has gone, or a worker is another version.
        """
        if self._left:
            raise waits.StoppedError("what the cluster was wanted for has ended")
        with self._look:
            if time.monotonic() > self._looked + LOOK:
                gone = self.client.status != "running"
                try:
                    there: Mapping[str, int] = {} if gone else self.client.nthreads()
                except (OSError, CancelledError):
                    gone = True
                if gone:
                    raise QueueproofError(
                        f"the cluster's scheduler {self.address} went away in the middle of the"
                        " work, so there is no result"
                    )
                if not there.keys() <= self._living.keys():
                    _refuse_others(self.client)
                self._living, self._looked = there, time.monotonic()
            return self._living


def _refuse_others(client: Client) -> None:
    """Refuse workers of another version than this process.

    Raises:
        QueueproofError: There is one.
    """
    found = client.get_versions(packages=["queueproof"])
    versions = {at: _version(found["workers"][at]) for at in found["workers"]}
    here = _version(found["client"])
    for at, there in versions.items():
        if there != here:
            raise QueueproofError(
                f"the cluster's worker {at} has {there}, and here it is {here}: the same would not"
                " be found. Install the same there."
            )


def _version(found: dict[str, dict[str, str | None]]) -> str:
    python = ".".join(str(found["host"]["python"]).split(".")[:2])
    return f"Python {python} and queueproof {found['packages']['queueproof'] or '(none)'}"
