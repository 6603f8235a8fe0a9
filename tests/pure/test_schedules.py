"""Every interleaving once, the simple ones first, the same for the same seed; and shrinking."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import factorial, prod
from typing import cast

import pytest

from queueproof.history.calls import Ref
from queueproof.judge.checker import check
from queueproof.judge.spec import Declared
from queueproof.queues.model import Claim
from queueproof.run.actors import Actor
from queueproof.run.record import Choice, Run
from queueproof.run.runner import Runner
from queueproof.schedule.conditions import PLAIN
from queueproof.schedule.moments import DAY, MOMENT
from queueproof.schedule.programs import JobSpec, Program, advance, claim
from queueproof.search.explore import explore
from queueproof.search.shrink import Failure, one_by_one, shrink, smaller
from tests.fix_histories import Told
from tests.fix_plays import play

DECLARED = Declared(
    lease=None, held=False, worker_heartbeat=False, recovers=False, observable=True, order="none"
)
STOPS = "reaper recovers | w1 fails, advances {}, claims"
ONE, TWO = (play(told, 0) for told in ("producer enqueues", "producer enqueues; producer enqueues"))
URGENT, LATER = JobSpec(priority=2), JobSpec(delay=9.0)
BOTH = TWO._replace(reserve=(URGENT, LATER))
SMALLER = {
    "moves of the clock in a row": (play("+18; +24", 0), play("+42", 0)),
    "moves of one actor": (play("clock advances 18, advances 24", 0), play("+42", 0)),
    "a shorter move": (play(STOPS.format(DAY), 0), play(STOPS.format(MOMENT), 0)),
    "one job less in the middle": (BOTH, TWO._replace(reserve=(LATER,))),
    "a job like all others": (BOTH, TWO._replace(reserve=(URGENT, JobSpec()))),
    "a job from the beginning": (BOTH, ONE._replace(jobs=(URGENT,), reserve=(LATER,))),
}


def program(*steps: int) -> Program:
    """A stage of some actors with so many steps each."""
    return play(" | ".join(f"w{n} {', '.join(['claims'] * k)}" for n, k in enumerate(steps)), 0)


class Counter:
    """Stands in for a runner: a step of an actor is a letter in a word, and nothing waits."""

    conditions = PLAIN

    def __init__(self) -> None:
        self.words: list[str] = []

    def run(self, program: Program, schedule: Sequence[int] = ()) -> Run:
        """Take turns as `Runner` does: option 0 is the actor that acted last."""
        run = Run()
        taken = deque(schedule)
        left = {actor: len(dos) for actor, dos in program.stages[0]}
        last, word = "", ""
        while able := [actor for actor, n in left.items() if n]:
            going_on = last in able
            if going_on:
                able.remove(last)
                able.insert(0, last)
            option = 0
            if len(able) > 1:
                option = taken.popleft() if taken else 0
                run.choices.append(Choice(len(able), option, preempts=going_on))
            last = able[option]
            left[last] -= 1
            word += last[1:]
        self.words.append(word)
        return run


def words(steps: Sequence[int], *, budget: int = 10_000, seed: int = 0) -> list[str]:
    """The interleavings in the order in which they are tried."""
    counter = Counter()
    for _ in explore(cast("Runner", counter), program(*steps), budget=budget, seed=seed):
        pass
    return counter.words


def preemptions(word: str) -> int:
    """How often the turn was taken from an actor that could go on."""
    return sum(a != b and a in word[n + 1 :] for n, (a, b) in enumerate(pairwise(word)))


@pytest.mark.parametrize(
    "steps", [(1,), (1, 1), (3, 3), (3, 4), (2, 2, 2), (1, 2, 3), (1, 1, 1, 1)]
)
def test_every_interleaving_is_tried_exactly_once(steps: tuple[int, ...]) -> None:
    """There are as many runs as the multinomial coefficient says, and no two are the same."""
    tried = words(steps)
    assert len(tried) == factorial(sum(steps)) // prod(factorial(n) for n in steps)
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fewer_preemptions_come_first(seed: int) -> None:
    """Schedules are tried by how often they take the turn from somebody who could go on."""
    costs = [preemptions(word) for word in words((3, 3, 2), seed=seed)]
    assert costs == sorted(costs)


def test_a_seed_gives_an_order_and_limits_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed only decides who comes first among equals; a budget and a limit, what is tried."""
    one, again, other = (words((3, 3), seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    assert set(one) == set(other)
    assert len(words((3, 3), budget=7)) == 7
    # Beyond a limit only schedules with at most two preemptions are run, and all of these.
    everything = words((3, 4))
    monkeypatch.setattr("queueproof.search.explore.EXHAUSTIVE", 10)
    assert set(words((3, 4))) == {word for word in everything if preemptions(word) <= 2}


def test_a_schedule_is_reported_as_it_is_replayed() -> None:
    """What comes with a run, given to the runner again, is the same interleaving."""
    counter, again = Counter(), Counter()
    for schedule, _ in explore(cast("Runner", counter), program(2, 3), budget=99, seed=0):
        again.run(program(2, 3), schedule)
    assert counter.words == again.words


class DoubleClaims:
    """Stands in for a runner on a queue that gives its first job to every worker that claims."""

    conditions = PLAIN

    def run(self, program: Program, schedule: Sequence[int] = ()) -> Run:
        """Two claims overlap wherever two workers claim; nothing else ever breaks."""
        del schedule
        acts = [(actor, do) for stage in program.stages for actor, dos in stage for do in dos]
        workers = dict.fromkeys(actor for actor, do in acts if do.kind == "claim")
        begin = [f"begin {actor} claims" for actor in reversed(workers)]
        ends = [f"end {actor} 1" for actor in workers]
        told = ["enqueue 1", *begin, *ends] if program.jobs else []
        return Run(Told("; ".join([*told, "left 1=running"])).history)


def breaks(one: Program) -> bool:
    """Whether the program shows the double claim."""
    found = check(DoubleClaims().run(one).history, DECLARED).violations
    return any(violation.guarantee == "single-claim" for violation in found)


def test_shrinking_ends_where_nothing_more_can_go() -> None:
    """Without any of its parts it breaks nothing; moves with something between them stay."""
    long = play(
        "w1 claims 2, completes | w2 beats, claims 2; +9; w3 claims, completes",
        [JobSpec(priority=2), JobSpec(delay=5.0), JobSpec(bound=1)],
    )
    run, runner = DoubleClaims().run(long), cast("Runner", DoubleClaims())
    failure = Failure(long, (), run, check(run.history, DECLARED).violations[0])
    small = shrink(failure, one_by_one(runner, DECLARED, failure)).program
    assert breaks(small)
    assert not any(breaks(candidate) for candidate in smaller(small))
    left = {actor: dos for stage in small.stages for actor, dos in stage}
    assert (small.jobs, [*left.values()]) == ((JobSpec(),), [(claim(),)] * 2)
    assert [*left] == ["w2", "w1"]  # by who acts first
    # What is claimed in between may depend on when.
    between = play("+18; w1 claims; +9", 0)
    moved = [do for one in smaller(between) for s in one.stages for _, dos in s for do in dos]
    assert advance(27) not in moved


@pytest.mark.parametrize(("large", "small"), SMALLER.values(), ids=SMALLER)
def test_what_a_story_can_do_without_goes(large: Program, small: Program) -> None:
    """Stories kept eighteen moves of 18 s, a stop of 25 hours and fifteen jobs; one was enough."""
    assert small in smaller(large)


def test_a_batch_across_claims_names_no_job_twice() -> None:
    """An answer that names a job says nothing of which of two claims it was for."""
    taken = [(0, "1"), (0, "2"), (1, "2"), (1, "1"), (2, "1"), (2, "2")]
    worker = Actor("w1", "w1", claims=[(Ref(n, job), Claim(job, {})) for n, job in taken])
    assert [ref for ref, _ in worker.batch(0, "one of each")] == [Ref(0, "1"), Ref(1, "2")]
