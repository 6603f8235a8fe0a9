"""Which guarantee that holds finds a mutant."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from queueproof.errors import QueueError
from queueproof.examine.check import first_flaw
from queueproof.examine.processes import lent_server, processes
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.mutate.mutants import Mutant, Mutants, entry_in, equivalents_path
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
) -> Generator[Card]:
    """See which mutants are found by a check of the guarantees that the queue itself keeps.

    Args:
        mutants: Of the queue.
        card: The queue's own.
        postgres: As for `open_server`.
        trust: The same.
        profile: As for `check_queue`.

    Yields:
        The card without a mutant, and then each time with one more on it.

    Raises:
        QueueError: A mutant that is declared equivalent was killed.
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
    with open_server(postgres, trust=trust) as server, processes(server) as pool:
        for mutant, killer in zip(mutants.mutants, pool.map(look, mutants.mutants), strict=True):
            known = mutants.equivalents.get(mutant.name)
            found.append(_verdict(mutant, killer, known, unseen))
            yield replace(card, mutants=[*found], not_mutated=mutants.unread)


class _Unseen(NamedTuple):
    """What to say of a mutant that nothing finds."""

    verdict: Literal["survived", "unjudged"]
    reason: str


def _unseen(card: Card) -> _Unseen:
    """A mutant that nothing found, which only a check of everything can say."""
    asked = {judgement.id: judgement.verdict for judgement in card.guarantees}
    if len(asked) < len(CATALOGUE):
        left_out = f"{len(CATALOGUE) - len(asked)} of {len(CATALOGUE)} guarantees were not asked"
        return _Unseen("unjudged", f"not found by what was asked; {left_out}")
    reason = "every guarantee that holds still does"
    if missing := [name for name, verdict in asked.items() if verdict == "not-offered"]:
        reason += f"; not offered: {', '.join(missing)}"
    silent = [name for name, verdict in asked.items() if verdict not in {"holds", "not-offered"}]
    if silent:
        reason += f"; did not hold to begin with: {', '.join(silent)}"
    return _Unseen("survived", reason)


def _verdict(
    mutant: Mutant, killer: Killer | None, known: str | None, unseen: _Unseen
) -> MutantJudgement:
    if killer is None:
        reason = known or mutant.unused
        if reason:
            return MutantJudgement(mutant.name, "equivalent", None, reason, mutant.diff)
        return MutantJudgement(mutant.name, unseen.verdict, None, unseen.reason, mutant.diff)
    if known:
        path = equivalents_path(mutant.queue)
        why = f"{killer.by}: {killer.reason}" if killer.by else killer.reason
        message = f"{mutant.name!r} is not equivalent, so take it out: {why}"
        raise QueueError(message, entry_in(path, path.read_text(encoding="utf-8"), mutant.name))
    return MutantJudgement(mutant.name, "killed", killer.by, killer.reason, mutant.diff)


class Killer(NamedTuple):
    """What a check finds wrong with a mutant.

    Attributes:
        by: The guarantee; None where the mutant does not work at all.
        reason: One sentence.
    """

    by: str | None
    reason: str


def _look(
    mutant: Mutant,
    *,
    wanted: Sequence[str],
    seed: int,
    profile: str,
) -> Killer | None:
    if mutant.unused:
        return None
    try:
        with open_lab(mutant.queue, lent_server()) as lab:
            flaw = first_flaw(
                lab, select(wanted), seed=seed, profile=profile, through=mutant.through
            )
    except QueueError as error:
        return Killer(None, f"it does not work: {error}")
    if flaw is None:
        return None
    doubt = "inconclusive: " if flaw.verdict == "inconclusive" else ""
    return Killer(flaw.id, doubt + flaw.reason)
