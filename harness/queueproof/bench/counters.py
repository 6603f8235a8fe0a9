"""The cost of a queue that does not depend on the machine: buffers, WAL, rows, round trips.

PostgreSQL counts them by relation (manual, 27.2.21: pg_stat_get_blocks_fetched and its kin). A
session hands its counts over when it asks for that or ends. All relations of the database's own
are summed up: tables, indexes, TOAST, sequences, but not the catalogue.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import pq, sql

from queueproof.bench.load import promote
from queueproof.bench.session import LoadSession
from queueproof.bench.worker import PATIENCE, Jobs, Load, SqlWorker

WARM = 3  # claims before those that are counted, so that plans and caches are there
COUNTED = 20  # claims
LOCKING = 5  # claims more, after which the rows are looked at; apart, as that touches buffers too
LEAST_JOBS = 1000  # in the queue, so that a claim does not read it all

COUNTERS: Mapping[str, str] = {
    "buffers_per_claim": "shared buffers that a claim touches",
    "rows_locked_per_claim": "rows that a claim locks, those that it changes or deletes included",
    "buffers_per_job": "the same of a job's share of its claim, and of its completion",
    "wal_bytes_per_job": "WAL written for a job, from claim to completion",
    "round_trips_per_job": "statements sent and answered",
    "rows_changed_per_job": "rows inserted, updated or deleted",
    "dead_rows_per_job": "row versions that vacuum will have to remove",
}
"""The counts of one worker alone, and what each means."""

_NAMED = re.compile(r"^-- name: (\w+)\n((?:(?!-- name: ).*\n)*)", re.MULTILINE)
ASKED: Mapping[str, str] = dict(
    _NAMED.findall(files(__package__).joinpath("statements.sql").read_text(encoding="utf-8"))
)
"""The questions to the server, by their names in `statements.sql`."""
HAND_OVER = b"SELECT pg_catalog.pg_stat_force_next_flush()"  # by PostgreSQL 15 and later


class Totals(NamedTuple):
    """Counts since the database was created, or between two moments."""

    buffers: int  # shared buffers touched, hits and reads
    wal_bytes: int  # of the whole server
    rows: int  # inserted, updated or deleted
    dead: int  # row versions that nobody sees any more and that are still there
    replaced: int  # of `rows`, those updated or deleted

    @classmethod
    def read(cls, admin: psycopg.Connection[Any]) -> Self:
        """Ask the server."""
        row = admin.execute(ASKED["totals"]).fetchone()
        assert row is not None  # an aggregate
        return cls(*map(int, row))

    def since(self, before: Totals) -> Totals:
        """The counts since an earlier moment."""
        return Totals(*(now - then for now, then in zip(self, before, strict=True)))


NOTHING = Totals(0, 0, 0, 0, 0)


class Alone:
    """One worker's operations, one by one, each by a statement of its own."""

    def __init__(self, session: LoadSession, load: Load) -> None:
        """Prepare them, and start; the session is one where the queue is installed."""
        session.prepare(load.enqueue)
        session.prepare(load.promote)
        self.session, self._load = session, load
        self._worker = SqlWorker(session, replace(load, exchange=None), 0, [0])
        self._held: Jobs = []

    def enqueue(self, priority: int) -> None:
        """Put one job of a priority in."""
        self.session.run(self._load.enqueue, {**self._load.constants, "priority": b"%d" % priority})
        promote(self._load, self.session, 1)

    def claim(self) -> int:
        """Claim once; how many jobs it got."""
        self._held = self.session.perform(self._worker.claim())
        return len(self._held[0]) if self._held else 0

    def complete(self) -> None:
        """Complete what the claim got."""
        if self._held:
            self.session.perform(self._worker.complete(self._held, time.monotonic() + PATIENCE))

    def hand_over(self) -> bool:
        """Have the session hand its counts over; False while a transaction is open."""
        if self.session.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            return False
        self.session.command(HAND_OVER)
        return True


def count(
    admin: psycopg.Connection[Any], work: Alone, *, locking: int = LOCKING
) -> dict[str, float]:
    """Count what one worker alone costs: by `COUNTERS`, medians where single claims are counted.

    The buffers of a claim that holds its transaction open are not counted apart from those of its
    completion. There must be jobs enough, for `locking` claims more, after which all rows are
    looked at for locks, too.
    """
    claims: list[Totals] = []
    whole: list[Totals] = []
    jobs = trips = 0
    for number in range(WARM + COUNTED):
        work.hand_over()
        before, sent = Totals.read(admin), work.session.trips
        got = work.claim()
        apart = work.hand_over()
        middle = Totals.read(admin)
        work.complete()
        sent = work.session.trips - sent
        work.hand_over()
        if number < WARM or not got:
            continue
        jobs, trips = jobs + got, trips + sent
        whole.append(Totals.read(admin).since(before))
        if apart:
            claims.append(middle.since(before))
    if not jobs:
        return {}
    each = jobs / len(whole)
    counted = {
        "buffers_per_job": statistics.median(one.buffers for one in whole) / each,
        # A median leaves out the pages that a checkpoint makes whole again.
        "wal_bytes_per_job": statistics.median(one.wal_bytes for one in whole) / each,
        "round_trips_per_job": trips / jobs,
        "rows_changed_per_job": sum(one.rows for one in whole) / jobs,
        "dead_rows_per_job": sum(one.dead for one in whole) / jobs,
    }
    if len(claims) == len(whole):
        counted["buffers_per_claim"] = statistics.median(one.buffers for one in claims)
    locked = [rows for _ in range(locking) if (rows := _locked(admin, work)) is not None]
    if locked:
        counted["rows_locked_per_claim"] = statistics.median(locked)
    return {name: round(counted[name], 3) for name in COUNTERS if name in counted}


def _locked(admin: psycopg.Connection[Any], work: Alone) -> int | None:
    """Rows that a claim locks, by their xmax and by what it has changed; None: it got nothing.

    Of an open transaction others see the old rows, whose xmax is that of what changes them; once it
    has ended, those are gone, and counted as changed.
    """
    work.hand_over()
    before = Totals.read(admin)
    (first,) = admin.execute(ASKED["next_transaction"]).fetchone() or (0,)
    got = work.claim()
    work.hand_over()
    locked = Totals.read(admin).since(before).replaced
    for table in admin.execute(ASKED["counted_tables"]).fetchall():
        asked = sql.SQL(ASKED["locked"]).format(sql.Identifier(*table))
        locked += (admin.execute(asked, {"first": first}).fetchone() or (0,))[0]
    work.complete()
    return locked if got else None
