"""The commands, and the one way in and out."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperArgument, TyperOption

from queueproof.cli.bench import bench
from queueproof.cli.check import check
from queueproof.cli.ends import UsageError, exit_code_of, stop
from queueproof.cli.init import init
from queueproof.cli.more import GOING_ON
from queueproof.cli.replaying import replay
from queueproof.cli.report import report
from queueproof.cli.streams import make_streams_last
from queueproof.cli.talk import say
from queueproof.cli.tell import doctor, explain, guarantees, schema, show, tell
from queueproof.cli.watching import watch
from queueproof.ending import end_on
from queueproof.errors import Exit

app = typer.Typer(
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=(
        "`queueproof COMMAND --help` shows the options of a command, with examples. Begin with:\n\n"
        "- `queueproof init jobs.sql --from-schema schema.sql`\n\n"
        "- `queueproof check jobs.sql --profile quick`"
    ),
)


def _kind(self: Any, _: object) -> str:  # noqa: ANN401 - a parameter of typer's
    """The kind of a value in help texts: Python's types say nothing to a reader."""
    known = getattr(self, "type_descriptor", None)  # typer's own, and another one's may lack it
    choices = getattr(known, "choices", None) or ()
    return "|".join(choices) or "N" * (getattr(known, "annotation", None) in {int, float})


TyperArgument.display_type = TyperOption.display_type = _kind  # type: ignore[assignment, method-assign]
# Of a misspelt command it names all that are like it: 'chek' is no schema.
typer.core.get_close_matches = partial(get_close_matches, n=1)  # type: ignore[attr-defined]

_in_help: Any = TyperOption._get_default_string  # noqa: SLF001 - typer offers no other way


def _default(self: Any, *, show_default_is_str: bool, **how: Any) -> object:  # noqa: ANN401 - as above
    """A default in help texts: typer puts one that is given as text into parentheses."""
    how |= {"default_value": self.show_default} if show_default_is_str else {}
    return _in_help(self, show_default_is_str=False, **how)


TyperOption._get_default_string = _default  # type: ignore[assignment, method-assign]  # noqa: SLF001


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's signature
    if value:
        from queueproof import __version__

        typer.echo(f"queueproof {__version__}")
        raise typer.Exit


_BEGIN = """\
queueproof finds race conditions in PostgreSQL job queues,
and shows the exact steps.

  queueproof init jobs.sql                           write an example to edit
  queueproof init jobs.sql --from-schema schema.sql  or begin with your tables
  queueproof check jobs.sql --profile quick          find what it breaks
  queueproof explain fencing                         see how to keep a guarantee

All commands: queueproof --help"""


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", metavar="", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Find race conditions in PostgreSQL job queues, and see the exact steps."""
    if context.invoked_subcommand is None:
        typer.echo(_BEGIN)


_GROUPS: Mapping[str, Mapping[str, Callable[..., int | None]]] = {
    "Begin": {"init": init, "check": check, "doctor": doctor},
    "Understand a verdict": {"explain": explain, "replay": replay, "show": show},
    "Fix, and keep it fixed": {"watch": watch, **GOING_ON},
    "Measure and report": {"bench": bench, "report": report},
    "Look up": {"guarantees": guarantees, "schema": schema, "help": tell},
}
_EXAMPLES = {
    "init": ("jobs.sql", "jobs.sql --from-schema schema.sql", "worker.mjs"),
    "check": (
        "jobs.sql --profile quick",
        "jobs.sql --only single-claim,fencing --html report.html",
        '"exec: node worker.mjs" --postgres container:postgres:18',
    ),
    "replay": ("jobs.sql fencing", "jobs.sql fencing.2 --export fencing.spec"),
    "explain": ("fencing",),
    "show": ("jobs.sql",),
    "watch": ("jobs.sql", "jobs.sql --only fencing"),
    "mutate": ("jobs.sql",),
    "accept": ("jobs.sql",),
    "schema": ("> card.schema.json",),
    "help": ("file-format", "check"),
    "mend": ("jobs.sql", "jobs.sql --only fencing > fix.diff; git apply fix.diff"),
    "bench": (
        "jobs.sql",
        "old.sql new.sql --compare",
        "jobs.sql --rounds 0 --fail-if 'buffers_per_claim > 1.2 * baseline.json'",
    ),
    "report": ("results/*.json --html report.html",),
}

_THEN = {"check": ("replay jobs.sql fencing", "mend jobs.sql")}


def _epilog(name: str) -> str | None:
    told = "\n\n".join(
        f"- `{f'queueproof {name} {one}'.strip()}`" for one in _EXAMPLES.get(name, ())
    )
    then = "\n\n".join(f"- `queueproof {one}`" for one in _THEN.get(name, ()))
    parts = [f"{title}:\n\n{each}" for title, each in (("Examples", told), ("Then", then)) if each]
    return "\n\n".join(parts) or None


for _group, _commands in _GROUPS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_group, epilog=_epilog(_name))(_command)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    make_streams_last()
    if "_QUEUEPROOF_COMPLETE" in os.environ:  # a shell asks for completions
        app(prog_name="queueproof")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup leaves one ignored, and a shell that of Ctrl-C in the background
    end_on([n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN], stop)
    try:
        Path.cwd()
    except OSError:
        told = "the folder that this was begun in is not there any more: cd into one that is"
        sys.exit(say(told, Exit.UNUSABLE))
    for argument in sys.argv[1:]:
        # A byte that is no UTF-8, as reports are.
        if any("\ud800" <= sign <= "\udfff" for sign in argument):
            sys.exit(say(f"{argument!a} is no UTF-8: rename the file", Exit.UNUSABLE))
    code = run(sys.argv[1:])
    signal.setitimer(signal.ITIMER_REAL, 0)  # of what a signal has interrupted as it began
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command: `queueproof.cli.run`."""
    if "" in arguments:  # a path would be this folder then
        after = ["queueproof", *arguments][arguments.index("")]
        return say(f"the argument after {after} is empty: is a variable unset?", Exit.UNUSABLE)
    try:
        command = typer.main.get_command(app)  # takes its time, in which a signal may come
        # Not `command.main`: it has its own exit codes for mistakes and interrupts.
        with command.make_context("queueproof", [*arguments]) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as done:
        return done.exit_code
    except UsageError as error:
        message = error.message.replace("Value error, ", "")  # pydantic's, under typer
        like = vars(error).get("possibilities") or []  # of an unknown option
        while "--trust" in like:  # which is dangerous: nobody shall try it for a misspelt one
            like.remove("--trust")
        error.message = _unquoted(arguments) or message
        error.show()
        return Exit.UNUSABLE
    except BaseException as error:  # noqa: BLE001 - every end has its exit code
        return exit_code_of(error, arguments)


def _unquoted(arguments: Sequence[str]) -> str | None:
    """The message where the shell has split an `exec:` command into several arguments."""
    if "exec:" not in arguments:
        return None
    split = arguments[arguments.index("exec:") :]
    words = list(takewhile(lambda one: not one.startswith("--"), split))
    return f'put the command in quotes: "{shlex.join(words)}"' if len(words) > 1 else None
