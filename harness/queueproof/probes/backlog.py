"""A claim that has many jobs before it: some look at a page of the oldest, and at nothing else.

Programs have some dozen jobs, and a page has a hundred or a thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Literal, NamedTuple, TypeAlias

from queueproof.errors import ServerError
from queueproof.probes.probe import Probe, Seen, Tell, asked, enqueue, telling
from queueproof.queues.offer import Offer
from queueproof.run.lab import Lab
from queueproof.run.session import drive, noted
from queueproof.schedule.moments import DAY, MOMENT
from queueproof.space.constants import constants_in

JOBS = (120, 1_100, 11_000)  # by level: more than a page of 100, of 1,000, of 10,000
URGENT = 9  # the priority of what stands before a job that may run
LEAST = 1  # that of what must come first: age may make up for little, and never does
TRIES = 4  # a claim may do maintenance and answer nothing (rule 28)


BacklogKind: TypeAlias = Literal["ordinary", "late", "elsewhere"]
"""`ordinary`: ready, and of a lower priority; `late`: not due, and of a higher one where that
counts; `elsewhere`: another queue's, likewise."""

# How many of a kind there are, in words, and in what they differ from most jobs.
_KINDS: Mapping[BacklogKind, tuple[str, Mapping[str, object]]] = {
    "ordinary": ("{:,} ready jobs of priority 0", {}),
    "late": ("{:,} jobs that are due tomorrow", {"delay": timedelta(seconds=DAY)}),
    "elsewhere": ("{:,} jobs of another queue", {"queue": "other"}),
}


class Backlog(NamedTuple):
    """The jobs that stand before one ready job: of which kind, and how many."""

    kind: BacklogKind
    jobs: Annotated[int, range(100_001)]

    def __str__(self) -> str:
        return _KINDS[self.kind][0].format(self.jobs)


@dataclass(slots=True)
class Overlooked:
    """The answers of claims to one job behind a backlog."""

    backlog: Backlog  # what stood before it
    claims: int = 0  # claims that answered the job, or should have
    broken: str = ""  # what is wrong; empty where nothing is
    sent: list[str] = field(default_factory=list)  # the statements of the last claim


class Behind(Probe):
    """`order` or `no-starvation`: what claims do with one job behind many others."""

    says_less = True
    shape = Backlog

    def __init__(self, *kinds: BacklogKind) -> None:
        self._kinds = kinds

    def points(self, offer: Offer, level: int, /) -> list[Backlog]:
        """Those that a queue can have."""
        takes = offer.queue.takes("enqueue")
        able: Mapping[BacklogKind, bool] = {
            "ordinary": offer.queue.by_priority and "priority" in takes,
            "late": "delay" in takes,
            "elsewhere": offer.queue.routes,
        }
        # A number of the SQL may be that of a page, or of the jobs that a priority is worth.
        most = JOBS[min(level + 1, len(JOBS) - 1)]
        numbers = constants_in(offer.queue.written).numbers
        jobs = max(JOBS[level], *(n + 1 for n in numbers if n < most), 0)
        return [Backlog(kind, jobs) for kind in self._kinds if able[kind]]

    def look(
        self, lab: Lab, offer: Offer, points: Sequence[Backlog], _level: int, tell: Tell, /
    ) -> Seen:
        """Claim behind each backlog the one job that must be claimed first."""
        evidence: Counter[str] = Counter()
        for one in telling(points, tell):
            found = _behind(lab, offer, one)
            if found.broken:
                return Seen(evidence, found.broken, found, data=list(one))
            evidence[f"claims behind {one}"] += found.claims
        return Seen(evidence)


def _behind(lab: Lab, offer: Offer, backlog: Backlog) -> Overlooked:
    lab.reset(renew=True)
    found = Overlooked(backlog)
    ordinary = backlog.kind == "ordinary"
    top = URGENT if offer.queue.by_priority and not ordinary else 0
    with suppress(ServerError):  # judged where enqueues and claims are
        others = enqueue(lab, backlog.jobs, priority=top, **_KINDS[backlog.kind][1])
        lab.advance(MOMENT)  # the one behind them is due after them all
        mine = enqueue(lab, priority=LEAST if ordinary else 0)[0]
        lab.advance(MOMENT)
        lab.maintain(backlog.jobs + 1)
        _claim_behind(lab, found, mine, others)
    lab.reset(renew=True)
    return found


def _claim_behind(lab: Lab, found: Overlooked, mine: str, others: list[str]) -> None:
    backlog, session = found.backlog, lab.session("w1")
    for _ in range(TRIES):
        found.sent.clear()
        try:
            claims = drive(session, noted(asked(lab, "claim"), found.sent))
        finally:
            if session.in_transaction:
                session.run("ROLLBACK")
        if claims:
            break
        lab.maintain()
    taken = claims[0].id if claims else None
    if taken == mine:
        found.claims = 1
    elif taken is None and backlog.kind != "ordinary":
        found.broken = (
            f"a ready job was not claimed behind {backlog}: {TRIES} claims answered nothing"
        )
    elif taken in others and backlog.kind == "ordinary":
        place = others.index(taken) + 1
        found.broken = (
            f"a claim took the {_ordinal(place)} of {backlog}, while one of priority {LEAST} was"
            " ready"
        )


def _ordinal(number: int) -> str:
    teens = number % 100 in {11, 12, 13}
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
