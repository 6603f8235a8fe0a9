"""A broken guarantee as text: the same words every time, in the order in which things happened."""

import textwrap
from pathlib import Path

import pytest

from queueproof.examine.calibrate import calibrate
from queueproof.examine.work import Probing
from queueproof.judge.checker import check, declare
from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.report.card import Break, Card, Judgement
from queueproof.report.forms import to_junit
from queueproof.report.page import read_card, to_page
from queueproof.report.story import of_queue, tell
from queueproof.report.terminal import Output, print_breaks, print_card
from queueproof.report.text import to_text
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import PLAIN
from queueproof.schedule.programs import JobSpec
from queueproof.search.shrink import find
from tests.fix_labs import LabOf, offered, seen
from tests.fix_places import SKIP_LOCKED, STRATEGIES
from tests.fix_plays import play
from tests.fix_queues import queue_file

SECOND = Break("w1 failed it", "fencing: ...\nBroken: w1 failed it.", "TOKEN2")
TOLD = ("w1 completed it", "fencing: ...\nBroken: w1 completed it.", "TOKEN1")
FENCING = Judgement("fencing", "broken", *TOLD, {"schedules": 2}, (SECOND,))
FURTHER = Card("q.sql", "PostgreSQL", 0, 1.0, (FENCING,))
RACE = play("w1 claims | w2 claims")

QUEUE = queue_file(
    table="CREATE TABLE jobs (id {id} PRIMARY KEY, status text NOT NULL DEFAULT 'queued');",
    claim="""
SELECT id FROM jobs WHERE status = 'queued' LIMIT 1;
UPDATE jobs
SET status = 'running'
WHERE id = ANY (:ids)
RETURNING id;""",
)

GOLDEN = """\
    single-claim: No job is held by two workers at once.

    Broken: w2 got a job that w1 already holds.

    Before: job 1 was enqueued.

        w1                                w2
        --------------------------------  --------------------------------
     1                                    claim
                                          [a] SELECT id FROM jobs WHERE
                                            status = 'queued' LIMIT 1
                                          (returned job 1)
     2  claim
        [a] SELECT id FROM jobs WHERE
          status = 'queued' LIMIT 1
        (returned job 1)
        [b] UPDATE jobs SET status =
          'running' WHERE id = ANY …
        => job 1
     3                                    [b] UPDATE jobs SET status =
                                            'running' WHERE id = ANY …
                                          => job 1

    [a]
        SELECT id FROM jobs WHERE status = 'queued' LIMIT 1

    [b]
        UPDATE jobs
        SET status = 'running'
        WHERE id = ANY (:ids)
        RETURNING id

    Why it matters: The job's effect happens twice: two mails, two payments.
"""


@pytest.mark.parametrize("column", ["bigserial", "uuid DEFAULT gen_random_uuid()"])
def test_a_story_is_stable(lab_of: LabOf, column: str) -> None:
    """A story names the guarantee, the breach, the turns, what was read, the SQL and the harm."""
    # The same is told of every run, also where the ids are random.
    lab = lab_of(QUEUE.format(id=column))
    failure = find(Runner(lab), declare(offered(lab)), RACE, "single-claim", budget=100)
    assert failure is not None
    runs = (Runner(lab).run(failure.program, failure.schedule) for _ in range(10))
    stories = {to_text(tell(run, failure.violation)) for run in (failure.run, *runs)}
    assert stories == {textwrap.dedent(GOLDEN).strip()}


def test_the_recovery_that_took_a_job_back_is_shown(lab_of: LabOf) -> None:
    """Its SQL broke the guarantee; of the drainer's other statements none is shown."""
    lab = lab_of(STRATEGIES / "broken" / "retry_bound_hard_coded.sql")
    run = Runner(lab).run(play("w1 claims, crashes", [JobSpec(bound=1)]))
    (broken,) = check(run.history, declare(calibrate(lab))).violations
    told = to_text(of_queue(tell(run, broken, PLAIN, "retry-bound"), lab.queue, lab.schema))
    assert "drainer, twice: recover => nothing; claim, at most 10 => nothing" in told
    assert "drainer: recover [b] => job 1; recover => nothing" in told
    assert "GREATEST(3, max_attempts)" in told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (("max_attempts = 3\n", "max_attempts = 90\n"), {"backoff": "88 waits measured"}),
        (
            ("claim(worker, limit", "claim(worker", "LIMIT :limit", "LIMIT 1"),
            {"claim-limit": "not tested: a claim of several jobs (this claim has no limit"},
        ),
        (
            ("-- name: jobs\nSELECT id, status AS state, attempts\nFROM jobs;", ""),
            {"claim-limit": "jobs taken and not answered were not counted: there is no `jobs`"},
        ),
    ],
)
def test_what_was_not_asked(lab_of: LabOf, changed: tuple[str, ...], told: dict[str, str]) -> None:
    """A reader is not to think that a wait was seen to overflow, or a batch to keep its limit."""
    text = SKIP_LOCKED
    for old, new in zip(changed[::2], changed[1::2], strict=True):
        text = text.replace(old, new)
    lab = lab_of(text)
    for name, words in told.items():
        seen = PROBES[name].watch(lab, calibrate(lab), 0, untold)
        said = [*(f"{n} {what}" for what, n in seen.evidence.items()), seen.remark]
        assert (seen.broken, words in "; ".join(said)) == ("", True), said


def test_a_card_has_what_a_probe_did_not_ask(lab_of: LabOf) -> None:
    """The remark stands beside the verdict that it is about."""
    backoff = seen(lab_of(SKIP_LOCKED), "backoff", Probing("backoff", 0))
    assert backoff.verdict == "holds"
    assert "2 waits measured; max_attempts = 3 allows no more" in backoff.reason


def test_every_story_of_a_guarantee_stands_in_every_report(tmp_path: Path) -> None:
    """Terminal, page and JUnit tell each with its token, and a card is read back as it was."""
    assert read_card(FURTHER.to_json()) == FURTHER
    printed = []
    for named in (True, False):
        with (tmp_path / "out").open("w+", encoding="utf-8") as file:
            print_card(Output(file), FURTHER)
            print_breaks(Output(file), FURTHER, "queueproof replay q.sql", named=named)
            file.seek(0)
            printed.append(file.read())
    assert "queueproof replay q.sql fencing.1\n" in printed[0]
    for n in (1, 2):
        assert f"q.sql: fencing.{n}: " in printed[0]
        assert f"queueproof replay q.sql TOKEN{n}\n" in printed[1]
    for report in ("".join(printed), to_page([FURTHER]), to_junit(FURTHER)):
        for told in ("completed it.", "failed it.", "TOKEN1", "TOKEN2"):
            assert told in report
