"""`check`: a queue judged by its guarantees."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from queueproof.cli.ends import beside_the_verdict, on_behalf_of
from queueproof.cli.files import refuse_outputs, refuse_unwritable, write
from queueproof.cli.options import (
    QUEUES,
    Annotate,
    Export,
    Jobs,
    Only,
    Postgres,
    ProfileName,
    Seed,
    Traceback,
    Trust,
    Where,
    cluster_extra,
    ids,
)
from queueproof.cli.replaying import command_of, open_target, refuse_export, replay_story
from queueproof.cli.reports import Reports
from queueproof.cli.several import configured, each
from queueproof.cli.talk import output, progress_bar, say
from queueproof.errors import Exit, QueueproofError

if TYPE_CHECKING:
    from queueproof.examine.work import Helpers
    from queueproof.guarantees.guarantee import Guarantee
    from queueproof.mutate.mutants import Mutants
    from queueproof.queues.model import Queue
    from queueproof.report.card import Card, Mended
    from queueproof.report.terminal import Output
    from queueproof.run.lab import Lab


_LATER = ("queueproof.examine.check", "queueproof.report.terminal")  # as soon as a server runs
TODO = "TODO: why"  # the reason of a break that is accepted before anybody has given one


def check(  # noqa: PLR0915 - what the options ask for, one after the other
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help=f"{QUEUES} Of several each has reports of its own, named after it, and the exit"
            " code is the worst. None: those of [tool.queueproof] in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    *,
    postgres: Postgres = None,
    trust: Trust = False,
    new: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="The version that is rolled out beside QUEUE: some workers run each. Its schema is"
            " a migration of QUEUE's, or the same.",
        ),
    ] = None,
    only: Only = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="ID,...", help="Judge all but these.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID,...",
            help="What must be judged: exit 2 where the queue does not offer it, or a tool that it"
            " needs is not here.",
        ),
    ] = None,
    profile: Annotated[
        ProfileName | None,
        typer.Option(
            help="How thorough: of an SQL file, on two idle cores, quick takes 10 to 20 s, default"
            " half a minute to two minutes, deep many; a worker program three to six times that, a"
            " busy machine up to three times.",
            show_default="default",
        ),
    ] = None,
    seed: Seed = 0,
    fail_fast: Annotated[
        bool,
        typer.Option("--fail-fast", help="End at the first break; the rest is inconclusive then."),
    ] = False,
    jobs: Jobs = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="Of a dask scheduler: its workers do the work, each with a server of its own: the"
            " same is found.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the card as JSON; - is stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the card as a page.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the card as JUnit XML.")
    ] = None,
    badge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a badge, as SVG.")
    ] = None,
    annotate: Annotated[
        Annotate | None,
        typer.Option(
            help="For GitHub: breaks at their lines, and the job's summary ($GITHUB_STEP_SUMMARY).",
            show_default="github where $GITHUB_ACTIONS is true",
        ),
    ] = None,
    replay: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Run one story again, and nothing else.")
    ] = None,
    export: Export = None,  # of the story that --replay runs
    mutate: Annotated[
        bool,
        typer.Option(
            "--mutate",
            help="Plant defects in the queue's own SQL, and see which guarantee that holds finds"
            " them; survivors do not change the exit code. The profile is quick then, unless"
            " given.",
        ),
    ] = False,
    write_breaks: Annotated[
        bool,
        typer.Option(
            "--write-breaks",
            help="Accept what is broken today: write it into the file's [breaks], with a reason to"
            " be filled in. Later only what is new fails.",
        ),
    ] = False,
    mend: Annotated[
        bool,
        typer.Option(
            "--mend",
            help="Look for a small change of the queue's own SQL that mends what is broken,"
            " check the mended queue by everything, and print the change as a diff; the file stays"
            " as it is, and so does the exit code. It takes minutes for each broken guarantee;"
            " Ctrl-C prints what is mended so far.",
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Check again whenever the file, or one that it includes, changes: the story that"
            " broke last goes first. Ctrl-C ends it.",
        ),
    ] = False,
    debug: Traceback = False,
) -> int:
    """Judge a queue by its guarantees.

    Exits 0 when all that is asked holds or is accepted, 1 when something is broken, 2 when nothing
    is broken but something stays unknown, 4 when the queue, the server or an option is no good.
    """
    options = {name: value for name, value in locals().items() if name != "queues"}
    queues = queues or configured()
    if len(queues) > 1:
        why = "--watch, --replay and --with are about one queue: name one"
        _refuse_beside(queues[0], [watch, replay, new], why)
        return each(queues, check, options)
    (queue,) = queues
    from queueproof.guarantees.catalogue import select
    from queueproof.queues.resolve import files_of, resolve

    named, required = ids(only, "--only"), ids(require, "--require")
    wanted = select(named, skip=ids(skip, "--skip") or (), require=required or ())
    reports = Reports(json, html, junit, badge, annotate)
    _refuse_beside(
        new,
        [mutate, mend, export],
        "--with makes one queue of two: --mutate, --mend and --export are about one",
    )
    _refuse_beside(
        cluster,
        [jobs, mutate, mend, replay],
        "--cluster has others do a check: --jobs, --mutate, --mend and --replay are done here",
    )
    others = reports.files or mutate or mend or write_breaks or only or skip or require
    _refuse_beside(
        replay,
        [others],
        "--replay runs one story: --only, --skip, --require, --mutate, --mend, --write-breaks"
        " and reports do not go with it",
    )
    refuse_export(export, replay)
    if watch:
        _watch(
            queue,
            Where(postgres, trust),
            wanted,
            seed=seed,
            profile=(profile or ProfileName.quick).value,
            named=named or (),
            required=required or (),
            jobs=jobs,
            beside=[reports.files, mutate, mend, write_breaks, replay, new, cluster],
        )
    target = resolve(queue) if new is None else _deployment(queue, new)
    refuse_outputs([*(reports.outputs if replay is None else ()), export], files_of(target))
    if write_breaks:
        target.with_breaks({})
        refuse_unwritable(Path(queue))
    thorough = (profile or (ProfileName.quick if mutate else ProfileName.default)).value
    where = Where(postgres, trust)
    with on_behalf_of(target):
        if replay is not None:
            return replay_story(target, replay, where, export)
        mutants = _planned(target, mutate=mutate, mend=mend)
        cards: list[Card] = []
        for way in target.ways:
            with open_target(way, where, _LATER) as lab:
                from queueproof.examine.check import check_queue
                from queueproof.machine import processors
                from queueproof.report.terminal import print_whole

                out = output(*reports.files)
                command = command_of(queue, new, lab, where)
                if not cards:
                    called = queue if new is None else target.name
                    _introduce(
                        out,
                        target,
                        f"{called} on {lab.label}",
                        f"seed {seed}, profile {thorough}",
                    )
                with _helpers(cluster, lab) as helpers, progress_bar() as progress:
                    card = check_queue(
                        lab,
                        wanted,
                        seed=seed,
                        profile=thorough,
                        named=named or (),
                        required=required or (),
                        jobs=jobs or processors(),
                        helpers=helpers,
                        progress=progress,
                        told=_telling(target),
                        fail_fast=fail_fast,
                    )
                cards.append(card)
        card = _printed(out, cards, target, command)
        if mutants is not None:
            with beside_the_verdict("the rest of --mutate"):
                card = _mutated(out, mutants, card, where, thorough)
        if mend:
            with beside_the_verdict("the rest of --mend"):
                _mend(out, target, card, where, thorough, jobs or processors())
    if write_breaks:
        card = _accepted(out, target, card)
    with beside_the_verdict("what else there is to say of the file"):
        _tell_breaks(out, target, card, mend=mend)
    reports.annotate(out, card)
    print_whole(out, card)
    reports.write(card, command)
    return card.exit_code


def _telling(queue: Queue) -> Callable[[str, str], None]:
    """Say at once what breaks, and after how long, but for what the queue says of itself."""
    began = time.monotonic()

    def told(guarantee: str, because: str) -> None:
        if guarantee not in queue.breaks:
            say(f"after {time.monotonic() - began:.1f} s: {guarantee}: {because}", Exit.BROKEN)

    return told


def _refuse_beside(given: str | None, others: Iterable[object], why: str) -> None:
    """Refuse options that do not go with one that is given."""
    if given is not None and any(others):
        raise QueueproofError(why)


def _helpers(cluster: str | None, lab: Lab) -> AbstractContextManager[Helpers | None]:
    """Who does the work, where that is not this machine."""
    if cluster is None:
        return nullcontext()
    with cluster_extra():
        from queueproof.cluster.client import on_cluster
    return on_cluster(cluster, lab, lambda message: say(message, Exit.HOLDS))


def _watch(
    queue: str,
    where: Where,
    wanted: Sequence[Guarantee],
    *,
    seed: int,
    profile: str,
    named: Sequence[str],
    required: Sequence[str],
    jobs: int | None,
    beside: Sequence[object],
) -> NoReturn:
    """Check a file now and after each change; what is for one check does not go with it."""
    from queueproof.cli.watching import watch
    from queueproof.examine.check import check_queue
    from queueproof.machine import processors

    def judge(lab: Lab, progress: Callable[[str, float | None], None]) -> Card:
        return check_queue(
            lab,
            wanted,
            seed=seed,
            profile=profile,
            named=named,
            required=required,
            jobs=jobs or processors(),
            progress=progress,
        )

    _refuse_beside(
        queue,
        beside,
        "--watch checks one file again and again: --with, --replay, --mutate, --mend,"
        " --write-breaks, --cluster and reports do not go with it",
    )
    watch(queue, where, judge)


def _deployment(old: str, new: str) -> Queue:
    from queueproof.queues.deployment import deployment

    return deployment(old, new)


def _planned(target: Queue, *, mutate: bool, mend: bool) -> Mutants | None:
    """The mutants, if any are asked for; what cannot be changed is refused before the check."""
    if mend:
        from queueproof.mend.search import source

        source(target)
    if not mutate:
        return None
    from queueproof.mutate.mutants import mutants_of

    return mutants_of(target)


def _mutated(out: Output, mutants: Mutants, card: Card, where: Where, profile: str) -> Card:
    """The card with what became of the mutants; said too where it is interrupted."""
    from queueproof.mutate.verdicts import judge
    from queueproof.report.terminal import print_mutants

    known = card
    cards = judge(mutants, card, postgres=where.postgres, trust=where.trust, profile=profile)
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


def _mend(  # noqa: PLR0917 - what a check was made with
    out: Output, target: Queue, card: Card, where: Where, profile: str, jobs: int
) -> None:
    """Look for the change that mends a queue, and print it."""
    if card.verdict != "broken":
        out.say("Nothing is broken, so there is nothing to mend.\n")
        return
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
                postgres=where.postgres,
                trust=where.trust,
                profile=profile,
                jobs=jobs,
                progress=note,
                kept=keep,
            )
    except KeyboardInterrupt as stopped:
        if known is not None:
            print_mended(out, known, profile, shown)
        stopped.args = (f"{str(stopped) or 'interrupted'} at: {doing}",)
        raise
    print_mended(out, mended, profile, shown)


def _printed(out: Output, cards: Sequence[Card], target: Queue, replay: str) -> Card:
    """Print one card of all the ways in which a queue was judged."""
    from queueproof.mend.names import with_remedies
    from queueproof.report.card import together
    from queueproof.report.terminal import print_card

    card = with_remedies(together(cards), target, beside_the_verdict)
    print_card(out, card, replay, beside_the_verdict)
    return card


def _accepted(out: Output, target: Queue, card: Card) -> Card:
    """The card once what is broken stands in the file's [breaks]."""
    from queueproof.queues.resolve import resolve

    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    if not broken:
        out.say("Nothing is broken that is not declared: [breaks] stays as it is.")
        return card
    if resolve(target.name).digest != target.digest:
        raise QueueproofError(f"{target.name} has changed since it was read: check it again")
    write(Path(target.name), target.with_breaks(dict.fromkeys(broken, TODO)))
    out.say(f"Wrote [breaks] of {target.name}: {', '.join(broken)}. Say why each is accepted.")
    return card.accepting(broken, TODO)


def _introduce(out: Output, target: Queue, what: str, how: str) -> None:
    """Say what is checked, and at once what says more of the file than of the queue."""
    out.say(f"{what}; {how}\n")
    with beside_the_verdict("where the SQL has another number than the header"):
        _tell_numbers(out, target)
    if "jobs" not in target.offers:
        unseen = "what its tables say of a job that nobody claims any more is not seen"
        out.say(f"No block jobs: {unseen}.\n")


def _tell_numbers(out: Output, target: Queue) -> None:
    """Say where the file's SQL has another number than its header."""
    from queueproof.queues.numbers import others_than_declared
    from queueproof.queues.sqlfile import SqlFileQueue

    told = list(others_than_declared(target)) if isinstance(target, SqlFileQueue) else []
    if told:
        out.say("\n".join([*told, ""]))


def _tell_breaks(out: Output, target: Queue, card: Card, *, mend: bool) -> None:
    """Say which declared break is mended, which still lacks its reason, and what mends the rest."""
    from queueproof.queues.sqlfile import SqlFileQueue

    if card.verdict == "broken":
        _tell_numbers(out, target)
        if isinstance(target, SqlFileQueue) and not mend:
            called = shlex.quote(target.name)
            out.say(f"A small change that mends it is looked for by: queueproof mend {called}")
    for judgement in card.guarantees:
        why = target.breaks.get(judgement.id)
        if why is None:
            continue
        where = target.source_of_break(judgement.id) or target.name
        if judgement.verdict == "holds":
            mended = "where a check of everything does not see it either, take it out of [breaks]"
            out.say(f"{where}: {judgement.id} was not seen to break: {mended}")
        elif why.startswith("TODO"):
            out.say(f"{where}: {judgement.id} is accepted, and its reason still says TODO")
    if any(judgement.verdict == "accepted" for judgement in card.guarantees):
        out.say("The stories of accepted breaks stand in the reports: --html, --json.")
