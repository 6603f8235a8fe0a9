"""The command line: init, check, bench, report, explain, doctor."""

from __future__ import annotations

import errno
import io
import json as jsonlib  # `json` is an option
import os
import secrets
import select
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn, TypeAlias, cast

import typer

from queueproof.ending import end_on, is_first_to_tell, signal_that_came
from queueproof.errors import SERVERS, Exit, FormatError, QueueError, QueueproofError, ServerError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from queueproof.bench.figures import BenchReport
    from queueproof.examine.check import Replayed
    from queueproof.mutate import Mutants
    from queueproof.queues.model import Queue
    from queueproof.report.card import Card
    from queueproof.report.terminal import Output
    from queueproof.run.lab import Lab

# Everything heavier is imported where it is used: `queueproof --help` answers at once.

# click's, of which newer typers bring a copy of their own
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
_DEBUG_OPTION = "--traceback"
TODO = "TODO: why"  # the reason of a break that is accepted before anybody has given one
STDOUT = Path("-")  # what is written there is the report alone, and all else goes to stderr
QUIET_SECONDS = 30.0  # after which a line says what is being done, where there is no terminal

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Annotate(StrEnum):
    """Where a check's verdicts are shown beside its output."""

    github = "github"
    none = "none"


class ProfileName(StrEnum):
    """How thorough a check is."""

    quick = "quick"
    default = "default"
    deep = "deep"


QueueName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help='A queue file (my_queue.sql), package.module:Class, or "exec: command".',
    ),
]
Postgres: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help=f"{', '.join(SERVERS)} or a DSN; else $QUEUEPROOF_POSTGRES, else embedded.",
    ),
]


Trust: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Let the queue's SQL do what a superuser may: on a server of ours, and by the DSN of"
        " one on a server that has other people's databases.",
    ),
]


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's signature
    if value:
        from queueproof import __version__

        typer.echo(f"queueproof {__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Prove or break a PostgreSQL job queue."""


# --- check --------------------------------------------------------------------------------------


@app.command()
def check(
    queue: QueueName,
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
    only: Annotated[
        str | None,
        typer.Option(metavar="ID,...", help="Judge these alone; see `queueproof guarantees`."),
    ] = None,
    skip: Annotated[str | None, typer.Option(metavar="ID,...", help="Judge all but these.")] = None,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="ID,...",
            help="What must be judged: exit 2 where the queue does not offer it, or a tool that it"
            " needs is not here.",
        ),
    ] = None,
    profile: Annotated[
        ProfileName | None,
        typer.Option(help="How thorough: seconds, a minute, many minutes.", show_default="default"),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of random programs and schedules: same seed, same verdict.")
    ] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="the processors",
            help="Processes that do the work, each with a database of its own: the same is found.",
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
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --replay: write the story as a spec for PostgreSQL's isolationtester"
            " (FILE.spec), as a pytest test that passes once the queue is mended (FILE.py), or as a"
            " Mermaid diagram (FILE.mmd).",
        ),
    ] = None,
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
            " as it is, and so does the exit code.",
        ),
    ] = False,
    debug: Annotated[  # noqa: ARG001 - `run` looks for it
        bool, typer.Option(_DEBUG_OPTION, help="Show the traceback of an internal error.")
    ] = False,
) -> int:
    """Judge a queue by its guarantees.

    Exits 0 when all that is asked holds or is accepted, 1 when something is broken, 2 when nothing
    is broken but something stays unknown, 4 when the queue, the server or an option is no good.
    """
    from queueproof.guarantees.catalogue import select
    from queueproof.queues.resolve import resolve
    from queueproof.report.card import together
    from queueproof.report.terminal import print_card, print_whole

    named, required = _ids(only, "--only"), _ids(require, "--require")
    wanted = select(named, skip=_ids(skip, "--skip") or (), require=required or ())
    reports = _Reports(json, html, junit, badge, annotate)
    if new is not None and (mutate or mend or export is not None):
        raise QueueproofError(
            "--with makes one queue of two: --mutate, --mend and --export are about one"
        )
    others = reports.files or mutate or mend or write_breaks
    if replay is not None and (others or only or skip or require):
        raise QueueproofError(
            "--replay runs one story: --only, --skip, --require, --mutate, --mend, --write-breaks"
            " and reports do not go with it"
        )
    if export is not None:
        _refuse_export(export, replay)
    if replay is None:
        reports.refuse_unwritable()
    target = resolve(queue) if new is None else _deployment(queue, new)
    if write_breaks:
        target.with_breaks({})
        _refuse_unwritable(Path(queue))
    thorough = (profile or (ProfileName.quick if mutate else ProfileName.default)).value
    where = _Where(postgres, trust)
    with _on_behalf_of(target):
        from queueproof.examine.check import check_queue
        from queueproof.machine import processors

        if replay is not None:
            return _replay(target, replay, where, export)
        mutants = _planned(target, mutate=mutate, mend=mend)
        out = _output(*reports.files)
        cards: list[Card] = []
        for way in target.ways:
            with _lab(way, where) as lab:
                command = _again(queue, new, lab, where)
                if not cards:
                    called = queue if new is None else target.name
                    out.say(f"{called} on {lab.server.label}; seed {seed}, profile {thorough}\n")
                with _progress() as progress:
                    card = check_queue(
                        lab,
                        wanted,
                        seed=seed,
                        profile=thorough,
                        named=named or (),
                        required=required or (),
                        jobs=jobs or processors(),
                        progress=progress,
                    )
                cards.append(card)
        card = together(cards)
        print_card(out, card, command)
        if mutants is not None:
            card = _mutated(out, mutants, card, where, thorough)
        if mend:
            _mend(out, target, card, where, thorough, jobs or processors())
    if write_breaks:
        card = _accepted(out, target, card)
    _tell_breaks(out, target, card)
    reports.annotate(out, card)
    print_whole(out, card)
    reports.write(card, command)
    return card.exit_code


def _accepted(out: Output, target: Queue, card: Card) -> Card:
    """The card once what is broken stands in the file's [breaks]."""
    from queueproof.queues.resolve import resolve

    broken = [one.id for one in card.guarantees if one.verdict == "broken"]
    if not broken:
        out.say("Nothing is broken that is not declared: [breaks] stays as it is.")
        return card
    if resolve(target.name).digest != target.digest:
        raise QueueproofError(f"{target.name} has changed since it was read: check it again")
    _write(Path(target.name), target.with_breaks(dict.fromkeys(broken, TODO)))
    out.say(f"Wrote [breaks] of {target.name}: {', '.join(broken)}. Say why each is accepted.")
    return card.accepting(broken, TODO)


def _tell_breaks(out: Output, target: Queue, card: Card) -> None:
    """Say which declared break is mended, and which still lacks its reason."""
    for judgement in card.guarantees:
        why = target.breaks.get(judgement.id)
        if why is None:
            continue
        where = target.source_of_break(judgement.id) or target.name
        if judgement.verdict == "holds":
            out.say(f"{where}: {judgement.id} was not seen to break: take it out of [breaks]")
        elif why.startswith("TODO"):
            out.say(f"{where}: {judgement.id} is accepted, and its reason still says TODO")


class _Reports:
    """What a check writes beside its output.

    Args:
        json: The card as JSON.
        html: As a page.
        junit: As JUnit XML.
        badge: As a badge.
        annotate: Where it is shown as well; None: on GitHub, where that runs us.

    Raises:
        QueueproofError: Two of them are one file.
    """

    def __init__(
        self,
        json: Path | None,
        html: Path | None,
        junit: Path | None,
        badge: Path | None,
        annotate: Annotate | None,
    ) -> None:
        self._json, self._html, self._junit, self._badge = json, html, junit, badge
        self.files = [path for path in (json, html, junit, badge) if path is not None]
        if len(set(self.files)) < len(self.files):
            raise QueueproofError("--json, --html, --junit and --badge need a file each")
        here = Annotate.github if os.environ.get("GITHUB_ACTIONS") == "true" else Annotate.none
        self._github = (annotate or here) is Annotate.github
        summary = os.environ.get("GITHUB_STEP_SUMMARY") if self._github else None
        self._summary = Path(summary) if summary else None

    def refuse_unwritable(self) -> None:
        """Find out before the minute of work whether they can be written."""
        for path in (*self.files, self._summary):
            if path is not None:
                _refuse_unwritable(path)

    def annotate(self, out: Output, card: Card) -> None:
        """Say to whoever runs us at which lines of the queue it breaks."""
        from queueproof.report.github import commands

        for line in commands(card, os.environ.get("GITHUB_WORKSPACE", "")) if self._github else ():
            out.say(line)

    def write(self, card: Card, replay: str) -> None:
        """Write them all.

        Args:
            card: The verdicts.
            replay: The command that replays a story, up to its token.
        """
        from queueproof.report.badge import to_badge
        from queueproof.report.github import to_summary
        from queueproof.report.junit import to_junit
        from queueproof.report.page import to_page

        if self._json is not None:
            _write(self._json, card.to_json() + "\n")
        if self._html is not None:
            _write(self._html, to_page([card], replay))
        if self._junit is not None:
            _write(self._junit, to_junit(card))
        if self._badge is not None:
            _write(self._badge, to_badge(card))
        if self._summary is not None:
            _append(self._summary, to_summary(card, replay))


class _Where(NamedTuple):
    """Which server, and whether the queue is trusted with a superuser's rights there."""

    postgres: str | None
    trust: bool


def _refuse_export(export: Path, replay: str | None) -> None:
    if replay is None:
        raise QueueproofError("--export writes one story: it goes with --replay TOKEN")
    if export.suffix not in {".spec", ".py", ".mmd"}:
        raise QueueproofError(
            f"--export {export}: the file's name says what it becomes; end it in .spec"
            " (isolationtester), .py (pytest) or .mmd (Mermaid)"
        )
    _refuse_unwritable(export)


def _deployment(old: str, new: str) -> Queue:
    from queueproof.queues.deployment import deployment

    return deployment(old, new)


def _again(queue: str, new: str | None, lab: Lab, where: _Where) -> str:
    """The command that replays a story of this check, but for its token."""
    beside = [] if new is None else ["--with", new]
    server = [] if where.postgres is None else ["--postgres", lab.server.source]
    trust = ["--trust"] if where.trust else []
    return shlex.join(["queueproof", "check", queue, *beside, *server, *trust, "--replay"])


def _planned(target: Queue, *, mutate: bool, mend: bool) -> Mutants | None:
    """The mutants, if any are asked for; what cannot be changed is refused before the check."""
    if mend:
        from queueproof.mend.search import source

        source(target)
    if not mutate:
        return None
    from queueproof.mutate import mutants_of

    return mutants_of(target)


def _mutated(out: Output, mutants: Mutants, card: Card, where: _Where, profile: str) -> Card:
    """The card with what became of the mutants; said too where it is interrupted."""
    from queueproof.mutate import judge
    from queueproof.report.terminal import print_mutants

    known = card
    cards = judge(mutants, card, postgres=where.postgres, trust=where.trust, profile=profile)
    total = len(mutants.mutants)
    try:
        with _progress() as progress, closing(cards):
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
    out: Output, target: Queue, card: Card, where: _Where, profile: str, jobs: int
) -> None:
    """Look for the change that mends a queue, and print it."""
    if card.verdict != "broken":
        out.say("Nothing is broken, so there is nothing to mend.\n")
        return
    from queueproof.mend.search import mend
    from queueproof.report.terminal import print_mended

    doing = "looking for a remedy"

    def note(what: str, done: float) -> None:
        nonlocal doing
        doing = what
        progress(what, done)

    try:
        with _progress() as progress:
            mended = mend(
                target,
                card,
                postgres=where.postgres,
                trust=where.trust,
                profile=profile,
                jobs=jobs,
                progress=note,
            )
    except KeyboardInterrupt as stopped:
        stopped.args = (f"{str(stopped) or 'interrupted'} at {doing}, with nothing mended",)
        raise
    print_mended(out, mended)


def _replay(target: Queue, token: str, where: _Where, export: Path | None) -> int:
    from queueproof.examine.check import decode_token, replay
    from queueproof.report.terminal import Output, print_story
    from queueproof.report.text import WIDTH, to_text

    digest, guarantee, _, _ = decode_token(token)
    own = next((way for way in target.ways if way.digest == digest), target.ways[0])
    edited = own.digest != digest
    text = ""
    with _lab(own, where) as lab:
        out = Output()
        out.say(f"{target.name} on {lab.server.label}; one story of {guarantee}")
        if edited:
            out.say("The queue has changed since: the story's program is run under every order.")
        out.say()
        with _now_and_then("running the story again"):
            replayed = replay(lab, token)
        if export is not None and replayed is not None:
            text = _exported(lab, replayed, token, export)
    if replayed is None:
        out.say(f"It does not happen any more{', in any order' if edited else ''}.")
        return Exit.HOLDS
    print_story(out, to_text(replayed.told, out.width if out.is_terminal else WIDTH))
    out.say()
    if export is not None:
        _write(export, text)
        out.say(f"Wrote {export}")
    out.say(f"It happened again: {guarantee} is broken.")
    return Exit.BROKEN


def _exported(lab: Lab, replayed: Replayed, token: str, export: Path) -> str:
    """A story as the file that was asked for."""
    from queueproof.examine.check import replay
    from queueproof.report.export import refuse_varying, surroundings, to_spec, to_test

    name = lab.queue.name
    command = shlex.join(["queueproof", "check", name, "--replay", token])
    if export.suffix == ".py":
        return to_test(
            replayed.story,
            replayed.data,
            guarantee=replayed.guarantee,
            queue=_from(export, name),
            command=command,
        )
    if export.suffix == ".mmd":
        return _diagram(replayed, export)
    if lab.remembers:
        raise QueueproofError(
            f"--export {export}: what a worker prepares and keeps stands in no spec; export the"
            " story as a test, FILE.py"
        )
    if replayed.failure is None:
        raise QueueproofError(
            f"--export {export}: no order of statements tells this story of {replayed.guarantee};"
            " export it as a test, FILE.py"
        )
    again = replay(lab, token)
    if again is None or again.failure is None:
        raise QueueproofError(f"--export {export}: the story does not happen each time")
    refuse_varying(replayed.failure, again.failure)
    return to_spec(
        replayed.failure,
        surroundings(lab),
        guarantee=replayed.guarantee,
        command=command,
        name=export.name,
    )


def _diagram(replayed: Replayed, export: Path) -> str:
    from queueproof.report.mermaid import to_mermaid
    from queueproof.report.story import Story

    if isinstance(replayed.told, Story):
        return to_mermaid(replayed.told) + "\n"
    raise QueueproofError(
        f"--export {export}: this story of {replayed.guarantee} has no steps to be drawn; export it"
        " as a test, FILE.py"
    )


def _from(export: Path, queue: str) -> str:
    """A queue as Python, a file by its place beside the one that is written."""
    if not Path(queue).exists():
        return jsonlib.dumps(queue)
    way = os.path.relpath(queue, export.resolve().parent)
    return f"Path(__file__).parent / {jsonlib.dumps(way)}"


@contextmanager
def _lab(target: Queue, where: _Where) -> Iterator[Lab]:
    from queueproof.postgres import open_server
    from queueproof.run.open import open_lab

    with ExitStack() as stack:
        with _now_and_then("starting PostgreSQL, installing the queue"):
            server = stack.enter_context(open_server(where.postgres, trust=where.trust))
            lab = stack.enter_context(open_lab(target, server))
        yield lab


@contextmanager
def _now_and_then(doing: str) -> Iterator[Callable[[str, float], None]]:
    """Say what is being done, if it takes long; what is yielded is told of something else."""
    began, done = time.monotonic(), threading.Event()
    now = doing

    def note(what: str, fraction: float) -> None:
        nonlocal now
        now = f"{what}, {fraction:.0%} done"

    def say() -> None:
        while not done.wait(QUIET_SECONDS):
            _say(f"after {time.monotonic() - began:.0f} s: {now}", Exit.HOLDS)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield note
    finally:
        done.set()


@contextmanager
def _progress(
    first: str = "trying every operation once",
) -> Iterator[Callable[[str, float], None]]:
    if not sys.stderr.isatty():
        with _now_and_then(first) as note:
            yield note
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, done: bar.update(task, description=what.ljust(16), completed=done)


# --- the rest -----------------------------------------------------------------------------------


_TEMPLATES = {
    ".sql": ("queue.sql", "{}"),
    ".py": ("worker.py", "exec: python {}"),
    ".mjs": ("worker.mjs", "exec: node {}"),
}


@app.command()
def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Where to write it: a queue file, or a worker (.py, .mjs).",
        ),
    ],
    *,
    from_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DSN",
            help="Propose a queue file for the tables that you have: of pg_dump's output, of a"
            " migration, or of a running database, which is only read.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --from-schema: that of the jobs.")
    ] = None,
    postgres: Postgres = None,
    trust: Trust = False,
) -> None:
    """Write a commented queue file, or a worker, to start from."""
    if from_schema is not None:
        _init_from(path, from_schema, table, _Where(postgres, trust))
        return
    if table is not None:
        raise QueueproofError("--table goes with --from-schema FILE|DSN")
    if path.suffix not in _TEMPLATES:
        endings = ", ".join(_TEMPLATES)
        raise QueueproofError(f"{path}: its ending says what to write; end it in one of {endings}")
    source, name = _TEMPLATES[path.suffix]
    template = files("queueproof.queues").joinpath("templates", source).read_text(encoding="utf-8")
    _write_new(path, template)
    queue = name.format(path if path.suffix == ".sql" else shlex.quote(str(path)))
    typer.echo(f"Wrote {path}: a queue that works. Make it yours, and see what still holds:")
    typer.echo(f"  queueproof check {shlex.quote(queue)}")


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        QueueproofError: It is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise QueueproofError(f"{path} exists already, and is left as it is") from None
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _init_from(path: Path, source: str, table: str | None, where: _Where) -> None:
    """Write a queue file for somebody's tables; and their schema beside it, if it has no file."""
    from queueproof.proposal import dump, propose

    if path.suffix != ".sql":
        raise QueueproofError(f"{path}: what --from-schema writes is a queue file; end it in .sql")
    if path.exists():
        raise QueueproofError(f"{path} exists already, and is left as it is")
    schema = Path(source)
    is_dsn = not schema.is_file() and ("=" in source or "://" in source)
    if not (is_dsn or schema.is_file()):
        raise QueueproofError(f"--from-schema {source}: no such file, and no DSN")
    if is_dsn:
        schema = path.with_suffix(".schema.sql")
        _write_new(schema, dump(source))
    try:
        with _now_and_then("reading the schema"):
            proposed = propose(
                path, schema, table=table, postgres=where.postgres, trust=where.trust
            )
        _write_new(path, proposed.text)
    except BaseException:
        if is_dsn:
            schema.unlink(missing_ok=True)
        raise
    todos = proposed.text.count("TODO")
    if is_dsn:
        typer.echo(f"Wrote {schema}: the schema, as pg_dump tells it.")
    typer.echo(f"Wrote {path}: a queue in {proposed.table}, with {todos} TODOs to look at.")
    if proposed.rejected is not None:
        typer.echo(f"The server does not take it yet. {proposed.rejected}")
    typer.echo(f"Make it yours, and see what holds:\n  queueproof check {shlex.quote(str(path))}")


@app.command()
def bench(
    queues: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE...", help="Queue files; the first is the yardstick."),
    ],
    *,
    batch: Annotated[
        str | None,
        typer.Option(metavar="N,...", show_default="1,10,100", help="Jobs per claim."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N,...", show_default="1,4,16", help="Processes.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Say whether the second of two queues is faster or slower than the first: round"
            " by round under one load (batch 10 and 4 workers unless given), until it is sure or"
            " the budget ends.",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS|'N rounds'", show_default="180", help="Of a comparison, at most."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=100,
            show_default="5",
            help="How often each is measured; 0 reads counters only.",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            metavar="JOBS/S",
            min=0,
            help="An open loop: claims are due at this rate, and latencies count from then (1 job"
            " per claim, 4 workers and 5 s unless given).",
            show_default=False,
        ),
    ] = 0.0,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", show_default="0.7", help="Of measured work of the fastest in a round."
        ),
    ] = None,
    backlog: Annotated[
        int, typer.Option(metavar="N", min=0, help="Jobs that stand in the queue beyond those.")
    ] = 0,
    payload: Annotated[
        int, typer.Option(metavar="BYTES", min=0, help="Of each job, at least.")
    ] = 0,
    hold: Annotated[
        float,
        typer.Option(metavar="MS", min=0, help="Keep a claim's transaction open before its end."),
    ] = 0.0,
    warm_up: Annotated[
        float, typer.Option(metavar="S", min=0, help="The same load before what is measured.")
    ] = 0.0,
    yardstick: Annotated[
        bool,
        typer.Option(
            "--yardstick", help="Run the same SQL by pgbench in the same rounds, and say the ratio."
        ),
    ] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit 1 where it is true: 'buffers_per_claim > 1.2 * baseline.json' or '... > 9';"
            " may be given again. The file is an earlier run's --json.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of who goes first, and of intervals.")] = 0,
    postgres: Postgres = None,
    trust: Trust = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - is stdout.")
    ] = None,
) -> int:
    """Measure jobs per second, the latency of a claim, and what a job costs in counters.

    Ctrl-C ends it with the rounds that are whole. Exits 1 when a condition of --fail-if is true.
    """
    from queueproof.queues.resolve import resolve

    many = "10" if compare else "1" if rate else "1,10,100"
    batches = _counts(batch or many, "--batch")
    processes = _counts(workers or ("4" if compare or rate else "1,4,16"), "--workers")
    if compare and rate:
        raise QueueproofError("--compare compares capacity: --rate does not go with it")
    if compare and len(batches) * len(processes) > 1:
        raise QueueproofError("--compare is under one load: name one --batch and one --workers")
    if budget is not None and not compare:
        raise QueueproofError("--budget is a comparison's: it goes with --compare")
    if yardstick and compare:
        raise QueueproofError("--yardstick is a measurement's: --compare compares queues")
    if rounds is not None and compare:
        raise QueueproofError("--compare takes the rounds that it needs: limit it by --budget")
    if json is not None:
        _refuse_unwritable(json)
    found = [resolve(queue) for queue in queues]
    with _bench_extra():
        from queueproof.bench import compare as pairs
        from queueproof.bench import render
        from queueproof.bench.bench import OPEN_SECONDS, ROUNDS, SECONDS
        from queueproof.bench.bench import run as measure
        from queueproof.bench.compare import Budget
        from queueproof.bench.gate import Condition
        from queueproof.bench.measured import Pace, Shape

        pace = Pace(rate, backlog, payload, warm_up)
        conditions = [Condition.of(text) for text in fail_if or ()]
        limits = Budget() if budget is None else Budget.of(budget)

        out = _output(json)  # whose imports take time, which there is not once a signal has come

        def show(report: BenchReport) -> None:
            if json is not None:
                _write(json, report.to_json())
            out.markdown(render.markdown(report))
            sys.stdout.flush()

        with _progress("starting PostgreSQL and the workers") as progress:
            if compare:
                report = pairs.compare(
                    found,
                    Shape(batches[0], processes[0], hold / 1000),
                    budget=limits,
                    seed=seed,
                    seconds=seconds or pairs.SECONDS,
                    pace=pace,
                    postgres=postgres,
                    trust=trust,
                    progress=progress,
                    keep=show,
                )
            else:
                report = measure(
                    found,
                    batches,
                    processes,
                    holds=[hold / 1000],
                    rounds=ROUNDS if rounds is None else rounds,
                    seconds=seconds or (OPEN_SECONDS if rate else SECONDS),
                    pace=pace,
                    yardstick=yardstick,
                    postgres=postgres,
                    trust=trust,
                    progress=progress,
                    keep=show,
                )
        show(report)
    failing = [told for condition in conditions for told in condition.judge(report.entries)]
    for told in failing:
        _say(f"--fail-if: {told}", Exit.BROKEN)
    return Exit.BROKEN if failing else Exit.HOLDS


@app.command()
def report(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="What check and bench wrote with --json."),
    ],
    *,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
) -> None:
    """Put cards and benchmarks on one page."""
    from queueproof.report.page import read_card, to_page

    _refuse_unwritable(html)
    cards, benches = [], []
    for path in results:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise QueueproofError(f"cannot read {path}: {error}") from error
        try:
            if '"guarantees"' in text:
                cards.append(read_card(text))
                continue
            with _bench_extra():
                from queueproof.bench import render
                from queueproof.bench.figures import BenchReport

                found = BenchReport.from_json(text)
                benches.append(render.svg(found) + render.html(found))
        except QueueproofError as error:
            raise QueueError(f"{path}: {error}") from error
    _write(html, to_page(cards, benches=benches))
    typer.echo(f"Wrote {html}")


@contextmanager
def _bench_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        message = f"{error}: install what benchmarks need with pip install 'queueproof[bench]'"
        raise QueueproofError(message) from error


@app.command()
def guarantees() -> None:
    """List what a queue is judged by."""
    from queueproof.guarantees.catalogue import CATALOGUE

    for guarantee in CATALOGUE.values():
        typer.echo(f"{guarantee.id:<18} {guarantee.sentence}")


class Topic(StrEnum):
    """A part of the reference that is installed."""

    file_format = "file-format"
    program = "program"
    python_class = "class"


_REFERENCE = {
    Topic.file_format: ("queueproof.strategies", "README.md"),
    Topic.program: ("queueproof.queues", "templates/README.md"),
}


@app.command("help")
def tell(
    topic: Annotated[
        Topic,
        typer.Argument(
            help="file-format: a queue in one SQL file; program: a worker in any language;"
            " class: a queue in Python."
        ),
    ],
) -> None:
    """Print a part of the reference, which needs no network."""
    if topic is Topic.python_class:
        from inspect import getdoc

        from queueproof.queues.model import Facts, Queue

        text = f"{getdoc(Queue)}\n\n{getdoc(Facts)}"
    else:
        package, path = _REFERENCE[topic]
        text = files(package).joinpath(path).read_text(encoding="utf-8")
    typer.echo(text)


@app.command()
def schema() -> None:
    """Print the JSON Schema of what `check --json` writes."""
    typer.echo(files("queueproof.report").joinpath("card.schema.json").read_text("utf-8").rstrip())


@app.command()
def doctor(
    *,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as JSON; - is stdout.")
    ] = None,
) -> None:
    """Say what this machine has for a check, and what the rest would add."""
    from dataclasses import asdict

    from queueproof.doctor import look

    if json is not None:
        _refuse_unwritable(json)
    out = _output(json)
    findings = []
    for found in look():
        findings.append(found)
        out.say(f"{found.state:<8} {found.name:<20} {found.found}".rstrip())
        if found.state != "here":
            out.say(f"{'':<29} for {found.adds}")
            out.say(f"{'':<29} {'get it' if found.state == 'missing' else 'mend it'}: {found.get}")
    if json is not None:
        _write(json, jsonlib.dumps([asdict(found) for found in findings], indent=2) + "\n")


@app.command()
def explain(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A guarantee, such as fencing; none lists them."),
    ] = None,
) -> None:
    """Tell how a guarantee breaks, how to mend it, and show the smallest queue that breaks it."""
    if name is None:
        guarantees()
        return
    from queueproof.explain import explain as explained
    from queueproof.guarantees.catalogue import select

    typer.echo(explained(select([name])[0]))


# --- files --------------------------------------------------------------------------------------


def _output(*reports: Path | None) -> Output:
    """Where to talk: not to stdout, where that is a report."""
    from queueproof.report.terminal import Output

    return Output(sys.stderr if STDOUT in reports else None)


def _ids(text: str | None, option: str) -> list[str] | None:
    return None if text is None else _listed(text, option)


def _listed(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise QueueproofError(f"{option} {text!r}: write names with commas between them")
    return names


def _counts(text: str, option: str) -> list[int]:
    names = _listed(text, option)
    if not all(name.isascii() and name.isdigit() and int(name) for name in names):
        raise QueueproofError(f"{option} {text!r}: write whole numbers from 1 on, such as 1,10")
    return [int(name) for name in names]


def _refuse_unwritable(path: Path) -> None:
    """Find out before the minute of work whether its result can be written.

    Raises:
        QueueproofError: It cannot.
    """
    if path == STDOUT:
        return
    real = path.resolve()
    try:
        if real.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not real.exists() or real.is_file():
            beside = _beside(real)
            beside.touch(exist_ok=False)
            beside.unlink()
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all.

    Raises:
        QueueproofError: It cannot be written.
    """
    if path == STDOUT:
        sys.stdout.write(text)
        return
    real = path.resolve()
    beside = _beside(real)
    try:
        if real.exists() and not real.is_file():  # /dev/stdout, a pipe: nothing to put in place
            real.write_text(text, encoding="utf-8")
            return
        try:
            beside.write_text(text, encoding="utf-8")
            if real.exists():
                shutil.copymode(real, beside)
            beside.replace(real)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _append(path: Path, text: str) -> None:
    """Write to the end of a file that others write to as well.

    Raises:
        QueueproofError: It cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise QueueproofError(f"cannot write {path}: {error.strerror}") from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


# --- what goes wrong ----------------------------------------------------------------------------


class _StoppedError(KeyboardInterrupt):
    """A signal asks for an orderly end. Hypothesis would take a SystemExit for a finding."""

    def __init__(self, number: int) -> None:
        super().__init__(_name(number))
        self.number = number


def _name(number: int) -> str:
    return signal.Signals(number).name


def _stop(number: int) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else _StoppedError(number)


@contextmanager
def _on_behalf_of(queue: Queue) -> Iterator[None]:
    """Give errors of a queue's own the queue's name, or its line."""
    from queueproof.queues.resolve import blame

    try:
        yield
    except QueueError as error:
        if error.source is not None or str(error).startswith(queue.name):
            raise
        raise QueueError(f"{queue.name}: {error}") from error
    except QueueproofError:
        raise
    except Exception as error:
        culprit = next((b for e in _causes(error) if (b := blame(e, queue))), None)
        if culprit is not None:
            raise culprit from error
        raise


class _LastingStream(io.RawIOBase):
    """A standard stream that swallows everything once it cannot be written to any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # a pipe that somebody else has set so
            select.select([], [self._descriptor], [])
            return 0
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._descriptor)
            return memoryview(data).nbytes


def _make_streams_last() -> None:
    """Let no stream that is closed, full, or read by nobody change what the exit code says."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed, and the next file that is opened would stand in for it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        known = getattr(sys, name)
        stream = io.TextIOWrapper(
            io.BufferedWriter(_LastingStream(descriptor)),
            encoding=known.encoding if known else "utf-8",
            errors="replace",
            line_buffering=name == "stderr" or os.isatty(descriptor),
        )
        if known:
            known.flush()
        setattr(sys, name, stream)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - the process' own


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    _make_streams_last()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup leaves one ignored, and a shell that of Ctrl-C in the background
    end_on([n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN], _stop)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: As they stand after `queueproof`.

    Returns:
        The exit code; what went wrong is on stderr then.
    """
    command = typer.main.get_command(app)
    try:
        # Not `command.main`: it has its own exit codes for mistakes and interrupts.
        with command.make_context("queueproof", [*arguments]) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as done:
        return done.exit_code
    except _UsageError as error:
        error.message = error.message.replace("Value error, ", "")  # pydantic's, under typer
        error.show()
        return Exit.UNUSABLE
    except BaseException as error:  # noqa: BLE001 - every end has its exit code
        causes = _causes(error)
        for cause in causes:
            if isinstance(cause, _StoppedError):
                return _say_once(f"stopped by {cause}", 128 + cause.number)
            if isinstance(cause, KeyboardInterrupt):
                return _say_once(str(cause) or "interrupted", Exit.INTERRUPTED)
        if (number := signal_that_came()) is not None:
            by = "interrupted" if number == signal.SIGINT else f"stopped by {_name(number)}"
            return _say_once(by, 128 + number)
        if told := next(filter(None, map(_outage, causes)), None):
            return _say(told, Exit.UNUSABLE)
        for cause in causes:
            if isinstance(cause, FormatError):
                told = f"{cause}\nThe format of a queue file: queueproof help file-format"
                return _say(told, Exit.UNUSABLE, prefix="")
            if isinstance(cause, QueueError):
                return _say(str(cause), Exit.UNUSABLE, prefix="")
            if isinstance(cause, QueueproofError):
                return _say(str(cause), Exit.UNUSABLE)
        told = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}\n"
        told += "This is a bug of queueproof's. Please report it with the queue and what "
        if _DEBUG_OPTION in arguments or os.environ.get("QUEUEPROOF_DEBUG"):
            traceback.print_exception(error)
            return _say(told + "is printed above.", Exit.INTERNAL)
        again = shlex.join(["queueproof", *arguments, _DEBUG_OPTION])
        return _say(f"{told}this prints:\n  {again}", Exit.INTERNAL)


def _causes(error: BaseException) -> list[BaseException]:
    """An error and all that it came from; Hypothesis reports what did not repeat as a group."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or one in found:
            continue
        found.append(one)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
        todo += [one.__cause__, None if one.__suppress_context__ else one.__context__]
    return found


def _outage(error: BaseException) -> str | None:
    """What to say where the ground under the run has gone: the disk or the server."""
    import psycopg

    from queueproof.run.session import ConnectionLostError

    state = getattr(error, "sqlstate", None) if _from_server(error) else None
    detail = " ".join(str(error).split())
    if state == "53100":
        return f"the disk of the PostgreSQL server is full: {detail}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {detail}"
    lost = isinstance(error, ConnectionLostError | psycopg.OperationalError)
    if lost or (state or "").startswith(("57P0", "53", "58")):
        return (
            "PostgreSQL went away or gave up in the middle of the run, so there is no verdict: "
            f"{detail}"
        )
    return None


def _from_server(error: BaseException) -> bool:
    import psycopg

    return isinstance(error, ServerError | psycopg.Error)


def _say_once(message: str, code: int) -> int:
    """Say that a signal ends the run, unless who waits for this end has lost his patience."""
    if signal_that_came() is None or is_first_to_tell():
        return _say(message, code)
    return code


def _say(message: str, code: int, *, prefix: str = "queueproof: ") -> int:
    print(f"{prefix}{message}", file=sys.stderr)  # noqa: T201 - where errors go
    return code
