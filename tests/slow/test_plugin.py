"""The pytest plugin: silent in other people's projects, complete where the scenarios are run."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from queueproof.guarantees.catalogue import CATALOGUE
from tests.fix_places import ROOT, text_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("on_server")
SCENARIOS = "--pyargs", "queueproof.scenarios", "-p", "no:cacheprovider"
HEAVY = ("psycopg", "hypothesis", "sqlglot", "typer", "rich", "jinja2")


def run(pytester: pytest.Pytester, *arguments: object) -> pytest.RunResult:
    """Take a quick look by the scenarios, somewhere else than here."""
    quick = (*SCENARIOS, "--queueproof-profile", "quick")
    return pytester.runpytest_subprocess(*quick, *map(str, arguments), timeout=200)


def passed(result: pytest.RunResult, **counts: int) -> None:
    """See that so many tests passed, failed and were skipped, whatever was deselected."""
    found = result.parseoutcomes()
    assert {name: found[name] for name in found.keys() - {"deselected"}} == counts


@pytest.fixture
def mine(pytester: pytest.Pytester) -> Path:
    """A sound queue of somebody's."""
    return pytester.makefile(".sql", mine=text_of("skip_locked"))


def test_other_projects_may_have_options_of_the_same_name(pytester: pytest.Pytester) -> None:
    """`--queue` and `--postgres` are not ours where the scenarios are not run."""
    adds = "for name in ('--queue', '--postgres'): parser.addoption(name)"
    pytester.makeconftest(f"def pytest_addoption(parser):\n    {adds}\n")
    pytester.makepyfile("def test_one(request): assert request.config.option.queue == 'theirs'")
    result = pytester.runpytest_subprocess("--queue", "theirs")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*PostgreSQL*")


def test_other_projects_pay_nothing(pytester: pytest.Pytester) -> None:
    """No import beside pytest's own, no fixture, no marker, no server."""
    pytester.makepyfile(
        "import sys\n"
        "def test_one(request):\n"
        f"    assert not [name for name in {HEAVY} if name in sys.modules]\n"
        "    assert not request.config.pluginmanager.hasplugin('queueproof-examiner')\n"
    )
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess("--fixtures")
    assert not re.search(r"^(server|lab|queue|seed|verdict)\b", result.stdout.str(), re.MULTILINE)


def test_scenarios_beside_a_copy_of_the_package_are_refused_once(pytester: pytest.Pytester) -> None:
    """One usage error names both ways to run them, however many tests are named."""
    shutil.copytree(ROOT / "scenarios", pytester.path / "scenarios")
    for named in ("scenarios", "scenarios/test_server_rules.py"):
        result = pytester.runpytest_subprocess(named)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (told,) = filter(None, [*result.outlines, *result.errlines])
        assert told.startswith("ERROR: queueproof is installed as a copy: pytest --pyargs ")


def test_the_header_names_queues_server_and_seed(pytester: pytest.Pytester) -> None:
    """What a report needs to be understood stands at its top."""
    result = run(pytester, "-k", "test_server_clock and nowait", "--queueproof-seed", 7)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "queueproof: those of strategies/; seed 7, profile quick",
            "server: PostgreSQL *fsync=*",
            "nowait  1 holds",
        ]
    )


def test_collecting_starts_no_server(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--collect-only` lists the matrix: a guarantee by those queues that offer it."""
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "nothing is started")
    result = run(pytester, "--collect-only", "-q", "-m", "thorough or not thorough")
    assert result.ret == 0
    lines = result.stdout.str()
    assert "test_stale_recovery[hold_open]" in lines
    assert "test_concurrency_limit[skip_locked]" not in lines
    assert "test_concurrency_limit[concurrency_limit]" in lines
    assert "test_every_defect_is_found[order_lifo]" in lines


def test_a_broken_queue_fails_with_its_story(pytester: pytest.Pytester) -> None:
    """The failure is the story and the command that replays it, not a traceback of ours."""
    path = pytester.makefile(".sql", mine=text_of("broken/order_lifo"))
    result = run(pytester, "--queue", path, "-k", "test_order")
    passed(result, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{path}: order: Jobs that are free are claimed in the declared order.",
            f"*queueproof replay {path} *",
            "mine  order broken",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_workers_of_xdist_find_the_same_on_one_server(pytester: pytest.Pytester, dsn: str) -> None:
    """Each queue is judged by one of them, and the summary tells of all."""
    for name in ("broken/server_clock_local_timestamp", "skip_locked"):
        pytester.makefile(".sql", **{Path(name).name: text_of(name)})
    queues = "--queue", "server_clock_local_timestamp.sql", "--queue", "skip_locked.sql"
    arguments = "-k", "test_server_clock or test_concurrency"
    results = [run(pytester, *queues, *arguments, "-v", "-n", count) for count in (0, 2)]
    line = r"^(?:server_clock_local_timestamp|skip_locked) .*"
    told = [re.findall(line, one.stdout.str(), re.MULTILINE) for one in results]
    assert told[0] == [
        "server_clock_local_timestamp  server-clock broken; 1 not offered",
        "skip_locked                   1 holds; 1 not offered",
    ]
    assert sorted(told[0]) == sorted(told[1])
    judged_by = re.findall(r"^\[(gw\d)\] .*::\w+\[(\w+)\]", results[1].stdout.str(), re.MULTILINE)
    named = sorted(queue for _, queue in set(judged_by))
    assert named == ["server_clock_local_timestamp", "skip_locked"]
    for one in results:
        passed(one, passed=1, failed=1, skipped=2)
    with psycopg.connect(dsn) as connection:
        left = connection.execute("SELECT datname FROM pg_database WHERE datname ~ '^queueproof'")
        assert left.fetchall() == []


def test_somebodys_queue_is_judged_alone(pytester: pytest.Pytester, mine: Path) -> None:
    """What is about our own queues is deselected: each guarantee is asked of it, by its id."""
    result = run(pytester, "--queue", mine, "--collect-only", "-q")
    found = re.findall(r"::test_(\w+)(.*)", result.stdout.str())
    assert sorted(found) == sorted((id_.replace("-", "_"), "[mine]") for id_ in CATALOGUE)


def test_what_is_skipped_or_required_is_so(pytester: pytest.Pytester, mine: Path) -> None:
    """A guarantee is deselected where it is to be, and skipped where it is not offered."""
    arguments = "--queue", mine, "-k", "server_clock or concurrency"
    result = run(pytester, *arguments, "--queueproof-skip", "server-clock, no-lost-job", "-rs")
    passed(result, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no concurrency_limit is declared"])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED  # nothing judged is no pass
    result = run(pytester, *arguments, "--queueproof-require", "server-clock,concurrency-limit")
    passed(result, passed=1, failed=1)
    result.stdout.fnmatch_lines(["*mine.sql: inconclusive: no concurrency_limit is declared"])


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        ("server-clock", "declared in \\[breaks\\] but not seen to break"),
        ("single-claim", "server-clock: "),
    ],
)
def test_a_declared_break_must_be_seen(pytester: pytest.Pytester, breaks: str, reason: str) -> None:
    """A break that is not seen fails; so does one that is seen and not declared."""
    name = "skip_locked" if breaks == "server-clock" else "broken/server_clock_local_timestamp"
    text = text_of(name)
    header = f'-- [breaks]\n-- {breaks} = "for the test"\n-- ///\n\n-- name: schema'
    pytester.makefile(".sql", mine=text.replace("-- ///\n\n-- name: schema", header))
    result = run(pytester, "--queue", "mine.sql", "-k", "test_server_clock")
    passed(result, failed=1)
    result.stdout.re_match_lines([f".*{reason}"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue", "nowhere.sql"], "nowhere.sql: No such file"),
        (["--postgres", "nothing"], "unknown PostgreSQL source"),
        (["--queueproof-profile", "x"], "invalid choice"),
        (["--queueproof-skip", "odrer"], "did you mean 'order'"),
        (["--queueproof-require", "fence"], "did you mean 'fencing'"),
        (["-k", "test_order", "--queueproof-require", "fencing"], "no test that is left asks for"),
        (["-n", "1", "-k", "order", "--queueproof-require", "fencing"], "no test that is left"),
    ],
)
def test_mistakes_exit_4(pytester: pytest.Pytester, arguments: list[str], message: str) -> None:
    """Exit code 4, pytest's own for it and ours, and one message."""
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = result.stderr.str() + result.stdout.str()
    assert message in told
    assert "Traceback" not in told


def test_a_server_that_cannot_be_had_is_told_once(
    pytester: pytest.Pytester, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends there, and not each of its tests."""
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", "postgresql://nobody@localhost:1/x")
    result = run(pytester, "--queue", mine)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert str(result.stdout).count("nobody listens at localhost:1") == 1


@pytest.mark.sample
def test_an_unusable_queue_fails_with_its_place(pytester: pytest.Pytester) -> None:
    """What PostgreSQL rejects is shown where it stands."""
    text = text_of("skip_locked")
    pytester.makefile(".sql", mine=text.replace("RETURNING id;", "RETURNING idd;", 1))
    result = run(pytester, "--queue", "mine.sql", "-k", "test_order")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["mine.sql:*: PostgreSQL rejected this SQL: column*"])
