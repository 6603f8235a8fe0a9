"""A server in a container; these need Docker and an image, and run with `pytest -m container`."""

import os
import sys

import psycopg
import pytest

from queueproof.errors import ServerUnavailableError
from queueproof.postgres import container, open_server
from tests.fix_programs import Begin, eventually, finished


def containers(process: int) -> set[str]:
    """Return the names of a process' containers, running or not; other tests have theirs."""
    mine = ("--format", "{{.Names}}", "--filter", f"name=queueproof-{process}-")
    return set(finished("docker", "ps", "--all", *mine, check=True).stdout.split())


def refused(told: str, source: str = "container") -> None:
    """See that there is no such server, and with which words."""
    with pytest.raises(ServerUnavailableError, match=told), open_server(source):
        pass


@pytest.mark.container
def test_runs_with_our_settings_and_is_gone_afterwards() -> None:
    """A container's server has the settings of the others, and the container does not stay."""
    with open_server("container", durable=True) as server:
        assert len(containers(os.getpid())) == 1
        image = os.environ.get("QUEUEPROOF_POSTGRES_IMAGE", "postgres:18")
        assert f"container:{image}" == server.source
        assert server.durable
        assert server.superuser
        assert server.label.endswith(
            f"container {image}, a throwaway server, fsync=on, synchronous_commit=on"
        )
        with server.database() as conninfo, psycopg.connect(conninfo) as connection:
            assert connection.execute("SHOW deadlock_timeout").fetchone() == ("1min",)
    assert not containers(os.getpid())


@pytest.mark.container
def test_is_gone_after_kill(run: Begin) -> None:
    """After kill -9 of the run its container is removed."""
    process = run("container")
    assert process.line()
    assert len(containers(process.pid)) == 1
    process.kill()
    eventually(lambda: not containers(process.pid))


@pytest.mark.container
def test_image_not_there() -> None:
    """An image that cannot be had is named, with what to try."""
    image = "queueproof/no-such-image:0"
    refused(f"Does `docker pull {image}` succeed", f"container:{image}")


@pytest.mark.container
def test_container_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that ends instead of becoming a server is reported at once, with its log."""
    monkeypatch.setattr(container, "settings", lambda **_: {"no_such_setting": "on"})
    refused(r"(?s)its log ends:.*no_such_setting")
    assert not containers(os.getpid())


@pytest.mark.slow  # asks for what the extra `container` installs
def test_docker_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Docker the message says how to do with or without it."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    refused(r"(?s)Docker does not answer.*embedded")


def test_extra_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without testcontainers the message says what to install."""
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    refused(r"pip install '\.\[container\]' in your clone")
