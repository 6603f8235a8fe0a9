"""A queue judged, and what stands around it: what is asked, what is printed, what is written."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from queueproof.cli.ends import beside_the_verdict, on_behalf_of
from queueproof.cli.files import refuse_outputs
from queueproof.cli.known import remember
from queueproof.cli.options import Annotate, ProfileName, Where, cluster_extra, ids
from queueproof.cli.replaying import command_of, open_target, target_of
from queueproof.cli.report import Reports
from queueproof.cli.talk import columns, output, progress_bar, say
from queueproof.errors import Exit

if TYPE_CHECKING:
    from queueproof.advice.search import Advice
    from queueproof.examine.plan import Progress
    from queueproof.examine.work import Helpers
    from queueproof.guarantees.guarantee import Guarantee
    from queueproof.queues.model import Queue
    from queueproof.report.card import Break, Card
    from queueproof.report.terminal import Output
    from queueproof.run.lab import Lab


_TODO = re.compile(r"(--|#) TODO\b")
_LATER = ("queueproof.examine.check", "queueproof.report.terminal")  # as soon as a server runs


@dataclass(frozen=True)
class CheckOptions:
    """The options of `queueproof check`, by their names."""

    queue: str
    only: list[str] | None = None
    skip: list[str] | None = None
    require: list[str] | None = None
    new: str | None = None
    profile: ProfileName = ProfileName.default
    seed: int = 0
    fail_fast: bool = False
    jobs: int | None = None
    cluster: str | None = None
    postgres: str | None = None
    trust: bool = False
    json: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    badge: Path | None = None
    annotate: Annotate | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CheckOptions:
        """Those that a command takes, from its arguments; what else it takes is left out."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    @property
    def where(self) -> Where:
        """The server."""
        return Where(self.postgres, self.trust)

    def select(self) -> list[Guarantee]:
        """The guarantees that are judged; QueueproofError where one is unknown or contradicted."""
        from queueproof.guarantees.catalogue import select

        skip, required = ids(self.skip, "--skip"), ids(self.require, "--require")
        return select(ids(self.only, "--only"), skip=skip or (), require=required or ())

    def judge(
        self,
        lab: Lab,
        progress: Progress,
        told: Callable[[str], None] = lambda _guarantee: None,
        shown: Callable[[str, Break], None] | None = None,
        helpers: Helpers | None = None,
    ) -> Card:
        """The card of the queue in a lab."""
        from queueproof.examine.check import check_queue
        from queueproof.machine import processors

        return check_queue(
            lab,
            self.select(),
            seed=self.seed,
            profile=self.profile,
            named=ids(self.only, "--only") or (),
            required=ids(self.require, "--require") or (),
            jobs=self.jobs or processors(),
            helpers=helpers,
            progress=progress,
            told=told,
            shown=shown,
            fail_fast=self.fail_fast,
        )


GoOn: TypeAlias = Callable[["Output", "Card"], tuple["Card", str] | None]
"""Goes on from a card; gives it back with what it says then, and what the last line says beside
the verdict; None where it failed beside the verdict."""
Beyond: TypeAlias = Callable[[CheckOptions, "Queue"], GoOn]
"""The work of a command after its check. Refuses, before anything runs, a queue that it cannot be
done with."""


def judged(asked: CheckOptions, beyond: Beyond | None = None, *, stories: bool = True) -> int:
    """Judge a queue, print and write what was found, and go on `beyond` that; the exit code.

    With `stories` the stories of what broke are printed, and what fixes it.
    """
    from queueproof.queues.resolve import files_of

    began = time.monotonic()
    asked.select()
    cluster = _cluster(asked.cluster)
    files = asked.json, asked.html, asked.junit, asked.badge
    reports = Reports(files, asked.annotate)
    target = target_of(asked.queue, asked.new)
    refuse_outputs(reports.outputs, files_of(target))
    go_on = None if beyond is None else beyond(asked, target)
    with on_behalf_of(target):
        cards: list[Card] = []
        advice: Mapping[str, Advice] = {}
        fixing = 0.0
        for way in target.ways[1:]:  # which would be refused only after the first was judged
            from queueproof.examine.calibrate import calibrate

            with open_target(way, asked.where) as lab, progress_bar():
                calibrate(lab)
        for way in target.ways:
            with open_target(way, asked.where, _LATER) as lab:
                from queueproof.report.terminal import print_whole

                out = output(*files)
                command = command_of(asked.queue, asked.new, lab, asked.where)
                if not cards:
                    called = asked.queue if asked.new is None else target.name
                    how = f"seed {asked.seed}, profile {asked.profile}"
                    out.prose(f"{called} on {lab.label}; {how}\n")
                    if "jobs" not in target.offers:
                        unseen = "the check cannot see the state of a job that nobody claims"
                        out.prose(f"The queue has no block `jobs`, so {unseen} any more.\n")
                with (
                    cluster(lab) as helpers,
                    progress_bar() as progress,
                    _telling(target, command, fail_fast=asked.fail_fast) as (told, shown),
                ):
                    cards.append(asked.judge(lab, progress, told, shown, helpers))
                if way is target.ways[-1]:
                    card = printed(out, cards, stories=stories)
                    fixing = time.monotonic()
                    if card.breaks and go_on is None and asked.new is None and not asked.fail_fast:
                        with (
                            progress_bar("looking for a fix") as progress,
                            beside_the_verdict("which line mends what is broken"),
                        ):
                            from queueproof.advice.search import advise

                            advice = advise(target, card, lab.server, progress)
                    fixing = time.monotonic() - fixing
        card = remedied(out, card, target, advice, told=stories)
        print_summary(out, card, target, command, mend=go_on is None)
        card, came_of_it = (go_on and go_on(out, card)) or (card, "")
    with beside_the_verdict("what else there is to say of the file"):
        _tell_breaks(out, target, card)
    reports.annotate(out, card)
    if go_on is None and card.verdict == "holds" and asked.profile is ProfileName.quick:
        further = shlex.join(["check" if word == "replay" else word for word in command])
        out.say(
            "A pass is no proof, and profile quick is the smallest check. Check more:\n"
            f"  {further} --profile default\n"
        )
    print_whole(out, card, time.monotonic() - began, came_of_it, fixing)
    reports.write(card, shlex.join(command))
    return card.exit_code


_FIRST_SIGHT = (
    "The first steps seen of {}; the shortest ones, their SQL ([a], [b], …) and a fix follow when"
    " the check ends:"
)
_AT_THE_END = ". The steps follow when the check ends; with --fail-fast it ends here."


@contextmanager
def _telling(
    queue: Queue, command: Sequence[str], *, fail_fast: bool
) -> Iterator[tuple[Callable[[str], None], Callable[[str, Break], None] | None]]:
    """Say at once what breaks, and show its steps on a terminal, but for what the queue accepts.

    The command replays a story, up to its name. An interrupt says how to see what was found.
    """
    from queueproof.explain import filled

    began = time.monotonic()
    watched = sys.stderr.isatty()
    broken: list[str] = []
    tokens: dict[str, str] = {}

    def told(guarantee: str) -> None:
        if guarantee not in queue.breaks:
            told = f"broken after {time.monotonic() - began:.1f} s: {guarantee}"
            if not (broken or fail_fast or watched):
                told += _AT_THE_END
            broken.append(guarantee)
            say(told, Exit.BROKEN)

    def shown(guarantee: str, found: Break) -> None:
        from queueproof.report.text import WIDTH, steps_of

        if guarantee in broken and found.replay and found.told:
            sight = filled(_FIRST_SIGHT.format(guarantee), columns(WIDTH))
            heading = "" if tokens else f"\n{sight}\n"
            tokens[guarantee] = found.replay
            steps = steps_of(found.told, columns(WIDTH))
            say(f"{heading}\n{steps}\n", Exit.BROKEN, prefix="")

    try:
        yield told, shown if watched else None  # it takes a fifth of the check's time
    except KeyboardInterrupt as stopped:
        how = f"--fail-fast --only {broken[0]} ends with the first story" if broken else ""
        if tokens and remember(queue.name, tokens, tokens):
            how = f"see what was found: {shlex.join([*command, next(iter(tokens))])}"
        stopped.args = ("; ".join(filter(None, [str(stopped) or "interrupted", how])),)
        raise


def _cluster(address: str | None) -> Callable[[Lab], AbstractContextManager[Helpers | None]]:
    """The provider of a lab's helpers, where a cluster does the work instead of this machine."""
    if address is None:
        return lambda _lab: nullcontext()
    with cluster_extra():
        from queueproof.cluster.client import on_cluster, refuse_address
    refuse_address(address)
    return lambda lab: on_cluster(address, lab, lambda message: say(message, Exit.HOLDS))


def print_summary(
    out: Output, card: Card, target: Queue, replay: Sequence[str], *, mend: bool = True
) -> None:
    """Print what broke in a few lines, with the commands that go on from there.

    `replay` is up to a story's name; `mend` is false where a mended queue is looked for next.
    """
    from queueproof.queues.sqlfile import SqlFileQueue
    from queueproof.report.terminal import print_breaks

    told = card.breaks | card.accepted
    tokens = {name: story.replay for name, (_, story) in told.items() if story.replay}
    mending = ""
    if isinstance(target, SqlFileQueue) and mend:
        mending = shlex.join(["mend" if word == "replay" else word for word in replay])
    judged = {one.id for one in card.guarantees if not one.left_out}
    fixes = {one.id: one.remedy for one in card.guarantees if one.remedy}
    named = remember(target.name, tokens, judged, fixes)
    print_breaks(out, card, shlex.join(replay), named=named, mend=mending, fix=mend)


def printed(out: Output, cards: Sequence[Card], *, stories: bool = True) -> Card:
    """Print one card of all the ways in which a queue was judged, with the stories or without."""
    from queueproof.report.card import together
    from queueproof.report.terminal import print_card

    card = together(cards)
    print_card(out, card, beside_the_verdict, stories=stories)
    return card


def remedied(
    out: Output,
    card: Card,
    target: Queue,
    advice: Mapping[str, Advice] | None = None,
    *,
    told: bool = True,
) -> Card:
    """A card with how what is broken is fixed, in the queue's own names; printed if `told`."""
    from queueproof.advice.remedies import with_remedies
    from queueproof.report.terminal import print_remedies

    card = with_remedies(card, target, beside_the_verdict, advice)
    if told:
        print_remedies(out, card)
    return card


def _tell_todos(out: Output, target: Queue) -> None:
    """Say where a proposal of `init` is not yet what its workers send."""
    from queueproof.advice.file import OURS
    from queueproof.queues.deployment import Deployment
    from queueproof.queues.sqlfile import SqlFileQueue

    for one in target.versions if isinstance(target, Deployment) else (target,):
        text = one.own if isinstance(one, SqlFileQueue) else ""
        lines = [str(n) for n, line in enumerate(text.splitlines(), 1) if _TODO.search(line)]
        if lines:
            several, s = ("s", "") if lines[1:] else ("", "s")
            ours = " If the claim is still the proposal's, yours was not judged." * (OURS in text)
            out.prose(f"{one.name}: line{several} {', '.join(lines)} still say{s} TODO.{ours}\n")


def _tell_breaks(out: Output, target: Queue, card: Card) -> None:
    """Say which declared break is mended, which lacks a reason, and what is not the user's yet."""
    _tell_todos(out, target)
    for judgement in card.guarantees:
        why = target.breaks.get(judgement.id)
        if why is None:
            continue
        where = target.source_of_break(judgement.id) or target.name
        if judgement.verdict == "holds":
            mended = "where a check of everything does not see it either, take it out of [breaks]"
            out.prose(f"{where}: {judgement.id} was not seen to break: {mended}")
        elif why.startswith("TODO"):
            out.prose(f"{where}: {judgement.id} is accepted, and its reason still says TODO")
