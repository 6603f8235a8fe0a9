"""A server in a container of our own, by testcontainers."""

from __future__ import annotations

import os
import secrets
import sys
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.errors import ServerUnavailableError, to_install
from queueproof.postgres.server import Conninfo, Started, options, settings
from queueproof.postgres.watchdog import Watchdog

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

PORT = 5432  # inside the container
LOG_TAIL = 15  # lines


def start(watchdog: Watchdog, image: str, *, durable: bool) -> Started:
    """Start a container of an image that behaves like the official one, `postgres`.

    Raises:
        ServerUnavailableError: testcontainers, Docker or the image is not there, or the
            container does not become a server.
    """
    try:
        from docker.errors import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
            APIError,
            DockerException,
        )
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - an extra
    except ImportError:
        raise ServerUnavailableError(
            f"--postgres container needs testcontainers: {to_install('container')}"
        ) from None
    try:
        container = DockerContainer(image)
    except DockerException as error:
        raise ServerUnavailableError(
            "Docker does not answer: start it (`docker info` must succeed), or use --postgres"
            f" embedded, which needs none.\nDocker's client says: {error}"
        ) from None
    password = secrets.token_hex(16)
    # the watchdog must know the name before there is anything of that name
    name = f"queueproof-{os.getpid()}-{secrets.token_hex(8)}"  # whose it is, for who finds it
    watchdog.ask("container", name=name, path=sys.path)
    container.with_name(name).with_exposed_ports(PORT).with_env("POSTGRES_PASSWORD", password)
    container.with_command(["postgres", *options(settings(durable=durable))])

    def started() -> Conninfo:
        conninfo = make_conninfo(
            "",
            host=container.get_container_host_ip(),
            port=container.get_exposed_port(PORT),
            user="postgres",
            password=password,
            dbname="postgres",
            connect_timeout=round(waits.CONNECT),
        )
        _wait(container, conninfo)
        return Conninfo(conninfo)

    def restart() -> Conninfo:
        running = container.get_wrapped_container()
        try:
            running.kill("SIGKILL")
            running.wait(timeout=waits.GONE)
            running.start()
            return started()
        except (APIError, TimeoutError) as error:
            raise ServerUnavailableError(
                f"the container from image {image} was killed and did not come back: {error}"
            ) from None
        finally:
            container.get_docker_client().client.close()

    try:
        container.start()
        conninfo = started()
    except APIError as error:
        raise ServerUnavailableError(
            f"Docker cannot start a container from image {image}: {error.explanation or error}\n"
            f"Does `docker pull {image}` succeed? Another image: --postgres container:IMAGE"
        ) from None
    except TimeoutError:  # testcontainers' own as well, where the container ended at once
        log = b"".join(container.get_logs()).decode(errors="replace").strip().splitlines()
        raise ServerUnavailableError(
            f"the container from image {image} does not become a PostgreSQL server; its log ends:\n"
            + "\n".join(log[-LOG_TAIL:])
        ) from None
    finally:
        container.get_docker_client().client.close()
    return Started(conninfo, restart)


def _wait(container: DockerContainer, conninfo: str) -> None:
    """Wait for the server to let us in; TimeoutError if it does not, or its container has ended.

    The `PostgresContainer` of testcontainers asks once a second, and two minutes long for a
    container that has ended.
    """
    limit = waits.Limit(waits.IMAGE, "the container's server")
    running = container.get_wrapped_container()
    while True:
        try:
            waits.LimitedConnection.open(conninfo).close()
        except (psycopg.OperationalError, waits.LimitError):
            running.reload()
            if running.status != "running" or limit.is_over():
                raise TimeoutError from None
            time.sleep(0.05)
        else:
            return
