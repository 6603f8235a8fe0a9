"""The remedy of a break: a form in the queue's own names with which its story is gone."""

from pathlib import Path

import pytest

from queueproof.advice.catalogue import Fix
from queueproof.advice.search import advise
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server
from queueproof.queues.sqlfile import load
from queueproof.run.open import open_lab
from tests.fix_places import BROKEN, reference
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


def advised(server: Server, path: Path, *guarantees: str) -> dict[str, str]:
    """The advice where a file breaks guarantees, by their ids."""
    queue = load(path)
    with open_lab(queue, server) as lab:
        alone = len(guarantees) == 1
        card = check_queue(lab, select(guarantees), seed=0, profile="quick", fail_fast=alone)
    assert {one.verdict for one in card.guarantees} == {"broken"}
    found = advise(queue, card, server, lambda _what, _done: None)
    return {name: one.text for name, one in found.items()}


@pytest.mark.parametrize(
    ("text", "guarantee", "advice"),
    [
        (NEVER_BEAT, "stale-recovery", '\n+ SET "state" = \'RUNNING\', "lockedBy" = :worker, "'),
        (BY_NAME, "fencing", "\n+ -- name: complete(id, worker, try)!\n"),
        pytest.param(
            *(queue_file(claim=RACES), "single-claim", " LIMIT 1\n+   FOR UPDATE SKIP LOCKED)"),
            marks=pytest.mark.sample,
        ),
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
    assert " (q.sql:" in told.partition("```diff")[0]
    assert (
        "was tried: the break is gone. `queueproof mend` also checks that nothing else breaks."
        in told
    )


def test_one_change_is_told_for_the_breaks_that_it_ends(tmp_path: Path, server: Server) -> None:
    """A claim that locks nothing breaks two guarantees; the lock is told for both."""
    path = tmp_path / "q.sql"
    beginning = "the outer scan.\nWHERE id = ANY (ARRAY(", "the outer scan.\nWHERE id IN ("
    end = "what others hold.\n  FOR UPDATE SKIP LOCKED\n))", "what others hold.\n)"
    path.write_text(reference(*beginning, *end))
    told = advised(server, path, "single-claim", "non-blocking")
    assert told["single-claim"] == told["non-blocking"]
    assert "Add FOR UPDATE SKIP LOCKED to claim, and write = ANY (ARRAY(…))" in told["non-blocking"]


def test_what_an_author_wrote_stays(server: Server) -> None:
    """The form that replaces least is told, of those with which a story does not happen."""
    told = advised(server, BROKEN / "backoff_held_now.sql", "backoff")["backoff"]
    assert "\n+     run_at     = clock_timestamp() + (1 + 0.1 * random())\n" in told


def test_what_mends_one_story_of_several_is_told_with_what_mends_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what breaks the contrary is no remedy."""
    # The recovery alone would end the job then, and still give each crash its attempt back.
    path = BROKEN / "retry_bound_crash_not_counted.sql"
    told = advised(server, path, "retry-bound")["retry-bound"]
    assert "\n-     max_attempts = max_attempts + 1," in told
    assert "CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END" in told
    # A recovery that asks for no lease takes back what nobody may: no remedy for late ones.
    path = BROKEN / "stale_recovery_wrong_unit.sql"
    text = load(path).whole.replace(":lease * 60", ":lease * 0")
    fix = Fix("recover: no lease", "recover", text, 1, last=True)
    monkeypatch.setattr("queueproof.advice.search.ranked", lambda *_: [(fix, True)])
    assert advised(server, path, "stale-recovery") == {}
