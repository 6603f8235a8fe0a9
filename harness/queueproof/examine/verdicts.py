"""The judgement on a guarantee by the findings: its verdict, with evidence and stories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from queueproof.examine.findings import Findings
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee
from queueproof.probes.backoff import RetryWaits
from queueproof.probes.probes import Found, Seen
from queueproof.report.card import Break, Judgement, Place, Verdict
from queueproof.report.story import Story, of_queue, tell_found
from queueproof.report.text import counted, to_text
from queueproof.schedule.actors import DRAINER
from queueproof.schedule.programs import FAULTS
from queueproof.search.shrink import Failure
from queueproof.search.tokens import encode_token

_EFFORT = ("schedules", "random programs")


def judgement_of(
    findings: Findings,
    guarantee: Guarantee,
    named: Collection[str] = (),
    required: Collection[str] = (),
) -> Judgement:
    """The verdict on one guarantee, with its story as short as it was made.

    Args:
        named: Ids of guarantees that were asked for by name: no tool may be lacking.
        required: And of those that the queue must offer what they need.
    """
    spent = findings.spent[guarantee.id] / 1e6
    return replace(_judgement(findings, guarantee, named, required), seconds=spent)


def _judgement(
    findings: Findings, guarantee: Guarantee, named: Collection[str], required: Collection[str]
) -> Judgement:
    name = guarantee.id
    must = name in named or name in required
    watched = findings.probed.get(name, Seen({}))
    missing = guarantee.needs(findings.offer)
    if missing is not None:
        reason = f"{missing}: {watched.remark}" if watched.remark else missing
        verdict: Verdict = "inconclusive" if name in required else "not-offered"
        return Judgement(name, verdict, reason)
    evidence = _evidence(findings, guarantee)
    accepted = findings.offer.queue.breaks.get(name) or guarantee.accepted(findings.offer) or None
    if stories := _stories(findings, name):
        first, *more = stories
        reason = first.reason
        if accepted is not None:
            reason = f"{reason} (declared: {accepted})"
        found: Verdict = "broken" if accepted is None else "accepted"
        return Judgement(
            name,
            found,
            reason,
            first.story,
            first.replay,
            evidence,
            tuple(more),
            first.told,
            first.place,
        )
    if lacks := _lacks(findings, guarantee, watched):
        return Judgement(name, "inconclusive" if must else "not-offered", lacks)
    unsure = _unsure(findings, guarantee, watched, evidence)
    if unsure:
        follows = accepted is not None and name in findings.failures
        found = "accepted" if follows else "inconclusive"
        explained = found == "inconclusive" and name in findings.failures
        return Judgement(name, found, unsure, evidence=evidence, explained=explained)
    effort = _effort(findings)
    own = {what: n for what, n in evidence.items() if what not in effort} or evidence
    reason = ", ".join(counted(n, what) for what, n in own.items())
    if watched.lacks and must:
        reason = f"{watched.lacks}; without it: {reason}"
        return Judgement(name, "inconclusive", reason, evidence=evidence)
    if watched.remark:
        reason += f"; {watched.remark}"
    if accepted is not None:
        declared = "in [breaks]" if name in findings.offer.queue.breaks else accepted
        reason = f"declared {declared} but not seen to break: {reason}"
    return Judgement(name, "holds", reason, evidence=evidence)


def _lacks(findings: Findings, guarantee: Guarantee, watched: Seen) -> str:
    """The tool without which nothing can be said here; empty where there is none."""
    unmoved = findings.lab.unmoved if findings.lab.has_own_clock else ""
    if unmoved and (guarantee.timed or findings.unsure.get(guarantee.id) == unmoved):
        return unmoved
    return "" if watched.partial else watched.lacks


def _unsure(
    findings: Findings, guarantee: Guarantee, watched: Seen, evidence: Mapping[str, int]
) -> str:
    """Why a guarantee that was not seen to break is not proved; empty where it is."""
    name = guarantee.id
    if name in findings.failures:
        return findings.explained(name)
    if watched.unable:
        return watched.unable
    if guarantee.timed and findings.lab.unmoved:
        return findings.lab.unmoved
    if name in findings.unsure:
        return findings.unsure[name]
    effort = _effort(findings)
    if not any(n for what, n in evidence.items() if what not in effort):
        lacking = f": no {guarantee.lacking}" if guarantee.lacking else ""
        return f"no run put it to the test{lacking}"
    if guarantee.faults and (lacking := _without(findings, evidence)):
        return f"no {lacking}"
    return ""


def _without(findings: Findings, evidence: Mapping[str, int]) -> str:
    """The faults that happened in no run, of those that are possible here."""
    wanted = [
        fault.several
        for fault in FAULTS.values()
        if not fault.of_server or findings.lab.server.ours
    ]
    return " and no ".join(told for told in wanted if not evidence.get(told))


def _effort(findings: Findings) -> dict[str, int]:
    """Runs that all guarantees were judged by, and how many others the profile leaves out."""
    done = {what: findings.evidence["", what] for what in _EFFORT}
    parts = {f"of {n:,} {what}": findings.evidence["", what] for what, n in findings.space.items()}
    return done | parts


def _evidence(findings: Findings, guarantee: Guarantee) -> dict[str, int]:
    name = guarantee.id
    evidence = {what: n for (g, what), n in sorted(findings.evidence.items()) if g == name}
    if not guarantee.apart:
        evidence |= _effort(findings)
    if guarantee.faults:
        evidence["distinct steps interrupted"] = len(findings.hit)
    watched = findings.probed.get(name, Seen({}))
    evidence |= watched.evidence
    return {what: n for what, n in evidence.items() if n or watched.lacks}


def _stories(findings: Findings, name: str) -> list[Break]:
    """The breaks of a guarantee that were seen, the story that says most first."""
    seen = findings.probed.get(name)
    unmoved = CATALOGUE[name].timed and findings.lab.unmoved  # it has measured two clocks
    if seen is not None and seen.found is not None and not unmoved:
        return [_told(findings, name, seen.found, seen.broken, probe=seen.data)]
    failure = findings.failures.get(name)
    if failure is None or findings.explained(name):
        return []
    others = sorted(findings.others.get(name, {}).values(), key=lambda one: one.violation.alone)
    return [story_of(findings, name, one) for one in (failure, *others)]


def story_of(findings: Findings, name: str, failure: Failure) -> Break:
    """The story of a breach of a guarantee, with its token."""
    return _told(
        findings,
        name,
        failure,
        failure.violation.because,
        program=failure.program.to_data(),
        schedule=list(failure.schedule),
        under=failure.conditions.to_data(),
        broken=failure.violation.guarantee,
    )


def _told(findings: Findings, name: str, found: Found, reason: str, **data: object) -> Break:
    """A story with its token, which holds some data."""
    lab = findings.lab
    token = encode_token(lab.queue.digest, name, findings.seed, **data)
    story = tell_found(found, name)
    if isinstance(story, Story) and "program" in data:  # a probe's session is its own
        story = of_queue(story, lab.queue, lab.schema)
    return Break(reason, to_text(story), token, story, _place(findings, found))


def _place(findings: Findings, found: Found) -> Place | None:
    """The place of the last statement of a story's workers; a probe measures a whole block.

    The drainer shows what has become of the jobs, unless it is refused itself; and what the end of
    a run shows began where somebody died in the midst of an operation.
    """
    if isinstance(found, Failure):
        calls = found.run.history.calls
        last = calls[found.violation.call]
        told = [b for b in found.run.trace if 0 <= b.call <= last.index]
        if last.answer != "rejected":
            told = [b for b in told if b.actor != DRAINER]
        unheard = [b for b in told if b.step and calls[b.call].answer in {"pending", "unknown"}]
        told = unheard if unheard and not found.cause else told
        sent = [b.step for b in told if b.step is not None]
        source = next((step.source for step in reversed(sent) if step.source), None)
    else:
        operation = "fail" if isinstance(found, RetryWaits) else "claim"
        source = findings.lab.queue.source_of(operation)
    return Place(str(source.path), source.line) if source else None
