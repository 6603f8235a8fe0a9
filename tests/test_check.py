"""From a queue to a card: same seed same card, replay tokens, what makes a queue unusable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from queueproof.check import check_queue, decode_token, encode_token, replay
from queueproof.errors import QueueError, QueueproofError
from queueproof.explore.lab import Lab, open_lab
from queueproof.guarantees import select
from queueproof.postgres import Server
from queueproof.sqlfile import load

LabOf = Callable[[str], Lab]
STRATEGIES = Path(__file__).parent.parent / "strategies"

QUEUE = """
-- /// queue
{header}
-- ///

-- name: schema#
CREATE TABLE jobs (id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'queued');

-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;

-- name: claim
UPDATE jobs SET status = 'running'
WHERE id = (SELECT id FROM jobs WHERE status = 'queued' LIMIT 1 {lock})
RETURNING id;

-- name: complete(id)!
UPDATE jobs SET status = 'completed' WHERE id = :id AND status = 'running';

-- name: jobs
SELECT id, status AS state FROM jobs;
"""
PLAIN = '-- order = "none"'
BROKEN = QUEUE.format(header=PLAIN, lock="")
SOUND = QUEUE.format(header=PLAIN, lock="FOR UPDATE SKIP LOCKED")
ONLY = ("single-claim",)
SEVERAL = ("single-claim", "claim-limit", "fencing", "retry-bound", "final-state")


def test_the_same_seed_gives_the_same_card(server: Server) -> None:
    """Two checks of the reference with one seed differ in their seconds only."""
    cards = []
    for _ in range(2):
        with open_lab(load(STRATEGIES / "skip_locked.sql"), server) as lab:
            cards.append(check_queue(lab, select(SEVERAL), profile="quick", seed=3))
    one, other = (replace(card, seconds=0.0) for card in cards)
    assert one == other
    assert one.verdict == "holds"


def test_a_broken_guarantee_comes_with_a_story_that_can_be_replayed(lab_of: LabOf) -> None:
    """The token of a story tells the same story again."""
    lab = lab_of(BROKEN)
    (judgement,) = check_queue(lab, select(ONLY), profile="quick").guarantees
    assert judgement.verdict == "broken"
    assert judgement.replay is not None
    replayed = replay(lab, judgement.replay)
    assert replayed is not None
    assert replayed.story == judgement.story


def test_a_pass_comes_with_evidence(lab_of: LabOf) -> None:
    """A guarantee that holds says how often it was put to the test, and has no story."""
    (judgement,) = check_queue(lab_of(SOUND), select(ONLY), profile="quick").guarantees
    assert judgement.verdict == "holds"
    assert judgement.story is None
    assert judgement.evidence["overlapping claims"] > 0


def test_an_accepted_break_is_reported_as_accepted(lab_of: LabOf) -> None:
    """What [breaks] declares and is seen to break is accepted, with the declared reason."""
    header = '-- [breaks]\n-- single-claim = "a lesson"'
    text = QUEUE.format(header=header, lock="")
    card = check_queue(lab_of(text), select(ONLY), profile="quick")
    (judgement,) = card.guarantees
    assert judgement.verdict == "accepted"
    assert "a lesson" in judgement.reason
    assert card.verdict == "holds"


def test_a_declared_break_that_is_not_seen_says_so(lab_of: LabOf) -> None:
    """What [breaks] declares and is not seen to break holds, with that as its reason."""
    header = '-- [breaks]\n-- single-claim = "a lesson"'
    text = QUEUE.format(header=header, lock="FOR UPDATE SKIP LOCKED")
    (judgement,) = check_queue(lab_of(text), select(ONLY), profile="quick").guarantees
    assert judgement.verdict == "holds"
    assert "not seen to break" in judgement.reason


def test_what_a_queue_does_not_offer_is_not_judged(lab_of: LabOf) -> None:
    """A guarantee that needs what the queue has not is reported as not offered."""
    card = check_queue(lab_of(SOUND), select(("live-lease", "retry-bound")), profile="quick")
    assert [judgement.verdict for judgement in card.guarantees] == ["not-offered"] * 2


def test_a_token_holds_what_was_put_into_it() -> None:
    """A token is read back as it was written."""
    data = {"program": [[[0, 0.5, 1]]], "schedule": [1, 0, 2], "under": {}, "broken": "fencing"}
    token = encode_token("0123456789ab", "fencing", 7, **data)
    assert decode_token(token) == ("0123456789ab", "fencing", 7, data)


def test_a_token_of_an_older_version_is_refused() -> None:
    """A token without the conditions of its story is no internal error."""
    token = encode_token("0123456789ab", "fencing", 7, program=[], schedule=[])
    with pytest.raises(QueueproofError, match="older queueproof"):
        decode_token(token)


@pytest.mark.parametrize("token", ["", "nonsense", "A", "é", "eJwBAAD__wAAAAE"])
def test_what_is_no_token_is_refused(token: str) -> None:
    """A token that was cut or mistyped is the user's error."""
    with pytest.raises(QueueproofError, match="not a replay token"):
        decode_token(token)


def test_another_queues_token_is_refused(lab_of: LabOf) -> None:
    """A token belongs to one version of one queue."""
    lab = lab_of(BROKEN)
    (judgement,) = check_queue(lab, select(ONLY), profile="quick").guarantees
    assert judgement.replay is not None
    with pytest.raises(QueueproofError, match="another queue"):
        replay(lab_of(SOUND), judgement.replay)


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("status = 'queued' LIMIT", "status = 'waiting' LIMIT", "claim returned nothing"),
        ("AND status = 'running'", "AND status = 'queued'", "complete was refused"),
        ("SET status = 'completed'", "SET state = 'completed'", "PostgreSQL rejected this SQL"),
        ("SET status = 'completed'", "SET status = (1 / (id - id))::text", "division by zero"),
    ],
)
def test_an_operation_that_never_works_makes_a_queue_unusable(
    lab_of: LabOf, part: str, instead: str, message: str
) -> None:
    """Rule 7: what does not even work undisturbed is an error of the queue, not a verdict."""
    with pytest.raises(QueueError, match=message):
        check_queue(lab_of(SOUND.replace(part, instead)), select(ONLY), profile="quick")
