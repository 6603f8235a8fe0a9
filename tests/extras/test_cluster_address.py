"""An address of a cluster where no scheduler answers is one message, in time."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from queueproof import cli, waits
from queueproof.cluster.client import _matters, joined
from queueproof.errors import Exit, QueueproofError

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that says the same to everybody, or nothing, and keeps the line open."""
    said: bytes = request.param
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lines = []

        def serve() -> None:
            with suppress(OSError):  # it is closed at the end
                while True:
                    line, _ = listening.accept()
                    lines.append(line)
                    line.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for line in lines:
            line.close()


def test_what_can_be_no_address_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a file that is not there is looked at before."""
    assert cli.run(["check", "no such file.sql", "--cluster", "localhost"]) == Exit.UNUSABLE
    told = "queueproof: --cluster 'localhost': write tcp://host:port of a scheduler\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("stranger", [b"", HTTP, b"\0" * 64], indirect=True, ids=repr)
def test_who_is_no_scheduler_is_told_soon(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody silent, who speaks HTTP, or something else: dask's client itself would stay."""
    monkeypatch.setattr(waits, "CONNECT", 1.0)
    told = rf"no dask scheduler answers at tcp://127\.0\.0\.1:{stranger} within 1 s: "
    with pytest.raises(QueueproofError, match=told), joined(f"tcp://127.0.0.1:{stranger}"):
        pass


def test_tls_needs_certificates() -> None:
    """What is missing is named, where it is set."""
    told = r"tls:// needs certificates: see `distributed\.comm\.tls`"
    with pytest.raises(QueueproofError, match=told), joined("tls://127.0.0.1:9"):
        pass


@pytest.mark.parametrize(("error", "told"), [(CancelledError(), False), (ValueError(), True)])
def test_what_nobody_waits_for_any_more_is_not_logged(error: Exception, *, told: bool) -> None:
    """An end in the midst of a check is told in one line, without a traceback of tornado's."""
    facts = (type(error), error, None)
    record = logging.LogRecord("tornado.application", logging.ERROR, "", 0, "", None, facts)
    assert _matters(record) is told
