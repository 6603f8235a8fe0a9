"""Commands that go on from a check, or run one story again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queueproof.cli.ends import beside_the_verdict, on_behalf_of
from queueproof.cli.files import refuse_outputs, refuse_unwritable, write
from queueproof.cli.judging import Beyond, CheckOptions, judged
from queueproof.cli.known import token_of
from queueproof.cli.options import (
    Export,
    Html,
    Jobs,
    Json,
    Only,
    Postgres,
    Profile,
    ProfileName,
    QueueName,
    Seed,
    Traceback,
    Trust,
    Where,
    With,
)
from queueproof.cli.replaying import refuse_export, replay_story
from queueproof.cli.reports import Reports
from queueproof.cli.talk import progress_bar
from queueproof.errors import QueueproofError

if TYPE_CHECKING:
    from queueproof.mutate.mutants import Mutants
    from queueproof.queues.model import Queue
    from queueproof.report.card import Card, Mended
    from queueproof.report.terminal import Output

TODO = "TODO: why"  # the reason of a break that is accepted before anybody has given one


def replay(
    queue: QueueName,
    story: Annotated[
        str,
        typer.Argument(
            metavar="NAME|TOKEN", help="The story's name in the last check, or its token."
        ),
    ],
    *,
    new: With = None,
    export: Export = None,
    postgres: Postgres = None,
    trust: Trust = False,
    debug: Traceback = False,  # noqa: ARG001 - `run` looks for it
) -> int:
    """Run one story again.

    Exits 1 when it happens again, 0 when it does not, 4 when the queue lacks what it needs.
    """
    from queueproof.queues.deployment import deployment
    from queueproof.queues.resolve import files_of, resolve

    refuse_export(export)
    if new is not None and export is not None:
        raise QueueproofError("--with makes one queue of two, and --export is about one")
    target = resolve(queue) if new is None else deployment(queue, new)
    refuse_outputs([export], files_of(target))
    with on_behalf_of(target):
        return replay_story(target, token_of(target.name, story), Where(postgres, trust), export)


def watch(
    queue: QueueName,
    *,
    only: Only = None,
    profile: Profile = ProfileName.quick,
    seed: Seed = 0,
    jobs: Jobs = None,
    postgres: Postgres = None,
    trust: Trust = False,
    debug: Traceback = False,  # noqa: ARG001 - `run` looks for it
) -> int:
    """Check a queue whenever its file, or a file that it includes, changes.

    The story that broke last is run first. Ctrl-C ends it.
    """
    from queueproof.cli.watching import watch as watched

    where = Where(postgres, trust)
    asked = CheckOptions(queue, where, profile.value, only=only, seed=seed, jobs=jobs)
    asked.select()
    return watched(queue, where, asked.judge)


def _going_on(told: str, profile: ProfileName, beyond: Beyond) -> Callable[..., int]:
    """A command that goes on from a check.

    Args:
        told: Its help.
        profile: How thoroughly it checks, unless that is given.
        beyond: What it does then.
    """

    def command(
        queue: QueueName,
        *,
        only: Only = None,
        profile: Profile = profile,
        seed: Seed = 0,
        jobs: Jobs = None,
        postgres: Postgres = None,
        trust: Trust = False,
        json: Json = None,
        html: Html = None,
        debug: Traceback = False,  # noqa: ARG001 - `run` looks for it
    ) -> int:
        asked = CheckOptions(
            queue,
            Where(postgres, trust),
            profile.value,
            only=only,
            seed=seed,
            jobs=jobs,
            reports=Reports(json, html),
        )
        return judged(asked, beyond)

    command.__doc__ = told
    return command


def _mutants(target: Queue) -> Mutants:
    """The mutants of a queue; what has no SQL that could be changed is refused."""
    from queueproof.mutate.mutants import mutants_of

    return mutants_of(target)


def _mutated(asked: CheckOptions, out: Output, target: Queue, card: Card) -> tuple[Card, str]:
    """The card with what became of the mutants."""
    with beside_the_verdict("the rest of the mutants"):
        return _judged_too(asked, out, _mutants(target), card), ""
    return card, ""


def _judged_too(asked: CheckOptions, out: Output, mutants: Mutants, card: Card) -> Card:
    """The card with what became of the mutants; said too where it is interrupted."""
    from queueproof.mutate.verdicts import judge
    from queueproof.report.terminal import print_mutants

    known = card
    where = asked.where
    cards = judge(mutants, card, postgres=where.postgres, trust=where.trust, profile=asked.profile)
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
    return known


def _refuse_unmendable(target: Queue) -> None:
    """Refuse what is no file."""
    from queueproof.mend.search import source

    source(target)


def _mended(asked: CheckOptions, out: Output, target: Queue, card: Card) -> tuple[Card, str]:
    """The card as it is, and whether a change mends it, which is printed."""
    with beside_the_verdict("the rest of the mending"):
        return card, _mend(asked, out, target, card)
    return card, ""


def _mend(asked: CheckOptions, out: Output, target: Queue, card: Card) -> str:
    """Look for the change that mends a queue, and print it; what has come of that."""
    if card.verdict != "broken":
        out.say("Nothing is broken, so there is nothing to mend.\n")
        return ""
    from queueproof.machine import processors
    from queueproof.mend.search import mend
    from queueproof.queues.sqlfile import SqlFileQueue
    from queueproof.report.terminal import print_mended

    extends = isinstance(target, SqlFileQueue) and target.own != target.whole
    shown = shlex.join(["queueproof", "show", target.name]) if extends else ""
    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    out.say(f"Looking for what mends {', '.join(broken)}: minutes for each.\n")
    doing = f"0 of {len(broken)} mended"
    known: Mended | None = None

    def note(what: str, done: float | None) -> None:
        nonlocal doing
        doing = what
        progress(what, done)

    def keep(so_far: Mended | None) -> None:
        nonlocal known
        known = so_far

    try:
        with progress_bar(doing) as progress:
            mended = mend(
                target,
                card,
                postgres=asked.where.postgres,
                trust=asked.where.trust,
                profile=asked.profile,
                jobs=asked.jobs or processors(),
                progress=note,
                kept=keep,
            )
    except KeyboardInterrupt as stopped:
        if known is not None:
            print_mended(out, known, asked.profile, shown)
        stopped.args = (f"{str(stopped) or 'interrupted'} at: {doing}",)
        raise
    print_mended(out, mended, asked.profile, shown)
    if not mended.diff:
        return "No change was found that mends it."
    rest = f", but not {', '.join(mended.left)}" if mended.left else ""
    return (
        f"The change printed above mends {', '.join(mended.mended)}{rest}."
        " The file itself was not changed."
    )


def _refuse_unacceptable(target: Queue) -> None:
    """Refuse what is no file, or cannot be written."""
    target.with_breaks({})
    refuse_unwritable(Path(target.name))


def _accepted(_: CheckOptions, out: Output, target: Queue, card: Card) -> tuple[Card, str]:
    """The card once what is broken stands in the file's [breaks]."""
    from queueproof.queues.resolve import resolve

    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    if not broken:
        out.say("Nothing is broken that is not declared: [breaks] stays as it is.")
        return card, ""
    if resolve(target.name).digest != target.digest:
        raise QueueproofError(f"{target.name} has changed since it was read: check it again")
    write(Path(target.name), target.with_breaks(dict.fromkeys(broken, TODO)))
    out.say(f"Wrote [breaks] of {target.name}: {', '.join(broken)}. Say why each is accepted.")
    return card.accepting(broken, TODO), ""


GOING_ON: Mapping[str, Callable[..., int]] = {
    "mend": _going_on(
        """Look for a small change that mends a queue.

        After a check it tries known safe forms in the queue's SQL, runs all checks on the result,
        and prints the change as a diff. The file stays as it is. This takes minutes for each broken
        guarantee; Ctrl-C prints what was found so far. Exits as `check` does, by what the file
        itself breaks: 1, too, when a change mends it.
        """,
        ProfileName.quick,
        Beyond(_refuse_unmendable, _mended),
    ),
    "mutate": _going_on(
        """Plant defects in a queue's SQL, and see which of them the check finds.

        First the queue itself is checked. Exits as `check` does: planted defects change no exit
        code.
        """,
        ProfileName.quick,
        Beyond(_mutants, _mutated),
    ),
    "accept": _going_on(
        """Write what is broken today into the file's [breaks], so that only a new break fails.

        Each gets a reason, which you fill in. Exits as `check` does then.
        """,
        ProfileName.default,
        Beyond(_refuse_unacceptable, _accepted),
    ),
}
"""Commands by their names."""
