"""Commands that go on from a check: `mend`, `mutate` and `accept`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from queueproof.cli import options as opt
from queueproof.cli.ends import beside_the_verdict
from queueproof.cli.files import refuse_unwritable, write
from queueproof.cli.judging import Beyond, CheckOptions, GoOn, judged
from queueproof.cli.talk import progress_bar
from queueproof.errors import QueueproofError

if TYPE_CHECKING:
    from queueproof.advice.mutants import Mutants
    from queueproof.queues.model import Queue
    from queueproof.report.card import Card, Mended
    from queueproof.report.terminal import Output

TODO = "TODO: why"  # the reason of a break that is accepted before anybody has given one


def _going_on(told: str, profile: opt.ProfileName, beyond: Beyond) -> Callable[..., int]:
    """A command that goes on from a check, as thorough as its profile unless one is given."""

    def command(
        queue: opt.QueueFile,
        *,
        only: opt.Only = None,
        profile: opt.Profile = profile,
        seed: opt.Seed = 0,
        jobs: opt.Jobs = None,
        postgres: opt.Postgres = None,
        trust: opt.Trust = False,
        json: opt.Json = None,
        html: opt.Html = None,
        debug: opt.Traceback = False,
    ) -> int:
        # What mends a queue stands below its verdicts, and not below all its stories.
        return judged(CheckOptions.of(locals()), beyond, stories=beyond is not _mended)

    command.__doc__ = told
    return command


def _mutated(asked: CheckOptions, target: Queue) -> GoOn:
    """See what becomes of the mutants; what has no SQL that could be changed is refused."""
    from queueproof.advice.mutants import mutants_of

    go_on = partial(_judged_too, asked, mutants_of(target))
    return beside_the_verdict("the rest of the mutants")(go_on)


def _judged_too(asked: CheckOptions, mutants: Mutants, out: Output, card: Card) -> tuple[Card, str]:
    """The card with what became of the mutants; said too where it is interrupted."""
    from queueproof.advice.verdicts import judge
    from queueproof.report.terminal import print_mutants

    known = card
    cards = judge(
        mutants,
        card,
        postgres=asked.postgres,
        trust=asked.trust,
        profile=asked.profile,
        jobs=asked.jobs,
    )
    total = len(mutants.mutants)
    try:
        with progress_bar() as progress, closing(cards):
            for known in cards:
                done = len(known.mutants or ())
                progress(f"mutant {done}", done / max(total, 1))
    except KeyboardInterrupt as stopped:
        print_mutants(out, known)
        done = len(known.mutants or ())
        stopped.args = (f"{str(stopped) or 'interrupted'} after {done} of {total} mutants",)
        raise
    print_mutants(out, known)
    return known, ""


def _mended(asked: CheckOptions, target: Queue) -> GoOn:
    """Look for a change that mends the queue, which is printed; what is no file is refused."""
    from queueproof.advice.search import source

    source(target)
    return beside_the_verdict("the rest of the mending")(partial(_mend, asked, target))


def _mend(asked: CheckOptions, target: Queue, out: Output, card: Card) -> tuple[Card, str]:
    """Look for the change that mends a queue, and print it; what has come of that."""
    if card.verdict != "broken":
        out.say("Nothing is broken, so there is nothing to mend.\n")
        return card, ""
    from queueproof.advice.search import mend
    from queueproof.machine import processors
    from queueproof.report.terminal import print_mended

    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    out.prose(
        f"Looking for a fix for {', '.join(broken)}. This may take minutes for each; Ctrl-C prints"
        f" what was found. Begin with one: add --only {broken[0]}.\n"
        if len(broken) > 1
        else f"Looking for a fix for {broken[0]}. This may take minutes.\n"
    )
    doing = f"0 of {len(broken)} mended"
    known: Mended | None = None

    def note(what: str, done: float | None) -> None:
        nonlocal doing
        doing = what
        progress(what, done)

    try:
        with progress_bar(doing) as progress:
            for so_far in mend(
                target,
                card,
                postgres=asked.postgres,
                trust=asked.trust,
                profile=asked.profile,
                jobs=asked.jobs or processors(),
                progress=note,
            ):
                known = so_far
    except KeyboardInterrupt as stopped:
        if known is not None:
            print_mended(out, known, asked.profile, card)
        stopped.args = (f"{str(stopped) or 'interrupted'} at: {doing}",)
        raise
    assert known is not None  # what came of it all
    print_mended(out, known, asked.profile, card)
    if not known.diff:
        return card, "No change was found that mends it."
    rest = f", but not {', '.join(known.left)}" if known.left else ""
    mended = f"The change above fixes {', '.join(known.mended)}{rest}."
    return card, f"{mended} Your file is unchanged."


def _accepted(_: CheckOptions, target: Queue) -> GoOn:
    """Write what is broken into the file's [breaks]; what is no file, or read-only, is refused."""
    from queueproof.queues.resolve import resolve

    target.with_breaks({})
    refuse_unwritable(Path(target.name))

    def go_on(out: Output, card: Card) -> tuple[Card, str]:
        broken = [one.id for one in card.guarantees if one.verdict == "broken"]
        if not broken:
            out.say("Nothing is broken that is not declared: [breaks] stays as it is.")
            return card, ""
        if resolve(target.name).digest != target.digest:
            raise QueueproofError(f"{target.name} has changed since it was read: check it again")
        write(Path(target.name), target.with_breaks(dict.fromkeys(broken, TODO)))
        out.prose(
            f"Wrote [breaks] of {target.name}: {', '.join(broken)}. Say why each is accepted."
        )
        return card.accepting(broken, TODO), ""

    return go_on


GOING_ON: Mapping[str, Callable[..., int]] = {
    "mend": _going_on(
        """Look for a small change that fixes a queue.

        Checks the queue, tries known fixes, runs all checks on the fixed queue, and prints the best
        fix as a diff. This can take minutes for each broken guarantee; Ctrl-C stops, and prints
        the best fix so far. Your file is not changed: apply the diff with `git apply`. The exit
        code is about your file: 1 if it is broken, even if a fix was found.
        """,
        opt.ProfileName.quick,
        _mended,
    ),
    "mutate": _going_on(
        """Plant defects in a queue's SQL, and see which of them the check finds.

        First the queue itself is checked. The exit code is that of the queue itself: planted
        defects do not change it.
        """,
        opt.ProfileName.quick,
        _mutated,
    ),
    "accept": _going_on(
        """Mark today's breaks as known in the queue file, so that only new ones fail.

        Writes a placeholder for each reason: replace it. Exits 0 if nothing else is
        broken or inconclusive.
        """,
        opt.ProfileName.default,
        _accepted,
    ),
}
"""Commands by their names."""
