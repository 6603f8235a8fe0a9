"""The scenarios as a pytest run: options, a header, one card per queue, a summary.

pytest loads this module in every run of every project that has queueproof installed. It does
nothing there: no option, no fixture, no import but pytest's own, unless the scenarios are run.
"""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from queueproof.postgres import Server
    from queueproof.queues.model import Queue
    from queueproof.report.card import Card, Judgement
    from queueproof.run.lab import Lab

_PACKAGE = "queueproof.scenarios"
_NAME = "queueproof-examiner"
# What goes to pytest-xdist's workers, and what comes from them.
_SERVER, _CARDS, _UNASKED = (f"queueproof_{one}" for one in ("server", "cards", "unasked"))


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options, where the scenarios are run: `--queue` may be taken in other projects."""
    config = cast("pytest.Config", pluginmanager.get_plugin("pytestconfig"))
    if not _are_run(config.invocation_params.args, config.invocation_params.dir):
        return
    from queueproof.errors import SERVERS

    group = parser.getgroup("queueproof", "queueproof: a PostgreSQL job queue, proved or broken")
    group.addoption(
        "--queue",
        action="append",
        metavar="QUEUE",
        help="Judge this queue instead of ours: a file, or package.module:Class. Repeatable.",
    )
    group.addoption("--postgres", metavar="SOURCE", help=f"{', '.join(SERVERS)} or a DSN.")
    group.addoption(
        "--queueproof-trust",
        action="store_true",
        help="Let the queues' SQL do what a superuser may: on a server of ours, and by the DSN of"
        " one on a server that has other people's databases.",
    )
    group.addoption(
        "--queueproof-seed",
        type=int,
        default=0,
        metavar="N",
        help="Of random programs and schedules: same seed, same verdicts.",
    )
    group.addoption(
        "--queueproof-profile",
        choices=("quick", "default", "deep"),
        help="How thorough; quick for our own queues, default for yours.",
    )
    group.addoption(
        "--queueproof-skip",
        default="",
        metavar="ID,...",
        help="Deselect what asks for these guarantees.",
    )
    group.addoption(
        "--queueproof-require",
        default="",
        metavar="ID,...",
        help="Fail, instead of skipping, where one of these cannot be judged: the queue does not"
        " offer it, or a tool that it needs is not here.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set up what the scenarios need, where they are run."""
    if hasattr(config.option, "queueproof_profile"):
        for marker in (
            "guarantee(id): the guarantee that a scenario asks for",
            "thorough: left out of the quick profile, for time",
            "node: needs Node.js and what `npm ci` in strategies/peers installs",
        ):
            config.addinivalue_line("markers", marker)
        config.pluginmanager.register(Examiner(config), _NAME)
        if _is_worker(config):  # which may be killed
            from queueproof.examine.processes import end_without_parent

            end_without_parent()


def _is_worker(config: pytest.Config) -> bool:
    """True if this is a process of pytest-xdist's that runs some of the tests."""
    return hasattr(config, "workerinput")


def refuse_unnamed(config: pytest.Config, home: Path) -> None:
    """Refuse scenarios that are collected without being what is run.

    Args:
        config: Of the run.
        home: Where they stand.

    Raises:
        pytest.UsageError: They are not those of the package, or were not named.
    """
    if config.pluginmanager.hasplugin(_NAME):
        return
    if home not in _homes():
        raise pytest.UsageError(
            f"queueproof is installed as a copy: pytest --pyargs {_PACKAGE} in another directory,"
            " or `make venv` and .venv/bin/pytest scenarios here"
        )
    raise pytest.UsageError("name the scenarios: pytest scenarios, or --pyargs " + _PACKAGE)


def examiner(config: pytest.Config) -> Examiner:
    """The examiner that judges the queues of this run."""
    return cast("Examiner", config.pluginmanager.get_plugin(_NAME))


def _homes() -> list[Path]:
    """The folders where the package has its scenarios."""
    spec = find_spec(_PACKAGE)
    return [Path(home).resolve() for home in (spec and spec.submodule_search_locations) or ()]


def _are_run(arguments: Sequence[str], directory: Path) -> bool:
    """True if the scenarios, or some of them, are named on the command line."""
    homes = _homes()
    named = [arg.partition("::")[0] for arg in arguments if not arg.startswith("-")]
    if any(f"{name}.".startswith(f"{_PACKAGE}.") for name in named):
        return True
    places = [(directory / name).resolve() for name in named or [""]]
    return any(place.is_relative_to(home) for place in places for home in homes)


class Verdict:
    """The verdict on one guarantee of one queue, as a test asks for it.

    Attributes:
        queue: The queue.
        judgement: What was found.
    """

    def __init__(self, queue: Queue, judgement: Judgement) -> None:
        self.queue = queue
        self.judgement = judgement

    def must_hold(self) -> None:
        """Pass where the guarantee holds, or breaks as the queue itself declares."""
        judgement = self.judgement
        match judgement.verdict:
            case "holds" if judgement.id in self.queue.breaks:
                self._fail(f"{judgement.reason}. Drop it from [breaks], or look more thoroughly.")
            case "holds" | "accepted":
                return
            case "not-offered":
                pytest.skip(judgement.reason)
            case "inconclusive":
                self._fail(f"inconclusive: {judgement.reason}")
            case "broken":
                again = f"queueproof replay {shlex.quote(self.queue.name)}"
                told = [
                    f"{one.story}\n\nOnce more:\n  {again} {one.replay}"
                    for one in judgement.stories
                ]
                self._fail("\n\n".join(told or [judgement.reason]))

    def _fail(self, message: str) -> NoReturn:
        pytest.fail(f"{self.queue.name}: {message}", pytrace=False)


class Examiner:
    """Judges each queue once per run, on one server, for all the tests that ask.

    Args:
        config: Of the run.

    Attributes:
        cards: What was found, by the name of the queue.
        profiles: Of queues, by name, that are judged less thoroughly than the run says.
        thorough: Whether what takes long is asked for as well.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._resources = ExitStack()
        self.cards: dict[str, Card] = {}
        self._asked: dict[str, set[str]] = {}
        self._begun: dict[str, Callable[[], Card]] = {}
        self._submitted: list[Future[Card]] = []
        self._waiting: dict[str, Queue] = {}  # that `begin` is to begin
        self.seed: int = config.option.queueproof_seed
        self.profile: str = config.option.queueproof_profile or (
            "default" if config.option.queue else "quick"
        )
        self.profiles: dict[str, str] = {}
        self.thorough = self.profile != "quick" or "thorough" in config.option.markexpr
        self._skipped = _ids(config, "skip")
        self._required = _ids(config, "require")

    @cached_property
    def named(self) -> list[Queue]:
        """The queues of `--queue`."""
        from queueproof.queues.resolve import resolve

        with _usage_errors():
            return [resolve(name) for name in self._config.option.queue or ()]

    @cached_property
    def server(self) -> Server:
        """The run's server, started at its first use and gone at the end."""
        from queueproof.postgres import open_server
        from queueproof.postgres.sources import borrowed

        if _is_worker(self._config):
            lent = pickle.loads(self._config.workerinput[_SERVER])  # type: ignore[attr-defined]  # noqa: S301 - our controller's
            return self._resources.enter_context(borrowed(lent))
        try:
            with _usage_errors():
                option = self._config.option
                opened = open_server(option.postgres, trust=option.queueproof_trust)
                return self._resources.enter_context(opened)
        except pytest.UsageError as error:  # told once, and not by each test that wants it
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        from queueproof.examine.processes import processes

        return self._resources.enter_context(processes(self.server))

    def lab(self, queue: Queue) -> AbstractContextManager[Lab]:
        """A queue installed on the run's server until the end of the block."""
        from queueproof.run.open import open_lab

        return open_lab(queue, self.server)

    def verdict(self, queue: Queue, guarantee: str) -> Verdict:
        """The verdict on one guarantee of a queue.

        A queue is judged once, for all that the collected tests ask of it.

        Args:
            queue: The queue.
            guarantee: An id.
        """
        return Verdict(queue, next(j for j in self.card(queue).guarantees if j.id == guarantee))

    def card(self, queue: Queue) -> Card:
        """All that the collected tests ask of a queue; every guarantee where they ask nothing."""
        card = self.cards.get(queue.name)
        if card is None:
            self.begin()
            judged = self._begun.pop(queue.name, None) or partial(self._judge_here, queue)
            with _failures(queue):
                card = judged()
            self.cards[queue.name] = card
        return card

    def _judge_here(self, queue: Queue) -> Card:
        """Judge a queue that is the only one, or that a process of pytest-xdist asks about."""
        from queueproof.machine import processors

        beside_others = _is_worker(self._config) and len(self._asked) > 1
        jobs = 1 if beside_others else processors()
        judge = self._judge(queue, self._asked.get(queue.name))
        return judge(server=self.server, jobs=jobs)

    def begin(self) -> None:
        """Begin to judge all queues that the collected tests ask about, beside each other."""
        waiting, self._waiting = self._waiting, {}
        if len(waiting) > 1:
            self._begun = {
                name: self.submit(queue, self._asked[name]) for name, queue in waiting.items()
            }

    def submit(
        self,
        queue: Queue,
        guarantees: Iterable[str] | None = None,
        profile: str | None = None,
        *,
        fail_fast: bool = False,
    ) -> Callable[[], Card]:
        """Begin to judge a queue beside others; call what is returned for the card.

        A worker of pytest-xdist, which has others beside it, judges it when it is asked for.

        Args:
            queue: Which.
            guarantees: By which; None for all.
            profile: How thoroughly; None as this run.
            fail_fast: Whether to end at the first break.
        """
        judge = partial(self._judge(queue, guarantees, profile), fail_fast=fail_fast)
        future = None if _is_worker(self._config) else self._pool.submit(judge)
        self._submitted += [future] if future else []

        @cache
        def card() -> Card:
            with _failures(queue):
                return future.result() if future else judge(server=self.server)

        return card

    def _judge(
        self, queue: Queue, guarantees: Iterable[str] | None, profile: str | None = None
    ) -> Callable[..., Card]:
        from queueproof.examine.check import judge

        return partial(
            judge,
            queue,
            None if guarantees is None else sorted(guarantees),
            seed=self.seed,
            profile=profile or self.profiles.get(queue.name, self.profile),
            required=self._required,
        )

    def pytest_report_header(self) -> list[str]:
        """Name the queues, the server and the seed."""
        queues = ", ".join(queue.name for queue in self.named) or "those of strategies/"
        lines = [f"queueproof: {queues}; seed {self.seed}, profile {self.profile}"]
        if not self._config.option.collectonly:
            lines.append(f"server: {self.server.label}")
        return lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect tests about our queues where `--queue` names others, and what is too slow."""
        kept = [item for item in items if self._wants(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> object:  # noqa: ANN401 - of pytest-xdist
        """Send what is asked of a queue to one worker, which judges it once."""
        if config.getoption("dist") != "load":
            return None
        from xdist.scheduler import LoadScopeScheduling

        class ByQueue(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
            """By what stands in a test's brackets: with pytest 9.2 xdist's own groups are none."""

            def _split_scope(self, nodeid: str) -> str:
                _, bracket, parameter = nodeid.partition("[")
                return Path(parameter.rstrip("]")).name if bracket else nodeid

        return ByQueue(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 - of pytest-xdist
        """Lend the run's server to a worker of pytest-xdist."""
        node.workerinput[_SERVER] = pickle.dumps(self.server.lent())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - of pytest-xdist
        """Take over what a worker of pytest-xdist has found; one that died has found nothing."""
        sent = getattr(node, "workeroutput", {})
        if _CARDS in sent:
            self.cards.update(pickle.loads(sent[_CARDS]))  # noqa: S301 - our worker's
        if _UNASKED in sent:
            raise pytest.UsageError(sent[_UNASKED])

    def _wants(self, item: pytest.Item) -> bool:
        marker = item.get_closest_marker("guarantee")
        if marker is not None and marker.args[0] in self._skipped:
            return False
        if self.named:
            return marker is not None and "queue" in getattr(item, "fixturenames", ())
        return self.thorough or item.get_closest_marker("thorough") is None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what will be asked of each queue."""
        # Of the workers of pytest-xdist each would judge every queue.
        beside = not _is_worker(session.config)
        for item in session.items:
            marker, queue = item.get_closest_marker("guarantee"), _queue_of(item)
            if marker is not None and queue is not None:
                self._asked.setdefault(queue.name, set()).add(marker.args[0])
                if beside:
                    self._waiting[queue.name] = queue
        unasked = self._required.difference(*self._asked.values())
        if unasked:
            told = f"--queueproof-require {min(unasked)}: no test that is left asks for it"
            if beside:
                raise pytest.UsageError(told)
            # Only the run itself may end in an error of usage.
            session.config.workeroutput[_UNASKED] = told  # type: ignore[attr-defined] # xdist's
            session.items.clear()

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End with pytest's code for no tests where a queue was skipped through and through."""
        judged = [
            {judgement.verdict for judgement in card.guarantees} - {"not-offered"}
            for card in self.cards.values()
        ]
        if _is_worker(self._config):
            self._config.workeroutput[_CARDS] = pickle.dumps(self.cards)  # type: ignore[attr-defined] # xdist's
        elif self.named and exitstatus == pytest.ExitCode.OK and not all(judged):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what holds of which queue."""
        from queueproof.report.terminal import summary

        if not self.cards:
            return
        terminalreporter.section("verdicts")
        shown = {name: Path(name).stem for name in self.cards}
        width = max(map(len, shown.values()))
        for name, card in self.cards.items():
            told = summary(card.guarantees)
            terminalreporter.write_line(f"{shown[name]:<{width}}  {told}")

    def pytest_unconfigure(self) -> None:
        """Stop what is still being judged, and the server."""
        if all(future.done() for future in self._submitted):
            self._resources.close()
        else:
            with suppress(_StoppedError), self._resources:
                raise _StoppedError


class _StoppedError(Exception):
    """The run is over, and somebody is at work for it."""


def _ids(config: pytest.Config, option: str) -> set[str]:
    """The guarantees that an option names.

    Raises:
        pytest.UsageError: One is unknown.
    """
    text = str(config.getoption(f"--queueproof-{option}"))
    names = {name.strip() for name in text.split(",")} if text else set()
    if names:
        from queueproof.guarantees.catalogue import select

        with _usage_errors():
            select(names)
    return names


def _queue_of(item: pytest.Item) -> Queue | None:
    parameters = getattr(item, "callspec", None)
    return parameters.params.get("queue") if parameters else None


@contextmanager
def _failures(queue: Queue) -> Iterator[None]:
    """Show a queue that cannot be used as a failure of the test, in one message."""
    from concurrent.futures.process import BrokenProcessPool

    from queueproof.errors import QueueError

    try:
        yield
    except BrokenProcessPool:
        pytest.fail(f"{queue.name}: a process that judged queues has ended", pytrace=False)
    except QueueError as error:
        named = error.source or str(error).startswith(queue.name)
        pytest.fail(str(error) if named else f"{queue.name}: {error}", pytrace=False)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Show a user's mistake as pytest shows its own: one line, exit code 4."""
    from queueproof.errors import QueueproofError

    try:
        yield
    except QueueproofError as error:
        raise pytest.UsageError(str(error)) from error
