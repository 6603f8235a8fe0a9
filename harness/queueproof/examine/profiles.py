"""How thorough a check is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """How thorough a check is, in counts: a budget in seconds would make a seed's verdict vary.

    Attributes:
        schedules: Most schedules of each fixed program.
        inside: Most schedules of each, with sessions that stop inside their statements.
        varied: Most schedules of each under conditions that should change nothing.
        kills: Most schedules of each in which the server is killed.
        crowds: Random programs of many stages.
        situations: Acts that are tried alone, in situations of a job's life.
        meetings: Acts that are tried there while the job's life goes on.
        each: Most schedules of each of these.
        level: How much the probes measure.
        free: Runs without a scheduler.
    """

    schedules: int
    inside: int
    varied: int
    kills: int
    crowds: int
    level: int
    situations: int = 0
    meetings: int = 0
    each: int = 1
    free: int = 0


_QUICK = Profile(schedules=16, inside=6, varied=3, kills=1, crowds=40, level=0)
_DEFAULT = Profile(schedules=250, inside=50, varied=30, kills=12, crowds=400, level=1)
_DEEP = Profile(schedules=2500, inside=800, varied=500, kills=60, crowds=4_000, level=2, free=3)
PROFILES: Mapping[str, Profile] = {
    "quick": _QUICK,
    "default": _DEFAULT,
    "deep": replace(_DEEP, situations=10_000, meetings=10_000, each=60),
}

_PROGRAMS: Mapping[str, Profile] = {
    # A worker process and the gate before it make a run several times as long.
    "quick": Profile(schedules=12, inside=4, varied=2, kills=1, crowds=20, level=0),
    "default": Profile(schedules=80, inside=16, varied=10, kills=4, crowds=80, level=1),
    "deep": Profile(schedules=800, inside=250, varied=160, kills=20, crowds=600, level=2, free=3),
}
_INNER: Mapping[str, Profile] = {
    # For what is known: that one defect breaks nothing beside what it breaks.
    "glance": Profile(schedules=3, inside=1, varied=1, kills=1, crowds=5, level=0),
    # For mutants: each is one small change, of which only the guarantees' own programs must know.
    "mutants": Profile(schedules=16, inside=12, varied=3, kills=1, crowds=20, level=0),
}


def profile_of(name: str, *, by_clients: bool = False) -> Profile:
    """The profile of a name: of `PROFILES`, or one of our own.

    Args:
        name: `glance` is for tests, `mutants` for mutants.
        by_clients: Whether the queue's workers are processes of their own, which take longer.
    """
    return {**PROFILES, **_INNER, **(_PROGRAMS if by_clients else {})}[name]
