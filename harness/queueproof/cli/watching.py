"""`watch`: a queue that is checked again whenever its file changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from queueproof.cli import options as opt
from queueproof.cli.ends import on_behalf_of
from queueproof.cli.judging import CheckOptions, print_summary, printed, remedied
from queueproof.cli.replaying import command_of
from queueproof.cli.talk import now_and_then, output, progress_bar
from queueproof.errors import QueueError, QueueproofError

if TYPE_CHECKING:
    from queueproof.examine.plan import Progress
    from queueproof.postgres import Server
    from queueproof.queues.sqlfile import SqlFileQueue
    from queueproof.report.card import Card
    from queueproof.report.terminal import Output
    from queueproof.run.lab import Lab

Stamps = Mapping[Path, tuple[int, int] | None]
"""Of each file when it was changed, and its size in bytes; None where there is none."""


def stamps(files: Sequence[Path]) -> Stamps:
    """The stamps of files as they are now."""
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:  # an editor replaces it at this moment, say
        return None
    return found.st_mtime_ns, found.st_size


def wait_for_change(seen: Stamps) -> None:
    """Wait until a file is not as it was seen: as long as its owner likes, or until a signal."""
    from queueproof import waits

    while stamps(list(seen)) == seen:
        time.sleep(waits.SLICE)


def watch(
    queue: opt.QueueFile,
    *,
    only: opt.Only = None,
    profile: opt.Profile = opt.ProfileName.quick,
    seed: opt.Seed = 0,
    jobs: opt.Jobs = None,
    postgres: opt.Postgres = None,
    trust: opt.Trust = False,
    debug: opt.Traceback = False,
) -> NoReturn:
    """Check a queue whenever its file, or a file that it includes, changes.

    The story that broke last is run first. Ctrl-C ends it.
    """
    asked = CheckOptions.of(locals())
    asked.select()
    keep_checking(queue, asked.where, asked.judge)


def keep_checking(
    queue: str,
    where: opt.Where,
    check: Callable[[Lab, Progress], Card],
    wait: Callable[[Stamps], None] = wait_for_change,
) -> NoReturn:
    """Check a queue's file now and after each change, on one server, until somebody ends it."""
    from queueproof.postgres import open_server
    from queueproof.queues.resolve import sql_file

    if not Path(queue).exists():
        sql_file(queue, "watch")  # refuses it: what is not there may be a slip of the pen
    out = output()
    token: str | None = None
    with open_server(where.postgres, trust=where.trust) as server:
        files = [Path(queue)]
        while True:
            seen = stamps(files)
            try:
                target = sql_file(queue, "watch")
                if files != list(target.files):
                    files = list(target.files)
                    continue  # read again: an included file may have changed before it was seen
                with on_behalf_of(target):
                    token = _once(out, target, server, where, check, token)
            except QueueError as error:
                out.say(str(error))
            out.say("\nWaiting for a change; Ctrl-C ends it.")
            wait(seen)


def _once(  # noqa: PLR0917 - what a check is made with
    out: Output,
    target: SqlFileQueue,
    server: Server,
    where: opt.Where,
    check: Callable[[Lab, Progress], Card],
    token: str | None,
) -> str | None:
    """Check once; the story that broke last time goes first. The token of the next such story."""
    from queueproof.report.terminal import print_whole
    from queueproof.run.open import open_lab

    began = time.monotonic()
    with open_lab(target, server) as lab:
        if token is not None:
            _replayed(out, lab, token)
        with progress_bar() as progress:
            card = check(lab, progress)
        replay = command_of(target.name, None, lab, where)
        card = remedied(out, printed(out, [card]), target)
    print_summary(out, card, target, replay)
    print_whole(out, card, time.monotonic() - began)
    broken = (one.replay for one in card.guarantees if one.verdict == "broken")
    return next(filter(None, broken), None)


def _replayed(out: Output, lab: Lab, token: str) -> None:
    """Tell at once whether a story still happens."""
    from queueproof.examine.replay import replay
    from queueproof.report.terminal import print_story
    from queueproof.search.tokens import decode_token

    guarantee = decode_token(token)[1]
    try:
        with now_and_then("running the last story again"):
            again = replay(lab, token)
    except QueueError:
        raise
    except QueueproofError as error:  # its program needs what the file has no more
        out.say(f"{error}\n")
        return
    if again is None:
        out.prose(f"The last story of {guarantee} does not happen any more; now all the others.\n")
        return
    print_story(out, again.story)
    out.prose(f"\nIt still happens: {guarantee} is broken. Now the rest.\n")
