"""Profiles, which say how thorough a check is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """The effort of a check, in counts: a budget in seconds would make a seed's verdict vary.

    Attributes:
        crowds: Random programs of many stages.
        situations: Acts that are tried alone, in situations of a job's life.
        meetings: Acts that are tried there while the job's life goes on.
        inside: Of these, in how many sessions stop inside their statements.
        schedules: Most schedules of each of these.
        kills: Most schedules of each in which the server is killed.
        level: How much the probes measure.
    """

    crowds: int
    situations: int
    meetings: int
    inside: int
    schedules: int
    kills: int
    level: int


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(40, 420, 220, 220, schedules=6, kills=1, level=0),
    "default": Profile(300, 800, 400, 400, schedules=8, kills=4, level=1),
    "deep": Profile(4_000, 10_000, 5_000, 5_000, schedules=60, kills=60, level=2),
}

_PROGRAMS: Mapping[str, Profile] = {
    # A worker process and the gate before it make a run several times as long.
    "quick": Profile(20, 100, 80, 80, schedules=4, kills=1, level=0),
    "default": Profile(80, 150, 300, 100, schedules=16, kills=4, level=1),
    "deep": Profile(600, 2_000, 4_000, 1_000, schedules=200, kills=20, level=2),
}
_INNER: Mapping[str, Profile] = {
    # For what is known: that one defect breaks nothing beside what it breaks.
    "glance": Profile(5, 40, 40, 40, schedules=3, kills=1, level=0),
    # For mutants: each is one small change.
    "mutants": Profile(20, 400, 150, 150, schedules=8, kills=1, level=0),
}


def profile_of(name: str, *, by_clients: bool = False) -> Profile:
    """The profile of a name: of `PROFILES`, or one of our own.

    Args:
        name: `glance` is for tests, `mutants` for mutants.
        by_clients: Whether the queue's workers are processes of their own, which take longer.
    """
    return {**PROFILES, **_INNER, **(_PROGRAMS if by_clients else {})}[name]
