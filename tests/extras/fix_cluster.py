"""A cluster that tests share; what one of them ended of it is begun anew for the next."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from distributed import Client

from queueproof import waits

LONG = 120.0  # seconds: a check begins slowly on a busy machine
LOCAL = ("--host", "127.0.0.1", "--no-dashboard")


class Cluster:
    """A scheduler, and its workers.

    Attributes:
        address: Of the scheduler.
        scheduler: Its process.
        workers: Those that were begun last.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.workers: list[psutil.Popen] = []
        where = folder / "scheduler.json"
        self.scheduler = self._begin("scheduler", "--port", "0", "--scheduler-file", str(where))
        waits.until(lambda: where.exists() and "tcp://" in where.read_text(), LONG, "a scheduler")
        with Client(scheduler_file=str(where), set_as_default=False) as client:
            self.address: str = client.scheduler.address

    def _begin(self, *command: str, **environment: str) -> psutil.Popen:
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = psutil.Popen(
            [sys.executable, "-m", "dask", *command, *LOCAL],
            stdout=log,
            stderr=log,
            cwd=self._folder,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        self._stack.callback(_end, process)
        return process

    def have(self, count: int) -> None:
        """See to it that so many workers have joined, and that none is at anything."""
        self.workers = [one for one in self.workers if one.poll() is None]
        for one in self.workers[count:]:
            _end(one)
        del self.workers[count:]
        self.add(count - len(self.workers))
        self.wait_for_end(self.at_work())

    def add(self, count: int = 1, **environment: str) -> None:
        """Begin workers, and wait until these and no others have joined."""
        for _ in range(count):
            options = ("--nthreads", "1", "--no-nanny", "--death-timeout", "60")
            self.workers.append(self._begin("worker", self.address, *options, **environment))
        with Client(self.address, set_as_default=False) as client:
            waits.until(lambda: self._joined(client) == len(self.workers), LONG, "the workers")

    def _joined(self, client: Client) -> int:
        return len(client.scheduler_info(n_workers=-1)["workers"])

    def at_work(self) -> list[psutil.Process]:
        """The processes that the workers have begun, and theirs; Python's own tracker stays."""
        living = [one for one in self.workers if one.poll() is None]
        begun = [process for one in living for process in one.children(recursive=True)]
        return [one for one in begun if not any("resource_tracker" in w for w in _words(one))]

    def serving(self) -> list[psutil.Popen]:
        """The workers that have a server: some are never given a unit, on a busy machine."""
        begun = [(one, map(_words, one.children(recursive=True))) for one in self.workers]
        # By a process of its own: initdb runs `postgres`, too, and that is gone a moment later.
        helper = "postgres: checkpointer"
        return [one for one, told in begun if any(helper in " ".join(words) for words in told)]

    def wait_for_server(self) -> list[psutil.Process]:
        """Wait until a worker has a server: it is in the middle of its first unit."""
        waits.until(lambda: bool(self.serving()), LONG, "a server", look=0.05)
        return self.at_work()

    def wait_for_end(self, processes: list[psutil.Process]) -> None:
        """Wait until processes have ended, be it that nobody has asked how yet."""
        try:
            waits.until(lambda: not any(map(_lives, processes)), LONG, "their end")
        except waits.LimitError as error:
            facts = ["name", "status", "ppid", "cmdline", "create_time"]
            error.add_note(f"{[one.as_dict(facts) for one in processes if _lives(one)]}")
            raise


class Meanwhile:
    """The progress of a check that ends something once a worker is at a unit, and waits for that.

    Args:
        cluster: Where the worker is.
        end: Called once, with that.

    Attributes:
        left: The processes that were at work then.
    """

    def __init__(self, cluster: Cluster, end: Callable[[Cluster], None]) -> None:
        self._cluster = cluster
        self._end = end
        self.left: list[psutil.Process] = []

    def __call__(self, _what: str, fraction: float | None) -> None:
        """Is told of a part and how much of all is done."""
        if fraction is not None and not self.left:  # units have been given
            self.left = self._cluster.wait_for_server()
            self._end(self._cluster)


def _end(process: psutil.Popen) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _words(process: psutil.Process) -> list[str]:
    """A process' name and command line; nothing of one that has ended meanwhile."""
    try:
        return [process.name(), *process.cmdline()]
    except psutil.NoSuchProcess:
        return [""]


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Cluster]]:
    """The cluster that is there for all tests, or another one where a test ended its scheduler."""
    with ExitStack() as stack:
        made: list[Cluster] = []

        def find() -> Cluster:
            if not made or made[-1].scheduler.poll() is not None:
                made.append(Cluster(stack, tmp_path_factory.mktemp("cluster")))
            return made[-1]

        yield find


@pytest.fixture
def cluster(standing: Callable[[], Cluster]) -> Cluster:
    """A scheduler with one worker."""
    cluster = standing()
    cluster.have(1)
    return cluster
