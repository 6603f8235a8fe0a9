"""What is said of a command that takes long."""

from __future__ import annotations

import pytest

from queueproof import waits
from queueproof.cli import talk

PATIENCE = 30.0  # seconds, for what takes milliseconds


@pytest.mark.parametrize(
    ("fraction", "told"),
    [(None, "37 candidates tried\n"), (0.25, "37 candidates tried, 25% done\n")],
)
def test_only_what_has_a_known_end_is_done_by_so_much(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fraction: float | None,
    told: str,
) -> None:
    """A search may end at any candidate, and says no percentage."""
    monkeypatch.setattr(talk, "QUIET_SECONDS", 0.001)
    said: list[str] = []

    def is_told() -> bool:
        said.append(capsys.readouterr().err)
        return f": {told}" in "".join(said)

    with talk.now_and_then("looking for a remedy") as note:
        note("37 candidates tried", fraction)
        waits.until(is_told, PATIENCE, "a line")
