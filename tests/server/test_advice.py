"""What advises stands outside the verdict, and speaks in the queue's own names."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from queueproof.advice.reading import Draft
from queueproof.advice.remedies import in_own_names
from queueproof.advice.search import _acting
from queueproof.cli import run
from queueproof.judge.checker import declare
from queueproof.postgres import Server
from queueproof.report.terminal import Output
from queueproof.run.runner import Runner
from queueproof.schedule.programs import JobSpec
from queueproof.search.shrink import find
from tests.fix_labs import LabOf, offered
from tests.fix_places import BROKEN
from tests.fix_plays import play
from tests.fix_queues import RACES, queue_file

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


def test_a_remedy_for_a_claim_by_merge_has_its_names() -> None:
    """The MERGE's table and answer, what its action sets, and the token as complete takes it."""
    draft = Draft(MERGE, "q.sql")
    known = draft.jobs
    assert (known.table.name, known["status"].name) == ("item", "state")
    assert known.states["running"] == "'running'"
    assert (known["attempts"].name, known.token) == ("round", "round")
    text = "UPDATE jobs SET ... WHERE id = :id AND status = 'running' AND attempts = :attempt"
    told = in_own_names(text, draft)
    assert told == "UPDATE item SET ... WHERE id = :id AND state = 'running' AND round = :round"


def test_advice_that_fails_costs_nothing_of_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card, its story, its token, the other reports and the exit code are what they are."""
    for name in (
        "queueproof.advice.remedies.remedy_of",
        "queueproof.report.terminal.to_text",
        "queueproof.report.page.to_page",
        "queueproof.report.github.commands",
        "queueproof.cli.judging._tell_breaks",
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
