"""A queue written as a Python class is judged as the same queue in SQL is."""

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import time_machine

from queueproof.errors import QueueError
from queueproof.examine.check import check_queue
from queueproof.guarantees.catalogue import select
from queueproof.queues import processclock
from queueproof.queues.model import Claim, JobRow, Operation, Queue, State, Step, Value
from queueproof.run import wallclock
from queueproof.run.lab import Lab
from tests.fix_labs import LabOf, judged

ASKED = ("single-claim", "claim-limit", "stale-recovery", "live-lease", "fencing")
STATES: dict[str, State] = {"q": "queued", "r": "running", "c": "completed", "f": "failed"}


class SkipLocked(Queue):
    """The reference, in Python: a lease, and the attempt as the fencing token."""

    lease = timedelta(seconds=30)
    max_attempts = 3

    free = "state = 'q'"
    lock = "FOR UPDATE SKIP LOCKED"
    mine = "id = :id AND state = 'r' AND attempts = :attempt"
    lapsed = "until < now()"

    def install(self) -> Operation[None]:
        """Create the table."""
        yield Step(
            "CREATE TABLE jobs (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'q', "
            "attempts int NOT NULL DEFAULT 0, bound int NOT NULL, until timestamptz)"
        )

    def enqueue(self, max_attempts: int) -> Operation[list[str]]:
        """Put a job in."""
        insert = "INSERT INTO jobs (bound) VALUES (:bound) RETURNING id"
        result = yield Step(insert, {"bound": max_attempts})
        return [str(row["id"]) for row in result.rows]

    def claim(self, limit: int, lease: timedelta) -> Operation[list[Claim]]:
        """Take some jobs: look, then mark."""
        yield Step("BEGIN")
        look = f"SELECT id FROM jobs WHERE {self.free} ORDER BY id LIMIT :limit {self.lock}"
        found = yield Step(look, {"limit": limit})
        claims = []
        for row in found.rows:
            result = yield Step(
                "UPDATE jobs SET state = 'r', attempts = attempts + 1, until = now() + :lease "
                "WHERE id = :id RETURNING id, attempts",
                {"id": row["id"], "lease": lease},
            )
            claims += [Claim(str(r["id"]), dict(r)) for r in result.rows]
        yield Step("COMMIT")
        return claims

    def _change(self, change: str, job: Claim, **params: Value | timedelta) -> Operation[bool]:
        known = {"id": job.token["id"], "attempt": job.token["attempts"], **params}
        result = yield Step(f"UPDATE jobs SET {change} WHERE {self.mine}", known)
        return result.affected > 0

    def complete(self, job: Claim) -> Operation[bool]:
        """Finish a job."""
        return (yield from self._change("state = 'c'", job))

    def fail(self, job: Claim) -> Operation[bool]:
        """Give a job back, or give it up."""
        again = "state = CASE WHEN attempts < bound THEN 'q' ELSE 'f' END"
        return (yield from self._change(again, job))

    def heartbeat(self, job: Claim, lease: timedelta) -> Operation[bool]:
        """Extend a lease."""
        return (yield from self._change("until = now() + :lease", job, lease=lease))

    def recover(self) -> Operation[list[str]]:
        """Bring back what crashed workers held."""
        result = yield Step(
            "UPDATE jobs SET state = CASE WHEN attempts < bound THEN 'q' ELSE 'f' END "
            f"WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE state = 'r' AND {self.lapsed} "
            "FOR UPDATE SKIP LOCKED)) RETURNING id",
            self._moment(),
        )
        return [str(row["id"]) for row in result.rows]

    def _moment(self) -> dict[str, str]:
        return {}

    def jobs(self) -> Operation[list[JobRow]]:
        """Look."""
        result = yield Step("SELECT id, state, attempts FROM jobs")
        seen = [(str(row["id"]), str(row["state"]), int(row["attempts"])) for row in result.rows]
        return [JobRow(job, STATES[state], attempts) for job, state, attempts in seen]


class NoLock(SkipLocked):
    """Its claim looks without a lock."""

    lock = ""


class NoFence(SkipLocked):
    """Its complete asks whether the job runs, not for whom."""

    mine = "id = :id AND state = 'r' AND :attempt::int > 0"


def verdicts_of(lab: Lab, *asked: str) -> dict[str, str]:
    """Guarantee id to verdict."""
    return {name: one.verdict for name, one in judged(lab, *asked, profile="glance").items()}


@pytest.mark.parametrize(
    ("queue", "broken"),
    [(SkipLocked(), None), (NoLock(), "single-claim"), (NoFence(), "fencing")],
    ids=lambda queue: type(queue).__name__,
)
def test_a_class_is_judged_like_a_file(lab_of: LabOf, queue: Queue, broken: str | None) -> None:
    """The sound class keeps every guarantee; one with a planted defect breaks that one alone."""
    verdicts = verdicts_of(lab_of(queue), *ASKED)
    assert verdicts == {name: "broken" if name == broken else "holds" for name in ASKED}


def test_a_class_offers_what_it_defines() -> None:
    """What a class can do is what it has; what an operation takes is what its signature names."""
    queue = SkipLocked()
    assert "cleanup" not in queue.offers
    assert queue.takes("claim") == {"limit", "lease"}
    assert queue.name.endswith(":SkipLocked")


class OwnClock(SkipLocked):
    """Its leases end by the clock of whoever looks."""

    lapsed = "until < :now::timestamptz"

    def _moment(self) -> dict[str, str]:
        return {"now": datetime.now(UTC).isoformat()}

    def claim(self, limit: int, lease: timedelta) -> Operation[list[Claim]]:
        """Take some jobs, until a moment on the worker's clock."""
        claims = yield from super().claim(limit, lease)
        until = (datetime.now(UTC) + lease).isoformat()
        for claim in claims:
            yield Step(
                "UPDATE jobs SET until = :until::timestamptz WHERE id = :id",
                {"until": until, "id": claim.token["id"]},
            )
        return claims


def test_a_clock_of_its_own_is_trusted_only_as_far_as_it_is_right(lab_of: LabOf) -> None:
    """A class that asks its process for the time recovers in time, and steals once it is wrong."""
    verdicts = verdicts_of(lab_of(OwnClock()), "stale-recovery", "retry-bound", "server-clock")
    assert verdicts == {"stale-recovery": "holds", "retry-bound": "holds", "server-clock": "broken"}


@pytest.mark.parametrize(
    ("queue", "asked"),
    [
        (SkipLocked(), ["server-clock", "isolation"]),  # which sets it wrong
        (OwnClock(), ["stale-recovery", "single-claim", "retry-bound"]),  # leases end by it
    ],
    ids=["the database's", "its own"],
)
def test_a_clock_that_cannot_be_set_leaves_the_question_open(
    lab_of: LabOf, monkeypatch: pytest.MonkeyPatch, queue: Queue, asked: list[str]
) -> None:
    """Rule 25: without what moves a process' clock that is not offered, which says what to do."""
    monkeypatch.setattr(wallclock, "MOVABLE", False)
    lab = lab_of(queue)
    card = check_queue(lab, select(asked), profile="glance")
    named = check_queue(lab, select(asked), profile="glance", named=asked[:1])
    found = {one.id: one for one in card.guarantees}
    assert {name for name in asked if found[name].verdict != "holds"} == {asked[0]}
    assert found[asked[0]].verdict == "not-offered"
    assert "pip install '.[clock]'" in found[asked[0]].reason
    assert (card.exit_code, named.exit_code) == (0, 2)


class Copies(SkipLocked):
    """A claim that would have its jobs copied to it."""

    copy = "COPY jobs TO STDOUT"

    def claim(self, limit: int, lease: timedelta) -> Operation[list[Claim]]:
        """Ask for data that nobody reads."""
        yield Step(self.copy)
        return (yield from super().claim(limit, lease))


@pytest.mark.sample
@pytest.mark.parametrize("copy", ["COPY jobs TO STDOUT", "COPY jobs FROM STDIN"])
def test_a_copy_is_refused(lab_of: LabOf, monkeypatch: pytest.MonkeyPatch, copy: str) -> None:
    """Nobody sends data or reads it: the check ends with one message instead of never."""
    monkeypatch.setattr(Copies, "copy", copy)
    with pytest.raises(QueueError, match="COPY from or to the client is no step"):
        check_queue(lab_of(Copies()), select(["order"]), profile="quick")


def test_a_clock_that_starts_late_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine some time passes between saying where a clock starts and its start."""
    begun: list[float] = []

    def late() -> float:
        begun.append(time.time() - (0 if begun else 20))  # what was read has become old meanwhile
        return begun[-1]

    monkeypatch.setattr(processclock, "time", SimpleNamespace(time=late))
    traveller = processclock.moved(100.0)
    try:
        ahead = time.time() - time_machine.escape_hatch.time.time()
    finally:
        traveller.stop()
    assert round(ahead) == 100
