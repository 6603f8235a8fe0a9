"""The tables of a queue, and how they come back to the beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter

import psycopg
from psycopg.sql import Literal

from queueproof import waits
from queueproof.errors import QueueError, ServerError
from queueproof.queues.model import T
from queueproof.run import gates
from queueproof.run.session import Session
from queueproof.schedule.conditions import Gate

# Relations of the queue: neither ours, nor the server's, nor an extension's.
_OWN = """
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname NOT IN ('clock', 'pg_catalog', 'information_schema') AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
"""
_TABLES = f"""
SELECT c.oid::regclass::text, c.relkind, c.relispartition
{_OWN} AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
ORDER BY c.oid
"""
"""Each with its kind, and whether it is a partition."""

_NEW = f"""
SELECT format('DROP %%s IF EXISTS %%s CASCADE', CASE c.relkind WHEN 'v' THEN 'VIEW'
              WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
              c.oid::regclass)
{_OWN} AND c.oid > %s AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND c.relpersistence <> 't'
ORDER BY c.relkind = 'S', c.oid
"""
"""A DROP for each relation that came later; last come sequences, which go with their tables."""

QUIET = "SELECT clock.quiet()"
"""Keeps triggers and foreign keys from acting for the rest of a session: see rights.sql."""

_SEQUENCES = f"SELECT c.oid::regclass::text {_OWN} AND c.relkind = 'S' ORDER BY c.oid"
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum)
FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
_ACTING = """
SELECT tgrelid::regclass::text, 'TRIGGER ' || quote_ident(tgname), tgenabled::text
FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0
UNION ALL
SELECT ev_class::regclass::text, 'RULE ' || quote_ident(rulename), ev_enabled::text
FROM pg_rewrite WHERE rulename <> '_RETURN'
ORDER BY 1, 2
"""
_HIDING = "SELECT oid::regclass::text FROM pg_class WHERE relforcerowsecurity"
_HOLDERS = """
SELECT DISTINCT l.relation::regclass::text, l.pid, a.state, left(a.query, 200)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.relation = ANY (%s::text[]::regclass[])
  AND l.pid IS DISTINCT FROM %s AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY 1, 2
"""
_TOUCHED = """
SELECT EXISTS (
  SELECT FROM pg_locks
  WHERE locktype = 'relation' AND pid = %s AND relation = ANY (%s::text[]::regclass[])
)
"""
_UNLOGGED = "SELECT oid::regclass::text FROM pg_class WHERE relpersistence = 'u'"
_LOCKED = "55P03"  # lock_not_available: lock_timeout is over
HINDERED = frozenset({"P0001", "25006", "42501"})  # raised by SQL, read-only, not allowed
_ALTERED = frozenset({"0A", "23", "3F", "42"})  # classes: not as it was, not there, not allowed
_FOREIGN_KEYS = """
SELECT DISTINCT conrelid::regclass::text, confrelid::regclass::text
FROM pg_constraint WHERE contype = 'f' AND conrelid <> confrelid
"""


# A sequence that may count beyond an int4, as the column that it fills can.
_FAR = """
SELECT seqrelid::regclass::text
FROM pg_sequence
JOIN pg_depend ON objid = seqrelid AND classid = 'pg_class'::regclass AND deptype IN ('a', 'i')
JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid AND atttypid = 'int8'::regtype
WHERE seqmax > %s AND seqincrement > 0 AND refobjid::regclass::text = ANY (%s)
"""
LAST_NEAR = 2**31 - 3  # two more are an int4 yet


def _set_to(sequence: str, *values: object) -> str:
    """SQL that sets a sequence to a value, and to whether that has been given out."""
    named = Literal(sequence).as_string()
    return f"SELECT setval({named}::regclass, {', '.join(map(str, values))})"


class Tables:
    """The tables of an installed queue, which hold what they do when this is made.

    Args:
        superuser: Whether the harness may keep the queue's triggers from acting, by `QUIET`.
        make_way: Ends sessions that hold locks and are not needed; False where there are none.
    """

    def __init__(
        self,
        admin: waits.LimitedConnection,
        control: gates.Scheduler,
        *,
        superuser: bool,
        make_way: Callable[[], bool],
    ) -> None:
        self.use(admin, control)
        self._superuser, self._make_way = superuser, make_way
        found = admin.execute(_TABLES).fetchall()
        self.names = [table for table, _, _ in found]
        # A trigger of a partitioned table is its partitions' too.
        self._gated = [table for table, _, partition in found if not partition]
        self._heaps = {table: self._columns_of(table) for table, kind, _ in found if kind == "r"}
        for table in self._heaps:
            admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        self._keep_calm()
        self._note_the_beginning()
        far = admin.execute(_FAR, [2 * LAST_NEAR, self.names]).fetchall()
        # Has sequences go on where an int4 ends; empty where none can.
        self._far = "; ".join(_set_to(sequence, LAST_NEAR) for (sequence,) in far)
        self._latest = int(control.asked("latest"))  # of the relations that were there

    def _columns_of(self, table: str) -> str:
        """The columns that hold data of their own, as SQL."""
        row = self._admin.execute(_COLUMNS, [table]).fetchone()
        return str(row[0]) if row and row[0] else ""  # of a table that is only locked, for example

    def _keep_calm(self) -> None:
        """Find the statements between which no trigger, rule or policy of the queue's acts."""
        before, after = [], []
        firing = "AR" if self._superuser else "OAR"  # pg_trigger.tgenabled, pg_rewrite.ev_enabled
        for table, what, enabled in self._admin.execute(_ACTING).fetchall():
            if table in self.names and enabled in firing:
                how = {"O": "", "A": "ALWAYS ", "R": "REPLICA "}[enabled]
                before.append(f"ALTER TABLE {table} DISABLE {what}")
                after.append(f"ALTER TABLE {table} ENABLE {how}{what}")
        for (table,) in self._admin.execute(_HIDING).fetchall():  # rows, from the owner too
            if table in self.names:
                before.append(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
                after.append(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        self._before, self._after = ["BEGIN", *before], [*after, "COMMIT"]

    def _note_the_beginning(self) -> None:
        """Make the SQL that brings every table and sequence back to what they hold now.

        What they hold is kept in the schema `clock`. One way takes least time, the other makes the
        tables as small as new ones, of which the planner knows nothing.
        """
        run = self._admin.execute
        restore = []
        run("; ".join(self._before))
        for number, table in enumerate(self._parents_first()):
            if table not in self._heaps:  # partitions hold its rows
                continue
            if run(f"SELECT EXISTS (SELECT FROM ONLY {table})").fetchone() != (True,):
                continue
            columns = self._heaps[table]
            run(f"CREATE TABLE clock.saved_{number} AS SELECT {columns} FROM ONLY {table}")
            into = f"{table} ({columns})" if columns else table
            kept = f"SELECT {columns} FROM clock.saved_{number}"
            restore.append(f"INSERT INTO {into} OVERRIDING SYSTEM VALUE {kept}")
        run("; ".join(self._after))
        for (sequence,) in run(_SEQUENCES).fetchall():
            if row := run(f"SELECT last_value, is_called FROM {sequence}").fetchone():
                restore.append(_set_to(sequence, *row))
        truncate = [f"TRUNCATE {', '.join(self.names)}"] if self.names else []
        # Without superuser rights foreign keys fire: only one TRUNCATE of all tables is sure.
        empty = [f"DELETE FROM {table}" for table in self.names] if self._superuser else truncate
        forget = ["SELECT clock.forget()"] * self._superuser  # see rights.sql
        self._swift = "; ".join([*self._before, *empty, *restore, *self._after])
        self._renewing = "; ".join([*self._before, *truncate, *restore, *forget, *self._after])

    def _parents_first(self) -> Sequence[str]:
        """The tables in an order in which foreign keys let their rows be put in."""
        sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(self.names, ()))
        for child, parent in self._admin.execute(_FOREIGN_KEYS).fetchall():
            if child in self.names and parent in self.names:
                sorter.add(child, parent)
        try:
            return list(sorter.static_order())
        except CycleError:
            return self.names

    def use(self, admin: waits.LimitedConnection, control: gates.Scheduler) -> None:
        """Take other connections."""
        self._admin, self._control = admin, control

    def go_back(self, more: str, *, full: bool, far: bool, drop_new: bool) -> None:
        """Bring the tables back to the beginning.

        Args:
            full: Whether they are made as small as new ones, which takes longer.
            far: Whether ids go on where an int4 ends.
            drop_new: Whether tables that came later are dropped.

        Raises:
            QueueError: Somebody holds a lock on one, or an operation has altered or dropped one.
        """
        begin = self._renewing if full else self._swift
        begin = "; ".join(filter(None, [begin, self._far if far else "", more]))
        if drop_new and (full or not self._superuser):
            # TRUNCATE fails where one has a foreign key.
            self._drop_new(int(self._control.asked("latest")))
        latest = self._locked(partial(self._restore, begin))
        if drop_new:
            self._drop_new(latest)

    def _drop_new(self, latest: int) -> None:
        """Drop tables, partitions, views and sequences of the last run: each makes its own."""
        if latest != self._latest:
            for (drop,) in self._admin.execute(_NEW, [self._latest]).fetchall():
                self._locked(partial(self._restore, drop))

    def refuse_new(self) -> None:
        """See that no worker has made a table: what it holds would go from run to run.

        It cannot be dropped, as with a queue of statements: a worker may remember that it is there.
        A new partition is emptied with its table.
        """
        found = self._admin.execute(_TABLES).fetchall()
        new = [table for table, _, partition in found if not partition and table not in self.names]
        if new:
            raise QueueError(
                f"an operation has created a table while it ran: {', '.join(new)}. Only"
                " those that are there after install can be emptied between two runs, and their"
                " partitions: create it in install, as a partition, or as a temporary table"
            )

    def _restore(self, reset: str) -> int:
        """Run statements that lock tables; the oid of the relation that was made last."""
        try:
            return self._control.restore(reset)
        except ServerError:
            self._control.run("ROLLBACK")
            raise

    def _locked(self, act: Callable[[], T]) -> T:
        """Do something that takes locks on the tables while nobody should hold any.

        Raises:
            QueueError: Somebody holds one, and does not let go; or what `schema` made is altered.
        """
        try:
            try:
                return act()
            except (ServerError, psycopg.Error) as error:
                if error.sqlstate != _LOCKED or not self._make_way():
                    raise
                return act()
        except (ServerError, psycopg.Error) as error:
            state = error.sqlstate or ""
            if state[:2] in _ALTERED and state not in HINDERED:
                told = str(error).removeprefix(f"{state}: ").partition("\n")[0]
                raise QueueError(
                    f"the queue's tables cannot be brought back to the beginning: {told} ({state})."
                    " Its operations must neither drop, rename nor alter what its schema made"
                ) from None
            if state != _LOCKED:
                raise
            raise QueueError(
                f"waited {waits.LOCK:g} s for a lock on the queue's tables, between two runs: "
                + (" and ".join(self.holders()) or "somebody has held one")
            ) from None

    def holders(self) -> list[str]:
        """Sentences on those who have a lock on one of them, and on what they did last."""
        found = self._admin.execute(_HOLDERS, [self.names, self._control.pid]).fetchall()
        return [
            f"a prepared transaction has one on {table}"
            if pid is None
            else f"backend {pid} has one on {table} ({state}, last statement: {query})"
            for table, pid, state, query in found
        ]

    def stop_at(self, gate: Gate | None) -> None:
        """Make statements on the tables stop inside, or let them run through."""
        views = [view for (view,) in self._admin.execute(gates.TRIGGER_VIEWS).fetchall()]
        anywhere = (*self.names, *views)
        changes = *gates.without(anywhere), *gates.within(gate, anywhere, self._gated)
        self._locked(lambda: [self._admin.execute(change) for change in changes])

    def rewrite(self) -> None:
        """Turn the rows' physical order round, as pg_repack or dump and restore may.

        Without superuser rights foreign keys and triggers would act: then nothing is done.
        """
        if self._superuser:
            for statements in self.rewriting:
                self._locked(partial(self._restore, statements))

    @property
    def rewriting(self) -> list[str]:
        """For each table the statements that turn its rows' physical order round."""
        before, after = "; ".join(self._before), "; ".join(self._after)
        return [
            f"{before}; "
            f"CREATE TEMP TABLE turned ON COMMIT DROP AS SELECT {columns} FROM ONLY {table} "
            f"ORDER BY ctid DESC; DELETE FROM ONLY {table}; "
            f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE "
            f"SELECT * FROM turned; {after}"
            for table, columns in self._heaps.items()
            if columns
        ]

    def read_by(self, session: Session) -> bool:
        """True when the open transaction of a session has come upon one of them."""
        return self._admin.execute(_TOUCHED, [session.pid, self.names]).fetchone() == (True,)

    def unlogged(self) -> list[str]:
        """Those that a crash of the server empties."""
        return [name for (name,) in self._admin.execute(_UNLOGGED) if name in self.names]
