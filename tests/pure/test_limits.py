"""A limit ends every wait, and is given once more where this process could not look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from queueproof import waits


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass of a clock that stands still otherwise."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def let_pass(seconds: float) -> None:
        clock.now += seconds

    return let_pass


def waited(limit: waits.Limit, passes: Callable[[float], None], seconds: float) -> None:
    """Wait as everybody does: as long as may be, and look again."""
    while seconds > 0:
        wanted = min(limit.left(), seconds)
        passes(wanted)
        seconds -= wanted


def test_a_limit_is_over_when_it_says(passes: Callable[[float], None]) -> None:
    """Looks that come in time find it over, and nothing is given."""
    limit = waits.Limit(30.0, "an answer")
    waited(limit, passes, 29.9)
    assert not limit.is_over()
    with pytest.raises(waits.LimitError, match="waited 30 s for an answer"):
        waited(limit, passes, 0.2)


def test_a_limit_that_ran_out_while_nobody_looked_is_given_once_more(
    passes: Callable[[float], None],
) -> None:
    """After SIGSTOP and SIGCONT there are as many seconds as before, and that once."""
    limit = waits.Limit(30.0, "an answer")
    waited(limit, passes, 10.0)
    passes(3600.0)
    waited(limit, passes, 29.9)
    assert not limit.is_over()
    passes(3600.0)
    with pytest.raises(waits.LimitError, match="waited 30 s for an answer"):
        limit.left()


def test_a_look_that_is_a_little_late_changes_nothing(passes: Callable[[float], None]) -> None:
    """A busy machine is no stopped one."""
    limit = waits.Limit(1.0, "an answer")
    limit.left()
    passes(1.0 + waits.LATE / 2)
    assert limit.is_over()


def test_a_long_slice_is_waited_for(passes: Callable[[float], None]) -> None:
    """Who waits for all of it in one go looks when it is over, and not late."""
    limit = waits.Limit(30.0, "an answer")
    passes(limit.left(100.0))
    assert limit.is_over()


def test_a_stop_that_leaves_time_gives_none(passes: Callable[[float], None]) -> None:
    """What is left of the limit is enough."""
    limit = waits.Limit(30.0, "an answer")
    waited(limit, passes, 10.0)
    passes(10.0)
    with pytest.raises(waits.LimitError):
        waited(limit, passes, 10.1)
