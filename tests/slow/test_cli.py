"""The command line as the public contract has it: exit codes, messages, reports, signals."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psycopg
import pytest
from jsonschema import Draft202012Validator

from queueproof.cli import main
from queueproof.cli.ends import SignalledError
from queueproof.cli.files import refuse_unwritable, write
from queueproof.cli.options import ProfileName, Where
from queueproof.cli.watching import Stamps, keep_checking, stamps, wait_for_change
from queueproof.errors import QueueproofError, ServerError
from queueproof.examine.check import check_queue
from queueproof.examine.profiles import PROFILES
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server
from queueproof.queues.sqlfile import load
from queueproof.report.card import Card, MutantJudgement
from queueproof.run.lab import Lab
from queueproof.run.session import ConnectionLostError
from tests.fix_commands import Command, Ran, without_progress
from tests.fix_places import DOUBLE_CLAIM, REFERENCE, SKIP_LOCKED, STRATEGIES
from tests.fix_programs import Begin, ends, eventually, finished, frozen
from tests.fix_queues import FREE, queue_file

BROKEN, SOUND = str(DOUBLE_CLAIM), str(REFERENCE)
INIT = ("init", "q.sql", "--from-schema")
APART = "server-clock"  # judged in a second or two, where others that hold take a whole search
MARKS = "UPDATE jobs SET status = 'running' WHERE id = ANY (:ids)"
RACING = queue_file(claim=f"{FREE};\n{MARKS} RETURNING id;")  # the smallest that breaks
SNAPSHOT, CAPPED = "old-snapshot", "concurrency-limit"  # neither is offered by the reference
ALL = f"{SNAPSHOT},{CAPPED},{APART}"
each_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
COMMAND = """
from queueproof.cli import main, talk
talk.QUIET_SECONDS = 0.1
main()
"""
LEFT = "SELECT FROM pg_database WHERE datname ~ '^queueproof_bench'"
HELD = (
    "SELECT count(*) = 3 FROM pg_stat_activity"
    " WHERE datname ~ '^queueproof_bench' AND state = 'idle in transaction'"
)
SLEEPING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'"
LOAD = ("--batch", "1", "--workers", "3", "--hold", "900", "--seconds", "60")
Running = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def check(command: Command, on_server: None, monkeypatch: pytest.MonkeyPatch) -> Command:  # noqa: ARG001
    """Run a quick check in this process, which does all of it, and looks for no mending change."""
    monkeypatch.setattr("queueproof.advice.search.advise", lambda *_: {})
    return lambda *arguments: command("check", "--profile", "quick", "--jobs", 1, *arguments)


@pytest.fixture
def start(dsn: str, begin_command: Begin) -> Begin:
    """Begin a command in a process of its own, on that server."""
    return partial(begin_command, env={**os.environ, "QUEUEPROOF_POSTGRES": dsn})


def databases(dsn: str) -> set[str]:
    """Databases that a run made."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT datname FROM pg_database WHERE datname LIKE 'queueproof%'"
        return {name for (name,) in connection.execute(query)}


def test_a_sound_queue_exits_0_and_ends_with_its_verdict(check: Command) -> None:
    """Each verdict is a plain line, the whole the last; with --json - stdout is the card alone."""
    ran = check(SOUND, "--only", APART)
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert lines[0].startswith(f"{SOUND} on PostgreSQL ")
    assert lines[0].endswith("; seed 0, profile quick")
    assert lines[2].startswith(f"{APART}: holds (")
    assert lines[-1].startswith(f"holds: {SOUND} (1 holds; ")
    assert "\x1b" not in ran.out
    ran = check(SOUND, "--only", APART, "--json", "-")
    assert ran.code == 0
    assert json.loads(ran.out)["verdict"] == "holds"
    assert ran.err.splitlines()[-1].startswith(f"holds: {SOUND} (1 holds; ")


@pytest.fixture(scope="module")
def broken(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A check of a broken queue, and the directory of its file and its reports."""
    directory = tmp_path_factory.mktemp("reports")
    queue = directory / "q.sql"
    queue.write_text(RACING)
    arguments = ["check", str(queue), "--profile", "quick", "--only", f"single-claim,{APART}"]
    for form in ("json", "html", "junit"):
        arguments += [f"--{form}", str(directory / form)]
    environment = {**os.environ, "QUEUEPROOF_POSTGRES": dsn}
    ran = finished(sys.executable, "-m", "queueproof", *arguments, env=environment)
    return Ran(ran.returncode, ran.stdout, without_progress(ran.stderr)), directory


@pytest.fixture
def card(broken: tuple[Ran, Path]) -> Any:  # noqa: ANN401 - a JSON object
    """The JSON of that check."""
    return json.loads((broken[1] / "json").read_text())


def test_a_broken_queue_exits_1_with_its_story(broken: tuple[Ran, Path]) -> None:
    """The story is on stdout, its remedy, the command that replays it, then the verdict."""
    ran, reports = broken
    assert "<title>broken: " in (reports / "html").read_text()
    assert (ran.code, ran.err) == (1, "")
    assert "single-claim: No job is held by two workers at once." in ran.out
    told = ran.out.partition("\nHow to fix it: ")[2]
    change = f"- {MARKS} RETURNING id;\n+ {MARKS} AND status = 'queued' RETURNING id;\n"
    assert told.startswith(f"Let claim also ask for status = 'queued' (q.sql:10).\n\n{change}")
    *_, again, mend, more, _, whole = ran.out.splitlines()
    assert again.endswith(f" queueproof replay {reports}/q.sql single-claim")
    assert mend.endswith(f" queueproof mend {reports}/q.sql > fix.diff")
    assert more.endswith(" queueproof explain single-claim")
    assert whole.startswith(f"broken: {reports}/q.sql (single-claim broken; 1 holds; ")


def test_the_json_card_has_the_public_shape(
    card: dict[str, Any], broken: tuple[Ran, Path], command: Command
) -> None:
    """As in the contract, key by key, and as `queueproof schema` says, which one may break."""
    queue = broken[1] / "q.sql"
    facts = ["schema", "queue", "postgres", "verdict", "seed", "profile", "seconds", "guarantees"]
    assert list(card) == facts
    assert (card["queue"], card["verdict"], card["seed"]) == (str(queue), "broken", 0)
    keys = {"id", "verdict", "reason", "story", "replay", "evidence", "more"}
    keys |= {"told", "place", "remedy", "explained", "seconds"}
    assert all(keys == set(judgement) for judgement in card["guarantees"])
    found = [(j["id"], j["verdict"], j["story"] is None) for j in card["guarantees"]]
    assert found == [("single-claim", "broken", False), (APART, "holds", True)]
    place = card["guarantees"][0]["place"]  # of the statement that took the job a second time
    assert place["file"] == str(queue)
    assert queue.read_text().splitlines()[place["line"] - 1] == f"{MARKS} RETURNING id;"
    schema = Draft202012Validator(json.loads(command("schema").out))
    schema.check_schema(schema.schema)
    schema.validate(card)
    card["guarantees"][1]["story"] = "of what holds"
    del card["seed"]
    assert sorted(error.validator for error in schema.iter_errors(card)) == ["required", "type"]


def test_the_junit_report_has_a_case_per_guarantee(broken: tuple[Ran, Path]) -> None:
    """What is broken is a failure with its story."""
    suite = ET.parse(broken[1] / "junit").getroot()[0]  # noqa: S314 - our own
    cases = suite.findall("testcase")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in cases] == ["single-claim", APART]
    assert [case.get("file") for case in cases] == [f"{broken[1]}/q.sql"] * 2
    assert (cases[0].get("line") or "").isdigit()
    assert float(cases[0].get("time", "0")) > 0
    failure = cases[0].find("failure")
    assert failure is not None
    assert "held by two workers" in (failure.text or "")


def test_accepted_breaks_are_written(check: Command, command: Command, tmp_path: Path) -> None:
    """`accept` passes today's break; its TODO is told, and so is a break that is mended."""
    file = tmp_path / "q.sql"
    file.write_text(RACING)
    file.chmod(0o640)
    first = command("accept", file, "--only", f"single-claim,{APART}", "--profile", "quick")
    assert first.code == 0
    assert f"Wrote [breaks] of {file}: single-claim. Say why each is accepted." in first.out
    assert file.stat().st_mode & 0o777 == 0o640
    line = file.read_text().splitlines().index('-- single-claim = "TODO: why"') + 1
    again = check(file, "--only", "single-claim")
    assert again.code == 0
    assert f"{file}:{line}: single-claim is accepted, and its reason still says TODO" in again.out
    assert again.out.splitlines()[-1].startswith(f"accepted: {file} (single-claim accepted; ")
    assert f"See what is accepted: queueproof replay {file} " in again.out
    replayed = command("replay", file, "single-claim")
    assert replayed.code == 1
    known = "It is accepted, because the queue declares it as known: TODO: why"
    assert replayed.out.splitlines()[-1] == known
    file.write_text(file.read_text().replace('single-claim = "TODO: why"', f'{APART} = "old"'))
    mended = check(file, "--only", f"single-claim,{APART}")
    assert mended.code == 1
    assert f"{file}:{line}: {APART} was not seen to break: where a check" in mended.out


def test_a_replay_exits_1_or_0_if_mended(
    card: dict[str, Any], broken: tuple[Ran, Path], command: Command, dsn: str
) -> None:
    """The story happens again; in the queue as it was edited since it does not, in any order."""
    token = card["guarantees"][0]["replay"]
    again = command("replay", broken[1] / "q.sql", "single-claim", "--postgres", dsn)
    assert again.code == 1
    assert "single-claim: No job is held by two workers at once." in again.out
    mended = command("replay", SOUND, token, "--postgres", dsn)
    assert mended.code == 0
    assert "The queue has changed since" in mended.out
    assert "It does not happen any more, in any order." in mended.out


def test_the_queue_that_init_writes_passes(
    command: Command, check: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer begins with something that works, is told what to do next, and loses nothing."""
    monkeypatch.chdir(tmp_path)
    ran = command("init", "jobs.sql")
    assert (ran.code, "queueproof check jobs.sql" in ran.out) == (0, True)
    # By all of them CI checks it where it tries README.md's lines, with the wheel.
    checked = check("jobs.sql", "--only", f"{APART},steady-cost")
    assert checked.code == 0, checked.out
    assert "2 hold" in checked.out
    again = command("init", "jobs.sql")
    assert (again.code, "as it is: name another file, or remove it" in again.err) == (4, True)
    assert command("init", "no/such/directory/q.sql").code == 4


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        # Given twice, an option counts twice.
        (["--only", CAPPED, "--only", SNAPSHOT], 2, "inconclusive: {} (2 not offered; "),
        (["--only", ALL, "--skip", SNAPSHOT], 0, "(1 holds; 1 not offered; "),
        (
            ["--only", ALL, "--require", f"{APART},{SNAPSHOT}"],
            2,
            "inconclusive: {} (old-snapshot inconclusive; 1 holds; 1 not offered; ",
        ),
    ],
)
def test_nothing_judged_is_no_pass(
    check: Command, tmp_path: Path, arguments: Sequence[str], code: int, told: str
) -> None:
    """Rule 26: what the queue does not offer is no pass alone, and none at all where required."""
    path = tmp_path / "card.json"
    ran = check(SOUND, *arguments, "--json", path)
    assert (ran.code, ran.err) == (code, "")
    assert told.format(SOUND) in ran.out.splitlines()[-1]
    card = json.loads(path.read_text())
    assert card["verdict"] == ("inconclusive" if code else "holds")
    verdicts = {one["id"]: one["verdict"] for one in card["guarantees"]}
    assert verdicts["concurrency-limit"] == "not-offered"


@pytest.mark.sample
@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["help", "chek"], "no part of the reference, and no command: chek; did you mean 'check'?"),
        (["check"], "name a queue, or write queues"),
        (["check", SOUND, BROKEN, "--with", SOUND], "is about one queue: name one"),
        (["check", SOUND, "--nothing"], "No such option"),
        (["check", SOUND, "--seed", "x"], "--seed"),
        (["check", "exec:", "python", "-m", "w", "--seed", "1"], 'quotes: "exec: python -m w"'),
        (["check", "exec:", "python", "nope.py"], 'in quotes: "exec: python nope.py"'),
        (["check", SOUND, "--profile", "x"], "Invalid value for '--profile': 'x' is not one of"),
        (["check", SOUND, "--only", "odrer"], "did you mean 'order'"),
        (["check", SOUND, "--only", "nonsense"], "`queueproof guarantees` lists them"),
        (["check", SOUND, "--only", ","], "with commas between"),
        (["check", SOUND, "--skip", "odrer"], "did you mean 'order'"),
        (["check", SOUND, "--require", "fence"], "did you mean 'fencing'"),
        (["check", SOUND, "--skip", "order", "--require", "order"], "order is required and left"),
        (["check", SOUND, "--only", "order", "--require", "fencing"], "fencing is required and"),
        (["check", SOUND, "--only", "order", "--skip", "order"], "nothing is left to judge"),
        (["check", SOUND, "--json", "/no/such/directory/card.json"], "cannot write /no/such"),
        (["check", SOUND, "--html", "/"], "cannot write /: it is no file; name one"),
        (["replay", "elsewhere.sql", "fencing"], "elsewhere.sql: No such file"),
        (["check", "nowhere.sql"], "or directory; begin one: queueproof init nowhere.sql\n"),
        (["watch", "no/where.sql"], "no/where.sql: No such file or directory\n"),
        (["check", SOUND, "--postgres", "nothing"], "unknown PostgreSQL source"),
        (["check", SOUND, "--postgres", " "], "the name of the PostgreSQL server is empty: write"),
        (["check", SOUND, "--postgres", ""], "the argument after --postgres is empty: is a variab"),
        (["init", ""], "the argument after init is empty"),
        (["check", SOUND, "--postgres", "host=h connect_timeout=x"], "is no whole number of seco"),
        (["init", f"{'n' * 300}.sql"], "no file may have so long a name: "),
        (["bench", SOUND, "--batch", "0"], "whole numbers from 1 on"),
        (["bench", SOUND, "--workers", "a"], "whole numbers from 1 on"),
        (["bench", SOUND, "--budget", "9"], "goes with --compare"),
        (["bench", SOUND, "--endure", "9", "--rate", "9"], "none goes with it"),
        (["bench", SOUND, SOUND, "--compare", "--batch", "1,10"], "name one --batch"),
        (["bench", SOUND, "--fail-if", "p99 > 1"], "p99 is a time"),
        (["bench", SOUND, "--fail-if", "buffers_per_claim >> 1"], "write COUNTER > NUMBER"),
        (["bench", SOUND, SOUND, "--compare", "--rounds", "9"], "limit it by --budget"),
        (["bench", SOUND, SOUND, "--compare", "--rate", "9"], "--rate does not go with it"),
        (["bench", SOUND, "--backlog", "9000000"], "at most"),
        (["bench", SOUND, "--compare"], "two queues, not 1"),
        (["bench", SOUND, SOUND, "--compare", "--budget", "soon"], "write seconds"),
        (["report", SOUND, "--html", "r.html"], f"{SOUND}: this is no"),
        (["accept", "exec: true"], "no queue file: declare its breaks yourself"),
        (["watch", "exec: true"], "watch takes a queue file (.sql): exec: true is none"),
        (["explain", "fenceing"], "unknown guarantee 'fenceing'; did you mean 'fencing'?"),
        (["check", SOUND, "--with", "exec: node worker.mjs"], "is about two queue files"),
        (["check", SOUND, "--with", "no_such.sql"], "no_such.sql: No such file"),
        (["replay", BROKEN, "x", "--export", "a.txt"], ".py (pytest) or .mmd"),
        (["replay", BROKEN, "x", "--export", "/nowhere/a.spec"], "cannot write /nowhere/a.spec"),
        (["replay", BROKEN, "x", "--export", "a.py", "--with", "b.sql"], "--export is about one"),
        (["init", "worker.js"], "end it in one of .sql, .py, .mjs"),
        ([*INIT, "no.sql"], "no such file, and no DSN; write a path, or postgresql://"),
        ([*INIT, "."], "--from-schema .: there is no .sql file in it"),
        ([*INIT, SOUND], f"{SOUND}: it is a queue file already: queueproof"),
        ([*INIT, "host=/no/where"], "--from-schema: pg_dump: error: "),
        (["init", "q.py", *INIT[2:], "no.sql"], "q.py: what --from-schema writes is a queue file"),
        (["init", "q.sql", "--table", "jobs"], "--table goes with --from-schema"),
    ],
)
def test_mistakes_exit_4_with_a_message(
    command: Command,
    arguments: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On stderr, without a traceback, before a server is started."""
    monkeypatch.chdir(tmp_path)
    ran = command(*arguments)
    assert (ran.code, ran.out) == (4, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_server")
def test_a_mistake_in_a_file_has_its_place(command: Command, tmp_path: Path) -> None:
    """`path:line: message`, and nothing before it."""
    path = tmp_path / "q.sql"
    path.write_text("-- name: schema#\nSELECT;\n-- name: clam\nSELECT 1;\n")
    told = command("check", path).err
    assert told.startswith(f"{path}:3: unknown block clam")
    assert told.endswith("queueproof help file-format\n")


def test_help_without_a_topic_lists_them(command: Command) -> None:
    """Each has a line, the commands stand in one, and nothing is wrong."""
    ran = command("help")
    assert (ran.code, ran.err) == (0, "")
    topics, _, commands = ran.out.partition("\n\n")
    told = [line.split()[0] for line in topics.splitlines()[1:]]
    assert told == ["file-format", "program", "class", "rules"]
    assert "help COMMAND, one of init, check, doctor, " in commands


def test_sql_that_the_server_rejects_exits_4(check: Command, tmp_path: Path) -> None:
    """Shown with its place in the file."""
    path = tmp_path / "q.sql"
    path.write_text(Path(SOUND).read_text().replace("RETURNING id;", "RETURNING idd;", 1))
    ran = check(path)
    line = path.read_text().partition("RETURNING idd")[0].count("\n") + 1
    assert ran.code == 4
    assert ran.err.startswith(f"{path}:{line}: PostgreSQL rejected this SQL: column")


@pytest.mark.sample
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (psycopg.OperationalError("gone"), 4, "was ended while the server went on: gone"),
        (ConnectionLostError("gone"), 4, "was ended while the server went on: gone"),
        (ExceptionGroup("flaky", [ValueError(), ConnectionLostError("x")]), 4, "went away"),
        (OSError(28, "No space left on device"), 4, "the disk is full"),
        (OSError(24, "Too many open files"), 4, "no more files may be open (ulimit -n)"),
        (MemoryError(), 4, "there is no memory left, or no more threads may run"),
        (ServerError("53100", "could not extend file"), 4, "disk of the PostgreSQL server is full"),
        (ServerError("42883", "function x() does not exist"), 4, "Does the queue's SQL change the"),
        (RuntimeError("oh\nno"), 70, "internal error: RuntimeError: oh no"),
    ],
)
def test_what_ends_a_check_has_its_exit_code(
    check: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    """One message; the ground under a run is not the queue's fault, nor an internal error."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr("queueproof.examine.check.check_queue", fail)
    ran = check(SOUND)
    assert (code, True) == (ran.code, message in ran.err)
    assert "Traceback" not in ran.err


def test_a_signal_while_building_or_importing_ends_in_order(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That takes a while before any command runs, and the imports a quarter of a second."""

    def interrupted(_app: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    assert command("guarantees").code == 130

    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "queueproof.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "queueproof.cli.app")
    monkeypatch.delattr("queueproof.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "queueproof: interrupted\n"


def test_an_internal_error_has_a_traceback(check: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --traceback or QUEUEPROOF_DEBUG; the message names the way to who has not gone it."""
    monkeypatch.setattr("queueproof.examine.check.check_queue", None)
    ran = check(SOUND)
    assert (ran.code, "  QUEUEPROOF_DEBUG=1 queueproof check " in ran.err) == (70, True)
    debugged = check(SOUND, "--traceback")
    assert (debugged.code, "Traceback" in debugged.err) == (70, True)
    assert "QUEUEPROOF_DEBUG" not in debugged.err
    monkeypatch.setenv("QUEUEPROOF_DEBUG", "1")
    assert "Traceback" in check(SOUND).err


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_check_in_order(dsn: str, start: Begin, number: signal.Signals) -> None:
    """The database goes, and there is one line instead of a traceback."""
    process = start("check", SOUND, "--profile", "deep")
    process.line()  # the header: the queue is installed
    assert databases(dsn)
    assert len(without_progress(ends(process, number)).splitlines()) == 1
    eventually(lambda: not databases(dsn))  # on a busy machine when the watchdog comes to it


@pytest.mark.usefixtures("check")
@pytest.mark.parametrize(
    ("stop", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "queueproof: interrupted after 1 of "),
        (SignalledError(signal.SIGTERM), 143, "queueproof: stopped by SIGTERM after 1 of "),
    ],
)
def test_interrupted_mutants_are_told_as_far_as_they_came(
    command: Command, monkeypatch: pytest.MonkeyPatch, stop: BaseException, code: int, message: str
) -> None:
    """The card, what became of the mutants so far, and how many there would have been."""

    def judge(_mutants: object, card: Card, **_kwargs: object) -> Iterator[Card]:
        found = MutantJudgement("claim: x", "killed", "order", "seen", "-x")
        yield replace(card, mutants=[])
        yield replace(card, mutants=[found])
        raise stop

    monkeypatch.setattr("queueproof.advice.verdicts.judge", judge)
    ran = command("mutate", SOUND, "--only", APART)
    assert (ran.code, ran.err.startswith(message)) == (code, True)
    assert f"{APART}: holds (" in ran.out
    assert ran.out.endswith("1 mutant: 1 killed, 0 equivalent, 0 survived\n\n")


@pytest.mark.parametrize("over", [False, True])
def test_an_interrupted_search_prints_what_is_mended_so_far(
    command: Command, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, over: bool
) -> None:
    """The diff that mends a guarantee is printed with what it was checked for, and not as whole."""

    def checked(*_args: object, progress: Callable[[str, float], None], **_kwargs: object) -> Card:
        progress("trying every operation once", 0.0)
        raise SignalledError(signal.SIGTERM)

    monkeypatch.setattr("queueproof.advice.search.check_queue", checked)
    queue = tmp_path / "queue.sql"
    whole = STRATEGIES / "broken" / "server_clock_local_timestamp.sql"
    extends = f'-- /// queue\n-- extends = "{whole}"\n-- ///\n'
    queue.write_text(extends if over else load(whole).whole)
    ran = command("mend", queue, "--only", APART, "--postgres", dsn)
    assert ran.code == 143
    assert ran.err.startswith("queueproof: stopped by SIGTERM at: 1 of 1 mended (server-clock)")
    _, _, told = ran.out.partition("Looking for a fix for server-clock. This may take minutes")
    assert "Mended: server-clock. " in told
    assert "until the search was interrupted" in told
    assert re.search(r"\n\+.* timestamptz", told)
    assert "It was checked for server-clock alone: " in told
    assert "All checks ran" not in told
    assert f"--- a/{os.path.relpath(whole if over else queue)}\n" in told
    assert "The diff is for `git apply`" in told


@pytest.fixture
def racing(tmp_path: Path) -> Path:
    """The smallest broken queue, as q.sql in the folder of a test's commands."""
    (tmp_path / "q.sql").write_text(RACING)
    return tmp_path / "q.sql"


@pytest.mark.parametrize(
    ("queue", "code", "redirection"),
    [
        ("q.sql", 1, "> /dev/full 2>&1"),
        *[("nowhere.sql", 4, how) for how in (">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full 2>&1")],
    ],
)
def test_no_stream_changes_the_exit_code(
    dsn: str, racing: Path, queue: str, code: int, redirection: str
) -> None:
    """Closed by the shell, or on a disk that is full: 1 means broken and nothing else."""
    only = ["--only", "single-claim", "--fail-fast", "--jobs", "1"]
    asked = ["check", queue, *only, "--profile", "quick", "--postgres", dsn]
    shell = ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-m", "queueproof"]
    ran = finished(*shell, *asked, cwd=racing.parent)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize(
    ("queue", "asked", "code"),
    [(SOUND, APART, 0), ("q.sql", "single-claim", 1), ("nowhere.sql", APART, 4)],
)
def test_leaving_readers_change_no_code(start: Begin, queue: str, asked: str, code: int) -> None:
    """As with `2>&1 | head -1`, be it the reader of the card or of the errors."""
    quickly = ("--fail-fast", "--profile", "quick", "--jobs", "1")
    process = start("check", queue, "--only", asked, *quickly)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    assert process.wait(120) == code


def test_a_report_that_cannot_be_written_exits_4(check: Command, tmp_path: Path) -> None:
    """Whatever was found: it is on the screen, and what was asked for is not in its file."""
    told = "queueproof: cannot write /dev/full: No space left on device\n"
    sound = (queue_file(), APART, "holds: ")
    checks = {"json": (RACING, "single-claim", "broken: "), "html": sound, "junit": sound}
    for form, (text, only, verdict) in checks.items():
        (tmp_path / "q.sql").write_text(text)
        ran = check(tmp_path / "q.sql", "--only", only, "--fail-fast", f"--{form}", "/dev/full")
        assert (ran.code, ran.err, verdict in ran.out) == (4, told, True)


@pytest.mark.parametrize(
    ("device", "code", "told"),
    [("full", 4, "queueproof: cannot write to stdout: No space left on device"), ("pipe", 0, "")],
)
def test_a_report_on_stdout_is_lost_where_a_reader_stays(device: str, code: int, told: str) -> None:
    """On a full disk it is an error as in a file; who closes the pipe did not want it."""
    reader, writer = os.pipe()
    os.close(reader)
    if device == "full":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "queueproof", "doctor", "--json", "-"]
    ran = finished(*command, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ran.returncode, told in ran.stderr) == (code, True)
    assert ("queueproof: " in ran.stderr) == bool(code)


@pytest.mark.sample
def test_a_report_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the file of the last run, and nothing beside it."""
    path = tmp_path / "card.json"
    write(path, "old")

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(QueueproofError, match="No space left"):
        write(path, "new")
    assert path.read_text() == "old"
    assert [path] == list(tmp_path.iterdir())


def test_a_link_is_followed_and_a_device_is_written_to(tmp_path: Path) -> None:
    """Neither is replaced by a file."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    refuse_unwritable(tmp_path / "link")
    write(tmp_path / "link", "text")
    assert (tmp_path / "target").read_text() == "text"
    refuse_unwritable(Path("/dev/null"))
    write(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_the_profiles_are_those_of_the_check() -> None:
    """The names stand twice so that --help need not import the check."""
    assert set(PROFILES) == set(ProfileName)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (["--version"], "queueproof "),
        (["help", "file-format"], "## Blocks"),
        (["help", "class"], "def claim(self, worker"),
        (["help", "rules"], "30. **Answers are checked**"),
    ],
)
def test_what_is_known_is_printed(command: Command, asked: Sequence[str], part: str) -> None:
    """It is installed, and read without a network."""
    assert ((ran := command(*asked)).code, part in ran.out) == (0, True)


@pytest.mark.sample
def test_help_imports_nothing_heavy() -> None:
    """`--help` answers at once."""
    code = (
        "import sys; from queueproof.cli import run; run(['--help']);"
        "print([m for m in ('psycopg', 'hypothesis', 'sqlglot', 'jinja2') if m in sys.modules])"
    )
    assert finished(sys.executable, "-c", code, check=True).stdout.splitlines()[-1] == "[]"


def test_benchmarks_name_what_they_lack(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install says how to get the rest."""
    monkeypatch.setitem(sys.modules, "queueproof.bench.bench", None)
    ran = command("bench", SOUND)
    assert (ran.code, "pip install '.[bench]'" in ran.err) == (4, True)


def test_a_counter_gates_a_build(command: Command, tmp_path: Path) -> None:
    """Exit 1 where a condition is true; the counters need no rounds."""
    only = ["bench", SOUND, "--rounds", "0", "--batch", "1", "--workers", "1"]
    base = tmp_path / "base.json"
    assert command(*only, "--json", str(base)).code == 0
    same = command(*only, "--fail-if", f"buffers_per_claim > 1.1 * {base}")
    assert (same.code, same.err) == (0, "")
    fewer = command(*only, "--fail-if", f"buffers_per_claim > 0.9 * {base}")
    assert fewer.code == 1
    assert "buffers_per_claim is" in fewer.err


def test_a_watched_file_is_checked_again_after_each_change(
    tmp_path: Path, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last story goes first; an error in the file waits for the next change like a verdict."""
    file = tmp_path / "queue.sql"
    file.write_text(RACING, encoding="utf-8")
    told: list[str] = []
    misspelt = RACING.replace("-- name: claim", "-- name: clam")
    edits = iter([f"{RACING}\n-- edited\n", misspelt, queue_file()])

    def edited(_: Stamps) -> None:
        told.append(capsys.readouterr().out)
        if (text := next(edits, None)) is None:
            raise KeyboardInterrupt
        file.write_text(text, encoding="utf-8")

    def judge(lab: Lab, _: Callable[[str, float], None]) -> Card:
        return check_queue(lab, select(["single-claim"]), profile="glance")

    with pytest.raises(KeyboardInterrupt):
        keep_checking(str(file), Where(dsn, trust=False), judge, edited)
    first, again, wrong, mended = told
    assert "single-claim: broken" in first
    assert "It still happens" not in first
    assert "It still happens: single-claim is broken. Now the rest." in again
    assert "clam" in wrong
    assert "single-claim:" not in wrong
    assert "The last story of single-claim does not happen any more" in mended
    assert "single-claim: holds" in mended


@each_signal
@pytest.mark.usefixtures("racing")
def test_a_signal_ends_the_waiting_for_a_change(
    dsn: str, start: Begin, number: signal.Signals
) -> None:
    """What the command says ends it does: one line, the code of the signal, nothing left behind."""
    process = start("watch", "q.sql", "--only", "single-claim", "--profile", "quick")
    while process.line() != "Waiting for a change; Ctrl-C ends it.":
        assert process.poll() is None
    assert len(without_progress(ends(process, number)).splitlines()) == 1
    eventually(lambda: not databases(dsn))


def test_a_change_of_an_included_file_is_seen(tmp_path: Path) -> None:
    """The stamps of a queue's files differ once one was written anew, and once it is gone."""
    schema, file = tmp_path / "schema.sql", tmp_path / "queue.sql"
    file.write_text(queue_file(header='include = ["schema.sql"]'))
    schema.write_text("CREATE TABLE other (id int);\n")
    files = load(file).files
    assert [one.name for one in files] == ["queue.sql", "schema.sql"]
    seen = stamps(files)
    schema.write_text("CREATE TABLE another (id int);\n")
    wait_for_change(seen)
    after = stamps(files)
    assert after != seen
    schema.unlink()
    wait_for_change(after)
    assert stamps(files)[files[1]] is None


@pytest.fixture
def running(begin: Begin, own: Server) -> Running:
    """Begins a command on a server of this module's, which says soon what it is doing."""
    where = ("--postgres", str(own._admin))
    return lambda *command: begin(sys.executable, "-c", COMMAND, *command, *where)


@each_signal
def test_a_signal_ends_a_run_whose_server_is_frozen(
    own: Server, running: Running, number: signal.Signals
) -> None:
    """Nobody answers any more, neither the runner nor who cleans up, and it ends all the same."""
    with psycopg.connect(own._admin, autocommit=True) as admin:
        (found,) = admin.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
        process = running("check", str(REFERENCE))
        asked = "SELECT pid FROM pg_stat_activity WHERE datname ~ '^queueproof_'"

        def backends() -> list[int]:
            return [pid for (pid,) in admin.execute(asked).fetchall()]

        eventually(lambda: len(backends()) > 3, "a run that is under way")
        with frozen(int(found[0].split()[0])), frozen(*backends()):  # all: none is begun any more
            said = ends(process, number)
        eventually(lambda: not backends(), "the backends of the run to end")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


@each_signal
@pytest.mark.parametrize(
    ("install", "under_way", "options"),
    [("SELECT pg_sleep(999);", SLEEPING, ()), ("", HELD, LOAD)],
    ids=["that waits for the queue's SQL", "under a load that would last"],
)
def test_a_signal_ends_a_benchmark(
    *,
    own: Server,
    running: Running,
    tmp_path: Path,
    install: str,
    under_way: str,
    options: tuple[str, ...],
    number: signal.Signals,
) -> None:
    """The last line says so, and no database is left."""
    queue = tmp_path / "queue.sql"
    queue.write_text(SKIP_LOCKED.replace("-- name: schema#", f"-- name: schema#\n{install}"))
    with psycopg.connect(own._admin, autocommit=True) as admin:
        process = running("bench", str(queue), *options)
        eventually(lambda: admin.execute(under_way).fetchone() == (True,), "what it waits for")
        said = ends(process, number)
        eventually(lambda: not admin.execute(LEFT).fetchall(), "its database to go")
    assert said.splitlines()[-1] in {"queueproof: interrupted", "queueproof: stopped by SIGTERM"}


def test_a_run_without_a_terminal_says_what_it_does(running: Running) -> None:
    """Now and then, on stderr, in a line."""
    process = running("check", str(REFERENCE))
    assert process.stderr is not None
    line = process.stderr.readline()
    ends(process, signal.SIGTERM)
    assert re.fullmatch(r"queueproof: after \d+ s: .*\n", line)
