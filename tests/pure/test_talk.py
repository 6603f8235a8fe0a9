"""What is said of a command that takes long."""

import pytest

from queueproof import waits
from queueproof.cli import talk
from queueproof.examine.plan import Headway, _Part
from queueproof.examine.work import Exploration, Probing, Unit
from queueproof.schedule.conditions import PLAIN
from tests.fix_plays import play
from tests.fix_programs import PATIENCE


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
    with talk.now_and_then("looking for a remedy") as note:
        note("37 candidates tried", fraction)
        waits.until(lambda: f": {told}" in capsys.readouterr().err, PATIENCE, "a line")


def nothing() -> None:
    """Is all that a part does here."""


def test_an_examination_is_as_far_as_its_units_are_done_whoever_does_them() -> None:
    """Each unit moves the fraction by what it weighs, one that others did ahead too; never back."""
    programs = [play(f"w{n} claims") for n in range(4)]
    units: list[Unit] = [Exploration(program, PLAIN, budget=1000) for program in programs]
    parts = [_Part("a", nothing, units[:3]), _Part("b", nothing, units[3:])]
    told: list[tuple[str, float | None]] = []
    ahead: list[Unit] = []
    headway = Headway(parts, lambda what, done: told.append((what, done)), lambda: ahead)
    headway.begin(parts[0])
    headway.done(units[0])
    ahead.append(units[3])
    headway.done(units[1])
    ahead.clear()
    headway.done(units[1])
    headway.end(parts[0])  # which left one out
    headway.begin(parts[1])
    headway.done(units[3])
    headway.end(parts[1])
    assert [what for what, _ in told] == [*"aaaabb"]
    assert [done for _, done in told] == pytest.approx([0, 0.25, 0.75, 0.75, 0.75, 1])


def test_a_probe_counts_by_how_far_it_looks_and_is() -> None:
    """At default a quarter of the time, at quick next to none; and nothing goes back within it."""
    told: list[float | None] = []
    for level in (0, 1):
        units = [Probing("backoff", level), Probing("steady-cost", 0)]
        part = _Part("a", nothing, units)
        headway = Headway([part], lambda _what, done: told.append(done))
        headway.begin(part)
        headway.done(units[0])
    assert told == pytest.approx([0, 0.5, 0, 20 / 21])
    told.clear()
    unit = Probing("steady-cost", 0)
    headway = Headway([_Part("a", nothing, [unit])], lambda _what, done: told.append(done))
    for fraction in (0.2, 0.5, 0.4):
        headway.within(unit, fraction)
    headway.done(unit)
    assert told == pytest.approx([0.2, 0.5, 0.5, 1])


@pytest.mark.parametrize("unseen", ["\x1b[2J", "\r", "\u200b", "\u202e", "\ufeff"])
def test_what_nobody_sees_is_written_out(capsys: pytest.CaptureFixture[str], unseen: str) -> None:
    """`:wor\u200bker` would look right, and an escape sequence would clear the screen."""
    talk.say(f"unknown parameter :wor{unseen}ker", 4)
    said = capsys.readouterr().err
    assert ascii(unseen)[1:-1] in said
    assert said.rstrip("\n").isprintable()
