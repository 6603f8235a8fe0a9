"""Guarantees that no single run can show: each has a probe that measures it on the whole queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from queueproof.errors import ServerUnavailableError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.postgres.pooler import MISSING, find_pgbouncer
from queueproof.probes import backlog, backoff, buffers, plans, pooling
from queueproof.probes.buffers import Slope, Tell, untold
from queueproof.queues.offer import Offer
from queueproof.run.lab import Lab
from queueproof.schedule.programs import Program
from queueproof.schedule.reading import read
from queueproof.search.shrink import Failure

_NOT_THROUGH = (
    "transactions through PgBouncer itself (not installed: apt-get install pgbouncer, "
    "or brew install pgbouncer)"
)


Found: TypeAlias = plans.Overclaim | backoff.RetryWaits | backlog.Overlooked | Failure | Slope
"""How a probe saw a guarantee broken: what `report` tells."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a probe saw.

    Attributes:
        evidence: What was measured to how often; a pass without any is none. What could not be
            measured for want of a tool counts 0.
        broken: How the guarantee is broken; empty where it is not.
        found: What a story of that is told from; None where it is not.
        data: What `replay` needs to see it again, as JSON.
        unable: Why it could not be asked here, with the way to have it asked; or nothing.
        lacks: The tool that this machine lacks, with the way to get it; or nothing.
        partial: Whether what is found without that tool is worth a verdict.
        remark: What else a reader of the verdict should know; or nothing.
        explains: Guarantee ids whose breach follows from this one, to the sentence that says so.
    """

    evidence: Mapping[str, int]
    broken: str = ""
    found: Found | None = None
    data: Any = None
    unable: str = ""
    lacks: str = ""
    partial: bool = False
    remark: str = ""
    explains: Mapping[str, str] = field(default_factory=dict)


class Probe(Protocol):
    """Measures one guarantee of an installed queue.

    Attributes:
        says_less: Whether a story of controlled runs, where there is one, is the better one.
        shape: The type of `Seen.data`.
    """

    says_less: bool = False
    shape: Any = bool

    def read(self, data: object) -> Any:  # noqa: ANN401 - of its shape
        """What `Seen.data` was, from what a token holds.

        Raises:
            QueueproofError: It is something else; the message has the field.
        """
        return read(self.shape, data, "probe")

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:
        """Measure; `level` is 0 for a quick look, 1 for the default and 2 for a deep one.

        Args:
            lab: Where the queue is installed; it is left in any state.
            offer: What the queue brings.
            level: How thoroughly: 0 for a quick look, 1 for the default, 2 for a deep one.
            tell: Told how far it is, where it may take minutes.

        Raises:
            QueueproofError: It cannot be measured, for a reason that is the user's to mend.
        """

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401 - JSON
        """What `Seen.data` showed again, or None where it does not happen any more.

        Args:
            lab: Where the queue is installed.
            offer: What the queue brings.
            data: `Seen.data`, as JSON gives it back.

        Raises:
            ServerUnavailableError: The tool that it was seen with is not there.
        """


class PlanGrid(Probe):
    """`claim-limit` under many plans."""

    shape = plans.Cell

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:  # noqa: ARG002 - seconds
        """Claim in every cell of the grid."""
        found = plans.walk(lab, offer, list(plans.fillings(level)))
        evidence = {
            "claims with more jobs free than allowed": found.claims,
            "distinct plans": len(found.plans),
        }
        over = found.overclaim
        if over is None:
            return Seen(evidence, remark="; ".join(plans.unasked(offer, found)))
        explained = [one.id for one in CATALOGUE.values() if one.passed_over]
        sentence = "jobs were passed over, as claims that take more than they return explain"
        return Seen(
            evidence,
            broken=f"a {over.cell.operation} with limit {over.cell.limit} took {over.taken} "
            f"({over.cell.filling}; {over.cell.setting})",
            found=over,
            # A claim's tokens are what they were before there was another way to claim.
            data=[
                list(over.cell.filling),
                *over.cell[1 : 3 if over.cell.operation == "claim" else 4],
            ],
            explains=dict.fromkeys(explained, sentence) if over.silent else {},
        )

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401 - JSON
        """The claim of one cell again."""
        return plans.replay(lab, offer, self.read(data))


class Backoff(Probe):
    """`backoff`, failure by failure."""

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:  # noqa: ARG002 - one level, seconds
        """Fail one job as often as it may be."""
        waits = backoff.watch(lab, offer)
        evidence = {"waits measured": sum(wait.most < float("inf") for wait in waits.found)}
        if waits.broken:
            return Seen(evidence, broken=waits.broken, found=waits, data=True)
        return Seen(evidence, remark=backoff.unasked(offer, waits))

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401, ARG002 - JSON
        """The same again."""
        return self.watch(lab, offer, 0, untold).found


class ThroughPgbouncer(Probe):
    """`pooler-safe` with PgBouncer itself, beside the runs in which its part is played."""

    says_less = True

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:  # noqa: ARG002 - seconds
        """Run what workers do in turn through it."""
        program = find_pgbouncer()
        if program is None:
            # Whose connections are a worker's own can only be asked behind PgBouncer itself.
            return Seen({_NOT_THROUGH: 0}, lacks=MISSING, partial=lab.chooses_connections)
        try:
            passage = pooling.watch(lab, offer, program, level)
        except ServerUnavailableError as error:
            return Seen({}, unable=str(error))
        evidence = {
            f"transactions through {passage.pooler}": passage.transactions,
            "programs over several of its connections": passage.spread,
        }
        failure = passage.failure
        if failure is None:
            unable = "" if all(evidence.values()) else f"{passage.pooler} kept to one connection"
            return Seen(evidence, unable=unable)
        return Seen(
            evidence,
            broken=f"{failure.violation.because} ({passage.pooler})",
            found=failure,
            data=failure.program.to_data(),
        )

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401 - JSON
        """The program of the story again."""
        program = find_pgbouncer()
        if program is None:
            raise ServerUnavailableError(MISSING)
        return pooling.again(lab, offer, program, self.read(data))

    def read(self, data: object) -> Program:
        """See `Probe.read`."""
        return Program.from_data(data)


@dataclass(frozen=True, slots=True)
class Growth(Probe):
    """`steady-cost` or `old-snapshot`: what a claim costs as the queue fills.

    Attributes:
        measure: Fills the queue and measures.
    """

    measure: Callable[[Lab, Offer, int, Tell], Slope]
    shape = buffers.Content

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:
        """Fill and measure, until a claim costs too much."""
        slope = self.measure(lab, offer, level, tell)
        if slope.unable or not slope.broken:
            return Seen(slope.evidence, unable=slope.unable, remark=slope.told)
        return Seen(
            slope.evidence,
            broken=slope.broken,
            found=slope,
            data=list(slope.costs[-1].content),
            remark=slope.told,
        )

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401 - JSON
        """The last filling again."""
        slope = buffers.measure(lab, offer, [buffers.again(self.read(data))])
        return slope if slope.broken else None


@dataclass(frozen=True, slots=True)
class Behind(Probe):
    """`order` or `no-starvation`: what claims do with one job behind many others.

    Attributes:
        kinds: Which others.
    """

    kinds: Sequence[backlog.BacklogKind]
    says_less = True
    shape = backlog.Backlog

    def watch(self, lab: Lab, offer: Offer, level: int, tell: Tell) -> Seen:  # noqa: ARG002 - seconds
        """Claim behind each backlog."""
        evidence: Counter[str] = Counter()
        for one in backlog.backlogs(offer, self.kinds, level):
            found = backlog.look(lab, offer, one)
            if found.broken:
                return Seen(evidence, broken=found.broken, found=found, data=list(one))
            evidence[f"claims behind {one}"] += found.claims
        return Seen(evidence)

    def replay(self, lab: Lab, offer: Offer, data: Any) -> Found | None:  # noqa: ANN401 - JSON
        """Behind one of them again."""
        found = backlog.look(lab, offer, self.read(data))
        return found if found.broken else None


MEASURING: Mapping[str, Probe] = {
    "behind more urgent": Behind(("late", "elsewhere")),
    "behind ordinary": Behind(("ordinary",)),
    "plans": PlanGrid(),
    "waits": Backoff(),
    "pgbouncer": ThroughPgbouncer(),
    "growth": Growth(buffers.watch),
    "growth under a snapshot": Growth(buffers.watch_snapshot),
}
"""What a guarantee's record names as its probe."""

PROBES: Mapping[str, Probe] = {
    name: MEASURING[one.probe] for name, one in CATALOGUE.items() if one.probe
}
"""The probe of each guarantee that has one."""
