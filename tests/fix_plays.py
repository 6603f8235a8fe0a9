"""Programs as people tell them: `w1 claims 2; +33.4; reaper recovers; w2 claims | w1 completes`."""

import re
from collections.abc import Sequence
from typing import get_args

from queueproof.history.calls import Call, CallKind
from queueproof.run.record import Run
from queueproof.schedule.moments import past
from queueproof.schedule.programs import HEARTBEATS, Do, DoKind, JobSpec, Program, Script, whole
from tests.fix_histories import LEASE

VERBS: dict[str, DoKind] = {
    f"{kind}s": kind for kinds in get_args(DoKind) for kind in get_args(kinds)
}
VERBS |= {"batches": "complete_many", "beats": "heartbeat", "crashes": "crash", "waits": "until"}


def play(text: str, jobs: int | Sequence[JobSpec] = 1, reserve: int = 0) -> Program:
    """A program whose stages stand between `;`, actors at once between `|`, and acts between `,`.

    `w1 claims 2` asks for two jobs, `w1 completes 1` is about the second that it has, and
    `nemesis loses 1` happens to w1. `+30` moves the clock, `clock waits 61` to a moment before, and
    after `+lease` one of 30 seconds has certainly run out. `wholly recovers` is one step.
    `(w1) beats` on w1's connection for that.

    Args:
        text: What happens.
        jobs: Those that it begins with: how many, or which.
        reserve: How many more may be enqueued.
    """
    known = (JobSpec(),) * jobs if isinstance(jobs, int) else tuple(jobs)
    stages = tuple(tuple(map(_script, stage.split(" | "))) for stage in text.split("; "))
    return Program(known, stages, (JobSpec(),) * reserve)


def calls(run: Run, kind: CallKind, actor: str) -> list[Call]:
    """An actor's calls of one kind."""
    return [call for call in run.history.of_kind(kind) if call.actor == actor]


def _script(text: str) -> Script:
    if text.startswith("+"):
        seconds = past(LEASE) if text == "+lease" else float(text)
        return "clock", (Do("advance", seconds=seconds),)
    actor, _, acts = text.partition(" ")
    actor = re.sub(r"\((.*)\)", rf"\1{HEARTBEATS}", actor)
    return actor, tuple(map(_act, acts.split(", ")))


def _act(text: str) -> Do:
    parts = re.fullmatch(r"(wholly )?(\w+)(?: ([\d.]+))?", text)
    assert parts, text
    kind, number = VERBS[parts[2]], float(parts[3] or 0)
    count = int(number)
    match kind:
        case "claim":
            done = Do(kind, limit=count or 1)
        case "advance" | "until":
            done = Do(kind, seconds=number)
        case "crash" | "lose" | "terminate":
            done = Do(kind, worker=count)
        case _:
            done = Do(kind, job=count)
    return whole(done) if parts[1] else done
