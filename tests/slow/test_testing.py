"""What exported tests run on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import testing
from queueproof.errors import QueueproofError
from tests.fix_places import REFERENCE, STRATEGIES
from tests.fix_plays import play


def example(queue: Path) -> Callable[[], None]:
    """The test in the module's docstring, about a queue."""
    told = (testing.__doc__ or "").partition("    from ")[2].partition("\nA `Program`")[0]
    code = textwrap.dedent(f"    from {told}").replace("jobs.sql", str(queue))
    names: dict[str, Callable[[], None]] = {}
    exec(code, names)  # noqa: S102 - the documentation's own
    return names["test_single_claim"]


def test_what_a_queue_does_not_offer_is_no_pass() -> None:
    """A program without an operation of the queue's shows nothing; an unknown one is named."""
    queue = STRATEGIES / "sound" / "sessions.sql"
    with pytest.raises(AssertionError, match="does not offer heartbeat, which the program does"):
        testing.must_hold("single-claim", queue, program=play("w1 beats"))
    explodes = play("w1 beats")._replace(stages=((("w1", (testing.Do("explode"),)),),))  # type: ignore[arg-type]
    with pytest.raises(QueueproofError, match='kind is "explode", and not one of: enqueue, cl'):
        testing.must_hold("single-claim", queue, program=explodes)


@pytest.mark.sample
def test_the_example_passes_and_fails() -> None:
    """It tells the story of the queue without a lock, and nothing of the reference."""
    example(REFERENCE)()
    with pytest.raises(AssertionError, match="w1 got a job that w2 already holds"):
        example(STRATEGIES / "select_then_update.sql")()
