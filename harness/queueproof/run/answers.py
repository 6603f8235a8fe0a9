"""The arguments of operations, and what their answers say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Any, assert_never

from queueproof.history.calls import Call
from queueproof.queues.model import Claim, JobRow, Queue
from queueproof.run.lab import DEFAULT_BOUND
from queueproof.schedule.programs import JobSpec, PayloadKind

LARGE = 10_000  # characters of a large payload
# Keys of its own that are names of a queue's, too: who merges the two may take one for another.
_OWN = '"id": 0, "attempts": 99, "max_attempts": 0, "queue": "theirs"'
FAULT_STATES = frozenset({"40P01", "57P01", "08006"})
"""SQLSTATEs of faults, never in `retry_on`: an earlier transaction of it may have committed."""


def enqueue(call: Call, queue: Queue, spec: JobSpec) -> dict[str, object]:
    """Record what of a job an enqueue takes; the arguments by which it is asked for."""
    takes = queue.takes("enqueue")
    call.priority = spec.priority if "priority" in takes else 0
    call.delay = spec.delay if "delay" in takes else 0.0
    call.bound = _bound(queue, spec) if queue.max_attempts is not None else None
    call.queue = spec.queue if "queue" in takes else "default"
    call.payload = spec.payload if "payload" in takes else ""
    return {
        "payload": _payload(spec.payload, call.index),
        "priority": call.priority,
        "delay": timedelta(seconds=call.delay),
        "max_attempts": _bound(queue, spec) or DEFAULT_BOUND,
        "queue": spec.queue,
    }


def _payload(kind: PayloadKind, number: int) -> str:
    """A payload with a number that no other job of the run has."""
    match kind:
        case "":
            return f'{{"call": {number}}}'
        case "same":
            return '{"call": "same"}'
        case "large":
            return f'{{"call": {number}, {_OWN}, "text": "{_large()}"}}'
        case _:
            assert_never(kind)


@cache
def _large() -> str:
    """Ten thousand characters, of more bytes; compressed they are more than an index takes."""
    return "€".join(sha256(b"%d" % n).hexdigest() for n in range(LARGE // 64 + 1))[:LARGE]


def mistaken(calls: Sequence[Call], claims: Iterable[Claim]) -> str:
    """The mistake in claims that answer a job with another one's payload; else nothing.

    An enqueue's payload says which of the calls it was, unless the queue has changed it.
    """
    for claim in claims:
        payload = claim.token.get("payload")
        if not isinstance(payload, dict):  # which a program's answer may hold
            try:
                payload = json.loads(str(payload))
            except ValueError:
                continue
        match payload:
            case {"call": int(n)} if len(payload) == 1 and 0 <= n < len(calls):
                owner = calls[n].ids if calls[n].kind == "enqueue" else ()
                others = (c.ids for c in calls if c.kind == "enqueue" and claim.id in c.ids)
                if owner and claim.id not in owner and any(others):
                    return f"claim answered job {claim.id} with the payload of job {owner[0]}"
    return ""


def in_order(enqueues: Iterable[Call], claims: Iterable[Claim]) -> list[Claim]:
    """Claims of one answer, in the order in which their jobs were enqueued.

    RETURNING has no order of its own: it follows how rows lie and which plan the server has just
    then, and a worker that took its jobs so would do another thing in each run. Jobs that nobody
    was told of come last.
    """
    jobs = [job for call in enqueues for job in call.ids]
    places = {job: n for n, job in reversed(list(enumerate(jobs)))}
    return sorted(claims, key=lambda one: (places.get(one.id, len(jobs)), len(one.id), one.id))


def _bound(queue: Queue, spec: JobSpec) -> int | None:
    """Most attempts of a job; None where neither the job nor the header says."""
    if "max_attempts" in queue.takes("enqueue"):
        return spec.bound or queue.max_attempts or DEFAULT_BOUND
    return queue.max_attempts


def read_answer(call: Call, value: Any) -> None:  # noqa: ANN401 - any answer of an operation
    """Record what an operation answered, as `Queue` describes it; it has not returned yet."""
    call.answer = "accepted"
    match call.kind:
        case "enqueue":
            call.ids = tuple(value)
            call.answer = "accepted" if call.ids else "rejected"  # rule 2: nothing is said of it
        case "recover":
            call.ids = tuple(value)
        case "claim":
            ids = [claim.id for claim in value]
            call.ids = tuple(dict.fromkeys(ids))
            call.repeated = tuple(i for n, i in enumerate(ids) if i in ids[:n])
        case "complete" | "fail" | "heartbeat":
            call.answer = "accepted" if value else "rejected"
        case "promote":
            call.moved = value or 0
        case "complete_many":
            call.answer = "unknown" if value is None else "accepted"
            call.ids = tuple(value or ())
        case "jobs":
            rows: list[JobRow] = value
            call.states = {row.id: row.state for row in rows}
            call.ids = tuple(row.id for row in rows)


def done(calls: Iterable[Call]) -> set[str]:
    """The jobs whose completion was accepted."""
    ends = (call for call in calls if call.kind in {"complete", "complete_many"})
    return {job for call in ends for job in call.accepted}


def told(call: Call, value: Any) -> str:  # noqa: ANN401 - any answer of an operation
    """The text of an answer in a trace; `value` is the answer as `Queue` describes it."""
    match call.kind:
        case "claim":
            return ", ".join(map(_describe, value)) or "nothing"
        case "enqueue" | "recover" if call.ids:
            return f"job {', '.join(call.ids)}"
        case "recover":
            return "nothing"
        case "promote" | "start":
            return f"{call.moved} job{'s' if call.moved > 1 else ''}" if call.moved else "done"
        case "complete_many" if call.answer == "accepted":
            return f"job {', '.join(call.ids)} accepted" if call.ids else "rejected"
        case "jobs":
            states = call.states or {}
            return ", ".join(f"job {job}: {state}" for job, state in states.items())
        case _:
            return call.answer


def _describe(claim: Claim) -> str:
    counts = claim.token.keys() & {"attempt", "attempts", "try", "tries"}
    shown = [f"{name} {value}" for name, value in claim.token.items() if name in counts]
    return f"job {claim.id}" + (f" ({', '.join(shown)})" if shown else "")
