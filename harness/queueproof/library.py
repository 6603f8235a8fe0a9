"""The command line as functions to be called: `from queueproof import check, replay`."""

from __future__ import annotations

import os
from collections.abc import Iterable

from queueproof.errors import QueueproofError
from queueproof.examine.check import check_queue
from queueproof.examine.profiles import PROFILES
from queueproof.examine.replay import Replayed
from queueproof.examine.replay import replay as replay_on
from queueproof.guarantees.catalogue import select
from queueproof.postgres import open_server
from queueproof.queues.model import Queue
from queueproof.queues.resolve import resolve
from queueproof.report.card import Card
from queueproof.run.open import open_lab


def check(
    queue: str | os.PathLike[str] | Queue,
    *,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    require: Iterable[str] = (),
    profile: str = "default",
    seed: int = 0,
    jobs: int = 1,
    postgres: str | None = None,
    trust: bool = False,
) -> Card:
    """Judge a queue by its guarantees, as `queueproof check` does.

    Args:
        queue: A queue file, `package.module:Class`, `exec: command`, or a queue.
        only: Ids of guarantees, and no other; None for all.
        skip: Ids of those that are left out.
        require: Ids of those that must be judged: inconclusive, instead of not offered, where the
            queue does not bring what they need.
        profile: How thorough: quick, default or deep.
        seed: Of random programs and schedules: the same seed gives the same card.
        jobs: Processes that do the work. Those beside this one import its main module: a script
            calls this under `if __name__ == "__main__":` then.
        postgres: One of `errors.SERVERS`, or a DSN; None for $QUEUEPROOF_POSTGRES, or else the
            embedded server.
        trust: Whether the queue's SQL may do what a superuser may.

    Returns:
        The verdicts. A queue that is broken raises nothing: see `Card.verdict`.

    Raises:
        QueueError: The queue cannot be used; the message has the file and the line.
        QueueproofError: An argument or the server is no good.
    """
    if profile not in PROFILES:
        raise QueueproofError(f"no profile {profile!r}: it is one of {', '.join(PROFILES)}")
    if jobs < 1:
        raise QueueproofError(f"jobs is {jobs}: at least one process does the work")
    named = None if only is None else list(only)
    required = list(require)
    wanted = select(named, skip=skip, require=required)
    target = _resolved(queue)
    with open_server(postgres, trust=trust) as server, open_lab(target, server) as lab:
        return check_queue(
            lab, wanted, seed=seed, profile=profile, named=named or (), required=required, jobs=jobs
        )


def replay(
    queue: str | os.PathLike[str] | Queue,
    token: str,
    *,
    postgres: str | None = None,
    trust: bool = False,
) -> Replayed | None:
    """Run one story again, as `queueproof replay` does.

    Args:
        queue: As for `check`; the same queue as in the story, unchanged.
        token: Of the story: `Judgement.replay`.
        postgres: As for `check`.
        trust: As for `check`.

    Returns:
        The story; None where it does not happen any more.

    Raises:
        QueueproofError: It is no token, or does not fit the queue; or the server is no good.
    """
    target = _resolved(queue)
    with open_server(postgres, trust=trust) as server, open_lab(target, server) as lab:
        return replay_on(lab, token)


def _resolved(queue: str | os.PathLike[str] | Queue) -> Queue:
    return queue if isinstance(queue, Queue) else resolve(os.fspath(queue))
