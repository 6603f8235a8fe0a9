"""What a run without a scheduler broke, as a table of who did what, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queueproof.history.calls import Call
from queueproof.judge.checker import Violation
from queueproof.report.story import Account, Part
from queueproof.run.free import Free
from queueproof.schedule.moments import spoken

_TOLD = {
    "crash": "is killed",
    "pause": "is stopped",
    "resume": "goes on",
    "terminate": "loses its connections",
    "sweep": "has claimed all that it was given",
}
_SHOWN = 12


def tell_free(free: Free, violation: Violation) -> Account:
    """One violation of a free run: what was done to the job, and when.

    Args:
        free: The run.
        violation: One of its findings'.
    """
    calls = _concerned(free.history.calls, violation)
    began = free.history.calls[0].began
    seen = (
        f"Seen in a free run of {free.workers} workers with seed {free.seed}; not replayable: "
        "who came first was up to the operating system."
    )
    lines = [("seconds", "who", "what"), *(_line(call, violation, began) for call in calls)]
    parts = (
        Part("prose", f"Broken: {violation.because}."),
        Part("prose", seen),
        Part("figures", _table(lines)),
    )
    return Account(violation.guarantee, parts)


def _concerned(calls: Sequence[Call], violation: Violation) -> list[Call]:
    """The calls that a violation is told by: those on its job, or those around the guilty one."""
    guilty = calls[violation.call]
    if violation.job is None:
        around = [call for call in calls if call.overlaps(guilty) or call is guilty]
        return around[:_SHOWN]
    job = violation.job
    holders = {call.actor for call in calls if call.kind == "claim" and job in call.ids}

    def concerns(call: Call) -> bool:
        if call.kind in {"advance", "restart", "sweep"}:
            return True
        if call.kind in {"crash", "pause", "resume", "terminate"}:
            return call.actor in holders
        return job in call.ids or any(ref.job == job for ref in call.refs)

    found = [call for call in calls if concerns(call) and call.invoked <= (guilty.returned or 0)]
    first = next((n for n, call in enumerate(found) if job in call.ids), 0)
    return found[first:]


def _line(call: Call, violation: Violation, began: float) -> tuple[str, str, str]:
    until = "" if call.returned is None else f" .. {call.ended - began:.3f}"
    named = [violation.job] if violation.job else [ref.job for ref in call.refs]
    what = f"{call.kind} {_jobs(named)}" if call.refs else call.kind
    match call.kind:
        case "enqueue":
            facts = [f"priority {call.priority}"] if call.priority else []
            facts += [f"due in {spoken(call.delay)}"] if call.delay else []
            facts += [f"max_attempts {call.bound}"] if call.bound is not None else []
            what += f" ({', '.join(facts)})" if facts else ""
        case "claim":
            what += f" of at most {call.limit}"
        case "advance":
            what = f"moves on by {call.delay:.1f} s"
        case "restart":
            what = "the server is killed, and comes back"
        case "crash" | "pause" | "resume" | "terminate" | "sweep":
            what = _TOLD[call.kind]
    return f"{call.began - began:.3f}{until}", call.actor, f"{what}{_told_answer(call, violation)}"


def _told_answer(call: Call, violation: Violation) -> str:
    if call.kind in _TOLD or call.kind in {"advance", "restart"}:
        return ""
    if call.error:
        return f": ERROR {call.error}"
    match call.answer:
        case "unknown":
            return ": no answer"
        case "accepted" if call.kind == "jobs" and violation.job:
            return f": {(call.states or {}).get(violation.job)}"
        case "accepted" if call.kind in {"enqueue", "claim", "recover"}:
            return f": {_jobs(call.ids)}" if call.ids else ": nothing"
        case answer:
            return f": {answer}"


def _jobs(ids: Iterable[str]) -> str:
    ids = list(ids)
    return f"job{'s' if len(ids) > 1 else ''} {', '.join(ids)}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns."""
    widths = [max(len(row[n]) for row in rows) for n in range(2)]
    return "\n".join(f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)
