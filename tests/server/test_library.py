"""What the command line does, called from Python."""

import pytest

from queueproof import Card, QueueproofError, check, load, replay
from tests.fix_places import DOUBLE_CLAIM, REFERENCE


def test_a_broken_queue_has_a_card_and_a_story_that_happens_again(dsn: str) -> None:
    """By its path or as a queue, nothing is raised for its defect; what is required is judged."""
    card = check(DOUBLE_CLAIM, only=["single-claim"], profile="quick", postgres=dsn)
    assert isinstance(card, Card)
    assert card.verdict == "broken"
    (judgement,) = card.guarantees
    assert judgement.replay is not None
    again = replay(load(DOUBLE_CLAIM), judgement.replay, postgres=dsn)
    assert again is not None
    assert (again.guarantee, again.story) == ("single-claim", judgement.story)
    required = ["concurrency-limit"]
    card = check(REFERENCE, only=required, require=required, profile="quick", postgres=dsn)
    assert [one.verdict for one in card.guarantees] == ["inconclusive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"profile": "glance"}, "no profile 'glance': it is one of quick, default, deep"),
        ({"jobs": 0}, "jobs is 0"),
        ({"only": ["odrer"]}, "did you mean 'order'"),
        ({"postgres": "nothing"}, "unknown PostgreSQL source"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, object], message: str) -> None:
    """As on the command line."""
    with pytest.raises(QueueproofError, match=message):
        check(DOUBLE_CLAIM, **arguments)  # type: ignore[arg-type]
