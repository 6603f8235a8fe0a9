"""What advises: a form with which a story is gone, and all of it outside the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from queueproof.advice.catalogue import Fix
from queueproof.advice.reading import Draft
from queueproof.advice.remedies import in_own_names
from queueproof.advice.search import _acting, advise
from queueproof.cli import run
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.judge.checker import declare
from queueproof.postgres import Server
from queueproof.queues.sqlfile import load
from queueproof.report.terminal import Output
from queueproof.run.open import open_lab
from queueproof.run.runner import Runner
from queueproof.schedule.programs import JobSpec
from queueproof.search.shrink import find
from tests.fix_labs import LabOf, offered
from tests.fix_places import BROKEN, reference
from tests.fix_plays import play
from tests.fix_queues import RACES, queue_file

CAMEL = queue_file(
    header='lease = "1 minute"',
    table="""
CREATE SCHEMA app;
CREATE TABLE app."Job" (
  "id" bigserial PRIMARY KEY, "state" text NOT NULL DEFAULT 'QUEUED', "runAfter" timestamptz,
  "lockedBy" text, "beatAt" timestamptz, "tryCount" int NOT NULL DEFAULT 0
);""",
    enqueue="""(delay)
INSERT INTO app."Job" ("runAfter") VALUES (now() + :delay) RETURNING "id" AS id;""",
    claim="""(worker)
UPDATE app."Job"
SET "state" = 'RUNNING', "lockedBy" = :worker, {beat} "tryCount" = "tryCount" + 1
WHERE "id" = ANY (ARRAY(
  SELECT "id" FROM app."Job"
  WHERE "state" = 'QUEUED' AND "runAfter" <= now()
  ORDER BY "runAfter", "id" LIMIT 1 FOR UPDATE SKIP LOCKED
))
RETURNING "id" AS id, "tryCount" AS try;""",
    complete="""(id, worker{names})!
UPDATE app."Job" SET "state" = 'DONE'
WHERE "id" = :id AND "state" = 'RUNNING' AND "lockedBy" = :worker{same};""",
    heartbeat="""(id, worker, try)!
UPDATE app."Job" SET "beatAt" = now()
WHERE "id" = :id AND "state" = 'RUNNING' AND "lockedBy" = :worker AND "tryCount" = :try;""",
    recover="""
UPDATE app."Job" SET "state" = 'QUEUED'
WHERE "id" = ANY (ARRAY(
  SELECT "id" FROM app."Job" WHERE "state" = 'RUNNING' AND "beatAt" < now() - interval '1 minute'
  FOR UPDATE SKIP LOCKED
))
RETURNING "id" AS id;""",
    jobs="""
SELECT "id" AS id, CASE "state" WHEN 'QUEUED' THEN 'queued' WHEN 'RUNNING' THEN 'running'
  ELSE 'completed' END AS state FROM app."Job";""",
)
WAITS = """\
    run_at     = now() + (1 + 0.1 * random())
                 * LEAST(interval '1 hour', interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10)),
"""
NEVER_BEAT = CAMEL.format(beat='"beatAt" = NULL,', names=", try", same=' AND "tryCount" = :try')
BY_NAME = CAMEL.format(beat='"beatAt" = now(),', names="", same="")


def advised(server: Server, path: Path, guarantee: str) -> dict[str, str]:
    """What is advised where a file breaks a guarantee."""
    queue = load(path)
    with open_lab(queue, server) as lab:
        card = check_queue(lab, select([guarantee]), seed=0, profile="quick", fail_fast=True)
    assert [one.verdict for one in card.guarantees] == ["broken"]
    found = advise(queue, card, server, lambda _what, _done: None)
    return {name: one.text for name, one in found.items()}


@pytest.mark.parametrize(
    ("text", "guarantee", "advice"),
    [
        (NEVER_BEAT, "stale-recovery", '\n+ SET "state" = \'RUNNING\', "lockedBy" = :worker, "'),
        (BY_NAME, "fencing", "\n+ -- name: complete(id, worker, try)!\n"),
        (queue_file(claim=RACES), "single-claim", " LIMIT 1\n+   FOR UPDATE SKIP LOCKED)"),
        # That a failed job is never claimed again would end the story, too.
        (reference(WAITS, ""), "backoff", "run_at = clock_timestamp() + LEAST("),
    ],
    ids=["quoted", "token", "lock", "plain life"],
)
def test_the_line_is_told(
    tmp_path: Path, server: Server, text: str, guarantee: str, advice: str
) -> None:
    """In the file's own names, and a job still lives its plain life with it."""
    path = tmp_path / "q.sql"
    path.write_text(text)
    told = advised(server, path, guarantee)[guarantee]
    assert advice in told
    assert "With this change at q.sql:" in told
    assert "this break is gone. `queueproof mend` also checks that nothing else breaks." in told


def test_what_an_author_wrote_stays(server: Server) -> None:
    """The form that replaces least is told, of those with which a story does not happen."""
    told = advised(server, BROKEN / "backoff_held_now.sql", "backoff")["backoff"]
    assert "\n+     run_at     = clock_timestamp() + (1 + 0.1 * random())\n" in told


def test_what_mends_one_story_of_several_is_not_told(server: Server) -> None:
    """The recovery ends the job then, and still gives each crash its attempt back."""
    assert advised(server, BROKEN / "retry_bound_crash_not_counted.sql", "retry-bound") == {}


def test_what_breaks_the_contrary_is_not_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that asks for no lease takes back what nobody may: no remedy for late ones."""
    path = BROKEN / "stale_recovery_wrong_unit.sql"
    text = load(path).whole.replace(":lease * 60", ":lease * 0")
    fix = Fix("recover: no lease", "recover", text, 1, last=True)
    monkeypatch.setattr("queueproof.advice.search.ranked", lambda *_: [(fix, True)])
    assert advised(server, path, "stale-recovery") == {}


DEFECT = "q.sql"
MERGE = queue_file(
    header='lease = "30 seconds"',
    table="""
CREATE TABLE item (
  id bigserial PRIMARY KEY, body jsonb NOT NULL, state text NOT NULL DEFAULT 'queued',
  round int NOT NULL DEFAULT 0, expires timestamptz
);""",
    enqueue="(payload)\nINSERT INTO item (body) VALUES (:payload) RETURNING id;",
    claim="""
WITH next AS MATERIALIZED (
  SELECT id FROM item WHERE state = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
MERGE INTO item USING next ON item.id = next.id
WHEN MATCHED THEN UPDATE SET state = 'running', round = item.round + 1,
  expires = now() + interval '30 seconds'
RETURNING item.id, item.round;""",
    complete="(id)!\nUPDATE item SET state = 'completed' WHERE id = :id AND state = 'running';",
    recover="""
UPDATE item SET state = 'queued' WHERE state = 'running' AND expires < now() RETURNING id;""",
    jobs="",
)


@pytest.fixture(autouse=True)
def _beside_others(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests share a server, and nobody is GitHub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUEUEPROOF_POSTGRES", str(server._admin))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("QUEUEPROOF_DEBUG", raising=False)


def test_a_remedy_for_a_claim_by_merge_has_its_names(tmp_path: Path) -> None:
    """The MERGE's table and answer, what its action sets, and the token as complete takes it."""
    known = Draft(MERGE, "q.sql").jobs
    assert (known.table.name, known["status"].name) == ("item", "state")
    assert known.state("running") == "'running'"
    assert (known["attempts"].name, known.token) == ("round", "round")
    text = "UPDATE jobs SET ... WHERE id = :id AND status = 'running' AND attempts = :attempt"
    (tmp_path / "q.sql").write_text(MERGE)
    told = in_own_names(text, load(str(tmp_path / "q.sql")))
    assert told == "UPDATE item SET ... WHERE id = :id AND state = 'running' AND round = :round"


def test_advice_that_fails_costs_nothing_of_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card, its story, its token, the other reports and the exit code are what they are."""
    for name in (
        "queueproof.advice.remedies._remedy",
        "queueproof.report.terminal.to_text",
        "queueproof.report.page.to_page",
        "queueproof.report.github.commands",
        "queueproof.cli.judging._tell_breaks",
        "queueproof.cli.judging._tell_numbers",
        "queueproof.advice.verdicts.judge",
        "queueproof.advice.search.mend",
    ):
        monkeypatch.setattr(name, Mock(side_effect=AttributeError("no attribute 'name'")))
    monkeypatch.setattr(Output, "is_terminal", property(lambda _: True))
    Path(DEFECT).write_text(queue_file(claim=RACES))
    arguments = [DEFECT, "--only", "single-claim", "--profile", "quick", "--jobs", "1"]
    reports = ["--html", "card.html", "--json", "card.json"]
    assert run(["mend", *arguments]) == 1
    mending = capsys.readouterr().err
    assert "queueproof: the rest of the mending: internal error: AttributeError" in mending
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run(["mutate", *arguments, *reports]) == 1
    said = capsys.readouterr()
    missing = (
        "where the SQL has another number than the header",
        "what mends single-claim, in the queue's own names",
        "the drawing of a story of single-claim",
        "the rest of the mutants",
        "what else there is to say of the file",
        "the rest of the lines for GitHub",
        "card.html is not written",
    )
    for what in missing:
        assert f"queueproof: {what}: internal error: AttributeError" in said.err
    assert said.err.count("The verdict stands without it.") == len(missing)
    for part in (
        "Broken: ",
        "How to fix it: ",
        "queueproof replay",
        f"{DEFECT} (single-claim broken",
    ):
        assert part in " ".join(said.out.split())
    (judged,) = json.loads(Path("card.json").read_text())["guarantees"]
    assert judged["verdict"] == "broken"
    assert judged["story"]
    assert judged["remedy"]
    assert not Path("card.html").exists()


def test_of_a_wait_the_operation_that_waits_is_mended(lab_of: LabOf) -> None:
    """Whoever lets it wait does what he may: a form of his that ends the story is no cure."""
    lab = lab_of(BROKEN / "non_blocking_takeover.sql")
    late = play("w1 claims; +lease; w1 fails | w2 claims", [JobSpec(bound=1)])
    failure = find(Runner(lab), declare(offered(lab)), late, "non-blocking", budget=20)
    assert failure is not None
    assert {"claim"} == _acting(failure)
