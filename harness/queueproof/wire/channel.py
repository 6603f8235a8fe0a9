"""Sockets that never block."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

_READ = 2**18  # bytes at once


class Channel:
    """A socket that never blocks, and what waits to be written to it.

    Args:
        among: Where it stands as long as it is open.
        receive: Takes what comes; nothing at the end.
        drained: Called when the other side has read something that had to wait.
    """

    def __init__(
        self,
        among: set[Channel],
        selector: selectors.BaseSelector,
        opened: socket.socket,
        receive: Callable[[bytes], None],
        drained: Callable[[], None],
    ) -> None:
        opened.setblocking(False)  # noqa: FBT003 - the standard library's
        if opened.family != socket.AF_UNIX:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._among = among
        self._selector = selector
        self._socket = opened
        self._receive = receive
        self._drained = drained
        self._out = bytearray()
        self._reading = True
        self._ending = False
        self._mask = 0
        among.add(self)
        self._register()

    @property
    def waiting(self) -> int:
        """Bytes that wait for the other side to read."""
        return len(self._out)

    def read(self, *, on: bool) -> None:
        """Take from the other side, or let it wait."""
        if self._reading != on:
            self._reading = on
            self._register()

    def send(self, data: bytes) -> None:
        """Write what the other side takes, and keep the rest."""
        if self not in self._among or self._ending:
            return
        if not self._out:
            data = data[self._write(data) :]
        if data:
            self._out += data
            self._register()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # It is gone. Reading says so too, and in order: what it had sent comes first.
            return len(data)

    def _register(self) -> None:
        wanted = selectors.EVENT_READ if self._reading and not self._ending else 0
        if self._out:
            wanted |= selectors.EVENT_WRITE
        if wanted == self._mask:
            return
        if not self._mask:
            self._selector.register(self._socket, wanted, self._act)
        elif wanted:
            self._selector.modify(self._socket, wanted, self._act)
        else:
            self._selector.unregister(self._socket)
        self._mask = wanted

    def _act(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            del self._out[: self._write(self._out)]
            self._register()
            if self._ending and not self._out:
                self.close()
            self._drained()
        if mask & selectors.EVENT_READ and self in self._among and not self._ending:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._receive(data)

    def end(self) -> None:
        """Close once everything is written."""
        self._ending = True
        if self._out:
            self._register()
        else:
            self.close()

    def close(self) -> None:
        """Close now; what was not written is lost."""
        if self in self._among:
            self._among.remove(self)
            if self._mask:
                self._selector.unregister(self._socket)
            self._socket.close()
