"""A call: what is known of an operation once it has returned stays as it is."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from queueproof.history.calls import Call, LockWait


def returned() -> Call:
    """A claim with its answer."""
    call = Call(0, "claim", "w1", 1, 0.0, limit=1)
    call.ids, call.answer = ("7",), "accepted"
    call.waits += (LockWait("w2", None),)
    call.end(2, 0.5)
    return call


@pytest.mark.parametrize(
    "call",
    [returned(), replace(returned(), index=3), pickle.loads(pickle.dumps(returned()))],  # noqa: S301 - our own
    ids=["itself", "changed copy", "from another process"],
)
@pytest.mark.parametrize("name", ["answer", "ids", "returned", "waits"])
def test_a_call_that_has_returned_cannot_be_changed(call: Call, name: str) -> None:
    """Neither it nor a copy of it takes another value."""
    before = getattr(call, name)
    with pytest.raises(FrozenInstanceError, match=f"claim has returned: its {name}"):
        setattr(call, name, None)
    assert (before, 2, 0.5) == (getattr(call, name), call.returned, call.ended)


def test_a_call_that_has_not_returned_can_be_changed() -> None:
    """What is known before the answer is written down as it comes."""
    call = replace(Call(0, "fail", "w1", 1, 0.0), error="40001")
    call.answer = "retry"
    assert (call.error, call.answer, call.returned) == ("40001", "retry", None)
