"""The guarantees that find a mutant, of those that the queue keeps."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

from queueproof.advice.mutants import Mutant, Mutants
from queueproof.errors import QueueError
from queueproof.examine.check import first_flaw
from queueproof.examine.processes import MOST as PROCESSES
from queueproof.examine.processes import lent_server, processes
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.postgres import open_server
from queueproof.report.card import Card, MutantJudgement
from queueproof.run.open import open_lab


def judge(
    mutants: Mutants,
    card: Card,
    *,
    postgres: str | None,
    trust: bool = False,
    profile: str,
    jobs: int | None = None,
) -> Generator[Card]:
    """See which mutants are found by a check of the guarantees that the queue itself keeps.

    Twice as many processes as jobs judge them: each waits for the server half the time.

    Yields the card without a mutant, and then each time with one more on it. A QueueError says
    that one was killed which is declared equivalent.
    """
    wanted = [judgement.id for judgement in card.guarantees if judgement.verdict == "holds"]
    if not wanted:
        unread = [*mutants.unread, "No guarantee holds, so none could find a mutant."]
        yield replace(card, mutants=[], not_mutated=unread)
        return
    found: list[MutantJudgement] = []
    yield replace(card, mutants=[], not_mutated=mutants.unread)
    unseen = _unseen(card)
    enough = "mutants" if profile == "quick" else profile
    look = partial(_look, wanted=wanted, seed=card.seed, profile=enough)
    count = jobs and min(2 * jobs, PROCESSES)
    with open_server(postgres, trust=trust) as server, processes(server, count) as pool:
        for mutant, killed in zip(mutants.mutants, pool.map(look, mutants.mutants), strict=True):
            known = mutants.equivalents.get(mutant.name)
            if known and killed is not None:
                why = f"{killed.by}: {killed.reason}" if killed.by else killed.reason
                message = f"{mutant.name!r} is not equivalent, so take it out: {why}"
                raise QueueError(message, known.source)
            left = replace(unseen, name=mutant.name, change=mutant.diff)
            if reason := known.reason if known else mutant.unused:
                left = replace(left, verdict="equivalent", reason=reason)
            found.append(killed or left)
            yield replace(card, mutants=[*found], not_mutated=mutants.unread)


def _unseen(card: Card) -> MutantJudgement:
    """The outcome of a mutant that nothing finds: only a check of all can say that it survived."""
    asked = {judgement.id: judgement.verdict for judgement in card.guarantees}
    if len(asked) < len(CATALOGUE):
        left_out = f"{len(CATALOGUE) - len(asked)} of {len(CATALOGUE)} guarantees were not asked"
        reason = f"not found by what was asked; {left_out}"
        return MutantJudgement("", "unjudged", None, reason, "")
    reason = "every guarantee that holds still does"
    if missing := [name for name, verdict in asked.items() if verdict == "not-offered"]:
        reason += f"; not offered: {', '.join(missing)}"
    silent = [name for name, verdict in asked.items() if verdict not in {"holds", "not-offered"}]
    if silent:
        reason += f"; did not hold to begin with: {', '.join(silent)}"
    return MutantJudgement("", "survived", None, reason, "")


def _look(
    mutant: Mutant, *, wanted: Sequence[str], seed: int, profile: str
) -> MutantJudgement | None:
    """The guarantee that kills a mutant, or that it does not work at all; None: nothing does."""
    if mutant.unused:
        return None
    killed = MutantJudgement(mutant.name, "killed", None, "", mutant.diff)
    try:
        with open_lab(mutant.queue, lent_server()) as lab:
            flaw = first_flaw(
                lab, select(wanted), seed=seed, profile=profile, through=mutant.through
            )
    except QueueError as error:
        return replace(killed, reason=f"it does not work: {error}")
    if flaw is None:
        return None
    doubt = "inconclusive: " if flaw.verdict == "inconclusive" else ""
    return replace(killed, by=flaw.id, reason=doubt + flaw.reason)
