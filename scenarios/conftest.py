"""Which queues the scenarios judge, and what a test may ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import pytest

from queueproof import Queue
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee
from queueproof.postgres import Server
from queueproof.pytest_plugin import Examiner, Verdict, refuse_unnamed
from queueproof.pytest_plugin import examiner as examiner_of
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import SqlFileQueue
from queueproof.run.lab import Lab

from .matrix import PROFILE, SEED, Recorded, Replays
from .matrix import replays as replays_of
from .matrix import strategy as strategy_of
from .stage import Stage
from .stage import stage as stage_of

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
SOUND = STRATEGIES / "sound"
RESULTS = STRATEGIES.parent / "results"
# The reference, and the naive queue, which breaks what takes a closer look. The other strategies
# are judged at a glance where nobody asks for what is thorough.
NAIVE = "select_then_update"
WHOLE = {"skip_locked", NAIVE}


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Say once what is wrong where nothing here can run, and not of each test."""
    refuse_unnamed(config, Path(__file__).resolve().parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test about a queue once for each queue of which it can be asked."""
    if "queue" not in metafunc.fixturenames:
        return
    examiner = examiner_of(metafunc.config)
    queues = examiner.named
    marker = metafunc.definition.get_closest_marker("guarantee")
    guarantee = CATALOGUE[marker.args[0]] if marker else None
    if not queues:
        queues = [queue for queue in _ours() if guarantee is None or _offers(queue, guarantee)]
        if not examiner.thorough:
            names = {queue.name for queue in queues if Path(queue.name).stem not in WHOLE}
            examiner.profiles.update(dict.fromkeys(names, "glance"))
    parameters = [_parameter(queue, guarantee, examiner) for queue in queues]
    metafunc.parametrize("queue", parameters)


def _parameter(
    queue: Queue, guarantee: Guarantee | None, examiner: Examiner
) -> pytest.ParameterSet:
    path = Path(queue.name)
    aside = is_aside(path, queue, guarantee.id if guarantee else "")
    later = aside or (examiner.thorough and path.stem not in WHOLE)
    return pytest.param(queue, marks=[pytest.mark.thorough] if later else [], id=path.stem)


def is_aside(path: Path, queue: Queue, guarantee: str) -> bool:
    """Whether a question is left to the thorough scenarios.

    Those are the designs of sound/, and of a strategy that breaks something all else.
    """
    folder = path.resolve().parent
    return folder == SOUND or (
        folder == STRATEGIES and bool(queue.breaks) and guarantee not in queue.breaks
    )


@cache
def _ours() -> list[Queue]:
    """Read once, for every test about a queue is asked of them."""
    reference = STRATEGIES / "skip_locked.sql"
    others = {*STRATEGIES.glob("*.sql"), *STRATEGIES.glob("sound/*.sql")} - {reference}
    return [
        strategy_of(path.relative_to(STRATEGIES).with_suffix("").as_posix(), STRATEGIES)
        for path in (reference, *sorted(others))
    ]


def _offers(queue: Queue, guarantee: Guarantee) -> bool:
    assert isinstance(queue, SqlFileQueue)
    # Which claims end inside their transaction only a run shows; of ours, those that begin one and
    # do not commit it.
    ends = {one.text for one in queue.blocks["claim"].statements}
    held = "BEGIN" in ends and "COMMIT" not in ends
    return guarantee.needs(Offer(queue, held=held)) is None


@pytest.fixture(scope="session")
def examiner(pytestconfig: pytest.Config) -> Examiner:
    """What judges queues, each once per run."""
    return examiner_of(pytestconfig)


@pytest.fixture(scope="session")
def server(examiner: Examiner) -> Server:
    """The run's PostgreSQL."""
    return examiner.server


@pytest.fixture(scope="session")
def seed(examiner: Examiner) -> int:
    """Of random programs and schedules."""
    return examiner.seed


@pytest.fixture(scope="session")
def strategy() -> Callable[[str], Queue]:
    """A queue of strategies/ by its path there, without `.sql`."""
    return lambda name: strategy_of(name, STRATEGIES)


@pytest.fixture(scope="session")
def results() -> Path:
    """Where `make results` has written; a wheel has none."""
    if not RESULTS.exists() and not (RESULTS.parent / "pyproject.toml").exists():
        pytest.skip("results/ is in a checkout only")
    return RESULTS


@pytest.fixture(scope="session")
def recorded(examiner: Examiner, results: Path) -> Recorded:
    """The verdicts of results/conformance.md."""
    if (examiner.seed, examiner.profile) != (SEED, PROFILE):
        pytest.skip(f"the matrix is of profile {PROFILE} and seed {SEED}")
    path = results / "conformance.json"
    if not path.exists():
        pytest.fail(f"{path} is missing: `make results` writes it", pytrace=False)
    found: Recorded = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def replays(results: Path) -> Replays:
    """The tokens of the stories that `make results` has recorded."""
    return replays_of(results)


@pytest.fixture
def install(examiner: Examiner) -> Callable[[Queue], AbstractContextManager[Lab]]:
    """Install a queue in a database of its own, for as long as a block runs."""
    return examiner.lab


@pytest.fixture
def verdict(request: pytest.FixtureRequest, queue: Queue, examiner: Examiner) -> Verdict:
    """What is found on the test's guarantee."""
    marker = request.node.get_closest_marker("guarantee")
    return examiner.verdict(queue, marker.args[0])


@pytest.fixture(scope="session")
def database(server: Server) -> Iterator[str]:
    """Of the scenarios on PostgreSQL itself."""
    with server.database() as conninfo:
        yield conninfo


@pytest.fixture
def stage(request: pytest.FixtureRequest, database: str) -> Iterator[Stage]:
    """Four queued jobs, nobody there yet, and the test's sentence above the timeline."""
    title = str(request.function.__doc__).partition("\n")[0]
    queue = strategy_of("skip_locked", STRATEGIES)
    assert isinstance(queue, SqlFileQueue)
    with stage_of(database, f"{title} [{request.node.name}]", queue) as opened:
        opened.prepare()
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was asked of the queues with a planted defect, and what the naive queue does."""
    passed = [
        report.nodeid.partition("[")[0].rpartition("::")[2]
        for report in terminalreporter.stats.get("passed", ())
    ]
    searched = passed.count("test_a_defect_is_found"), passed.count("test_every_defect_is_found")
    again = passed.count("test_a_recorded_story_happens_again")
    if again or any(searched):
        terminalreporter.section("planted defects")
        terminalreporter.write_line(
            f"{max(searched)} found by a search, {again} recorded stories happened again"
            " (-m thorough searches all)"
        )
    examiner = examiner_of(terminalreporter.config)
    if again and not examiner.thorough:
        terminalreporter.write_line(
            f"{', '.join(sorted(WHOLE))} were judged whole, the other strategies at a glance"
            " (-m thorough judges all whole)"
        )
    naive = next((card for name, card in examiner.cards.items() if Path(name).stem == NAIVE), None)
    for lesson in naive.guarantees if naive else ():
        if lesson.id == "single-claim" and lesson.story:
            terminalreporter.section(f"why a claim must lock: {NAIVE}")
            terminalreporter.write_line(lesson.story)
