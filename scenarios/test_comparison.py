"""Four ways to claim a job, under every interleaving of two workers who want one.

Two jobs are free, and both workers claim one job at the same time. The four strategies differ in
a few words of one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from queueproof import Queue
from queueproof.history.calls import Call
from queueproof.run.lab import Lab
from queueproof.run.record import Run
from queueproof.run.runner import Runner
from queueproof.schedule.programs import JobSpec, Program, claim, script
from queueproof.search.explore import explore

RACE = Program(
    jobs=(JobSpec(), JobSpec()),
    stages=((script("w1", claim()), script("w2", claim())),),
)
ENOUGH = 200  # schedules; there are fewer


@dataclass(frozen=True)
class Race:
    """What came of the two claims under one schedule."""

    first: Call
    second: Call

    @classmethod
    def of(cls, run: Run) -> Race:
        """The race of a run."""
        first, second = (c for c in run.history.of_kind("claim") if c.actor in {"w1", "w2"})
        return cls(first, second)

    @property
    def doubled(self) -> bool:
        """Both workers got the same job."""
        return bool(set(self.first.ids) & set(self.second.ids))

    @property
    def waited(self) -> bool:
        """A claim had to wait for the other."""
        return bool(self.first.waits or self.second.waits)

    @property
    def refused(self) -> bool:
        """A claim ended in an error."""
        return bool(self.first.error or self.second.error)

    @property
    def both_served(self) -> bool:
        """Each worker has a job of its own: there are two."""
        return len({*self.first.ids, *self.second.ids}) == 2


@pytest.fixture
def races(
    strategy: Callable[[str], Queue],
    install: Callable[[Queue], AbstractContextManager[Lab]],
    seed: int,
) -> Callable[[str], list[Race]]:
    """Every race of two claims under a strategy."""

    def run(name: str) -> Iterator[Race]:
        with install(strategy(name)) as lab:
            for tried in explore(Runner(lab), RACE, budget=ENOUGH, seed=seed):
                yield Race.of(tried.run)

    return lambda name: list(run(name))


def test_select_then_update_claims_a_job_twice(races: Callable[[str], list[Race]]) -> None:
    """SELECT, then UPDATE: under some schedule both workers hold the same job."""
    assert any(race.doubled for race in races("select_then_update"))


def test_for_update_is_correct_and_a_convoy(races: Callable[[str], list[Race]]) -> None:
    """FOR UPDATE: no job is claimed twice, but one claim waits although a job is free."""
    seen = races("for_update")
    assert not any(race.doubled for race in seen)
    assert any(race.waited for race in seen)


def test_nowait_fails_where_for_update_waits(races: Callable[[str], list[Race]]) -> None:
    """FOR UPDATE NOWAIT: nobody waits; one of two claims gets an error instead, and no job."""
    seen = races("nowait")
    assert not any(race.doubled or race.waited for race in seen)
    assert any(race.refused and not race.both_served for race in seen)


def test_skip_locked_serves_both(races: Callable[[str], list[Race]]) -> None:
    """FOR UPDATE SKIP LOCKED: under every schedule both workers get a job of their own, at once."""
    seen = races("skip_locked")
    assert len(seen) > 1
    assert all(race.both_served for race in seen)
    assert not any(race.doubled or race.waited or race.refused for race in seen)
