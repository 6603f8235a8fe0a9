"""From a queue and a server to a card: calibrate, explore, check, shrink, tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from queueproof.examine.calibrate import calibrate
from queueproof.examine.findings import STORIES, Findings, Told
from queueproof.examine.plan import Examination, Progress
from queueproof.examine.processes import lent_server
from queueproof.examine.profiles import PROFILES, profile_of
from queueproof.examine.verdicts import judgement_of, story_of
from queueproof.examine.work import Helpers, beside
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.guarantees.guarantee import Guarantee
from queueproof.postgres import Server
from queueproof.probes.probes import PROBES
from queueproof.queues.model import Queue
from queueproof.report.card import NOT_JUDGED, Break, Card, Judgement
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.programs import DoKind


def check_queue(
    lab: Lab,
    wanted: Sequence[Guarantee],
    *,
    seed: int = 0,
    profile: str = "default",
    named: Iterable[str] = (),
    required: Iterable[str] = (),
    jobs: int = 1,
    helpers: Helpers | None = None,
    progress: Progress = lambda _what, _fraction: None,
    told: Told = lambda _guarantee: None,
    shown: Callable[[str, Break], None] | None = None,
    fail_fast: bool = False,
) -> Card:
    """Judge an installed queue.

    Args:
        seed: Of the random programs and schedules: the same seed gives the same card.
        profile: A key of `PROFILES`; `glance` is for tests, `mutants` for mutants.
        named: Ids of guarantees that were asked for by name: where a tool that they need is not
            there, they are inconclusive.
        required: Ids of those that must be judged: inconclusive too where the queue itself does
            not offer what they need.
        jobs: Processes that do the work, each with the queue installed in a database of its own.
            They change the time that it takes, and nothing else.
        helpers: Who does the work in their place: the workers of a cluster.
        progress: Called as it goes on.
        told: Called with each guarantee that breaks, at once.
        shown: Called with its story too, soon after. The card may have a shorter or plainer one;
            None: stories are told by the card alone.
        fail_fast: End at the first break: what has not broken by then is inconclusive.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    began = time.monotonic()
    with nullcontext(helpers) if helpers else beside(lab, jobs) as pool:
        offer = calibrate(lab)
        causes = profile in PROFILES and not fail_fast
        # A queue may break, and is not accused of, what it does not promise or is excused from.
        promised = {
            one.id for one in wanted if one.needs(offer) is None and not one.accepted(offer)
        }

        def tell(name: str) -> None:
            if name in promised:
                told(name)

        findings = Findings(lab, offer, seed, pool, tell, causes=causes)
        budget = profile_of(profile, by_clients=lab.by_clients)
        unshown = [guarantee.id for guarantee in wanted]

        def enough() -> bool:
            if fail_fast:
                return any(_broken(findings, wanted))
            for name in [name for name in unshown if name in findings.failures]:
                failure = findings.short(name)
                if shown is not None and failure is not None:
                    unshown.remove(name)
                    shown(name, story_of(findings, name, failure))
            return False

        examination = Examination(findings, budget)
        examination.examine(wanted, progress, enough if fail_fast or shown else None)
        for more in reversed(range(STORIES)):
            found = [CATALOGUE[one.id] for one in _broken(findings, wanted)] if fail_fast else []
            progress("telling the stories", None)
            findings.shorten(found or wanted)
            # A story that holds another's says nothing: one of what was left out may stand alone.
            mixed = [one.id for one in wanted if one.id in findings.within]
            if not (more and mixed and examination.go_on(mixed, progress)):
                break
    asked = frozenset(named), frozenset(required)
    judgements = [judgement_of(findings, guarantee, *asked) for guarantee in wanted]
    if found:
        judgements = [_as_far(judgement) for judgement in judgements]
    took = time.monotonic() - began
    return Card(lab.queue.name, lab.label, seed, took, judgements, profile=profile)


def _as_far(judgement: Judgement) -> Judgement:
    """A verdict where the check has ended at the first break."""
    if judgement.explained or judgement.verdict not in {"holds", "inconclusive"}:
        return judgement
    return replace(judgement, verdict="inconclusive", reason=NOT_JUDGED)


def judge(
    queue: Queue,
    guarantees: Iterable[str] | None,
    *,
    server: Server | None = None,
    seed: int,
    profile: str,
    required: Iterable[str] = (),
    jobs: int = 1,
    fail_fast: bool = False,
) -> Card:
    """The card of a queue; to be called in one of the processes.

    Args:
        guarantees: Ids of those to judge it by; None for all.
        server: Where; None for the one that this process was lent.
    """
    with open_lab(queue, server or lent_server()) as lab:
        return check_queue(
            lab,
            select(guarantees),
            seed=seed,
            profile=profile,
            required=required,
            jobs=jobs,
            fail_fast=fail_fast,
        )


def first_flaw(
    lab: Lab,
    wanted: Sequence[Guarantee],
    *,
    seed: int = 0,
    profile: str = "default",
    through: DoKind | None = None,
) -> Judgement | None:
    """The first break that an examination meets; else what it could not put to the test.

    Args:
        through: An operation of which a flaw is suspected, that no run does on its own account:
            programs without it are left out.

    Returns:
        A judgement that is broken or inconclusive; None where all hold.

    Raises:
        QueueError: An operation does not work even undisturbed.
    """
    findings = Findings(lab, calibrate(lab), seed)
    examination = Examination(findings, profile_of(profile), through)
    examination.examine(
        wanted, lambda _what, _fraction: None, lambda: any(_broken(findings, wanted))
    )
    if found := next(_broken(findings, wanted), None):
        return found
    # Programs that were left out are no lack of evidence.
    lacking = [g for g in wanted if through is None or (g.id in PROBES and not g.variations)]
    judgements = (judgement_of(findings, one) for one in lacking)
    return next((one for one in judgements if one.verdict == "inconclusive"), None)


def _broken(findings: Findings, wanted: Sequence[Guarantee]) -> Iterator[Judgement]:
    """The verdicts on what was seen to break, and counts as broken."""
    suspects = (one for one in wanted if findings.suspects(one.id))
    judgements = (judgement_of(findings, one) for one in suspects)
    return (one for one in judgements if one.verdict == "broken")
