"""Gates: where a session stops inside a statement, until the scheduler lets it go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from queueproof import waits
from queueproof.run.session import STOPS, ConnectionLostError, LibpqSession
from queueproof.schedule.conditions import Gate

GATE = "queueproof.gate"  # the setting by which a session asks for a gate
GATE_KEYS = {"first": 815_101, "second": 815_102, "row": 815_103}
ALOUD = "aloud"  # added to its value where the session says when it stops

# The rows that such a view's triggers get are chosen before any statement on a base table begins.
# Of any other view that can be changed the base table's triggers are all that fires.
TRIGGER_VIEWS = """
SELECT DISTINCT c.oid::regclass::text
FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid
WHERE c.relkind = 'v' AND t.tgtype & 64 <> 0  -- INSTEAD OF (pg_trigger.h)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
"""
# A session that has asked for it stops here: it waits for that of its two keys which the scheduler
# holds. Who opens takes the other key first, so that it stops at the next gate, too. What it says
# comes after it has found out which key that is: whoever hears it may open at once, and no opening
# is lost. INFO is sent at once, whatever client_min_messages is, so that nobody has to ask who
# stands here; a worker's own client does not hear it, and a third key says that it is at a row.
FUNCTION = """
CREATE FUNCTION clock.gate() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  wanted constant text[] :=
    pg_catalog.string_to_array(pg_catalog.current_setting('queueproof.gate', true), ' ');
  me constant int := pg_catalog.pg_backend_pid();
  held int := {first};
BEGIN
  IF wanted[1] IN ('every', pg_catalog.lower(TG_LEVEL)) THEN
    IF pg_catalog.pg_try_advisory_lock({first}, me) THEN
      PERFORM pg_catalog.pg_advisory_unlock({first}, me);
      held := {second};
    END IF;
    IF wanted[2] = '{aloud}' THEN
      RAISE INFO '{stops}%', pg_catalog.lower(TG_LEVEL);
    ELSIF TG_LEVEL = 'ROW' THEN
      PERFORM pg_catalog.pg_advisory_lock({row}, me);
    END IF;
    PERFORM pg_catalog.pg_advisory_lock(held, me);
    PERFORM pg_catalog.pg_advisory_unlock(held, me);
    IF TG_LEVEL = 'ROW' AND wanted[2] IS NULL THEN
      PERFORM pg_catalog.pg_advisory_unlock({row}, me);
    END IF;
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RETURN NEW;
END $$
""".format(**GATE_KEYS, aloud=ALOUD, stops=STOPS)
_KEYS = GATE_KEYS["first"], GATE_KEYS["second"]
LATEST = "SELECT pg_catalog.max(oid) FROM pg_catalog.pg_class"
# What the scheduler asks most often, prepared. Target lists are evaluated from left to right.
_ASKED = {
    "blockers": "SELECT pg_catalog.pg_blocking_pids($1::int4)",
    "latest": LATEST,  # the oid of the relation that was made last
    # The clock shows so much more than real time from now on, and when that is: see clock.sql.
    "move": "SELECT clock.move($1, $2)",
    "hop": "SELECT clock.hop($1)",  # the same where no transaction is open
    "moment": "SELECT pg_catalog.clock_timestamp()::pg_catalog.timestamptz(6)::text",
    "open": """
SELECT pg_catalog.pg_advisory_lock($2::int4, $1::int4),
  pg_catalog.pg_advisory_unlock($3::int4, $1::int4)
""",
    "cancel": "SELECT pg_catalog.pg_cancel_backend($1::int4)",
}
INSIDE = frozenset[Gate]({"statement", "row", "every"})  # by triggers
# A gate's triggers, by their level.
_EVENTS = {"statement": "INSERT OR UPDATE OR DELETE", "row": "UPDATE OR DELETE"}


class Scheduler(LibpqSession):
    """The connection that holds the gates' keys, and asks who waits for whom."""

    def __init__(self, conninfo: str, meanwhile: waits.Meanwhile | None) -> None:
        super().__init__(conninfo, "queueproof itself", meanwhile=meanwhile)
        # A role may show moments in another style, which nobody here reads.
        self.run(f"SET search_path = pg_catalog; SET DateStyle = ISO; {waits.IMPATIENT}")
        self._keys: dict[int, tuple[int, int]] = {}  # of each backend: that is held, and the other
        for name, asked in _ASKED.items():
            self.pgconn.send_prepare(name.encode(), asked.encode())
            self._answered(asked)

    def asked(self, name: str, *values: int | str) -> str:
        """The answer to one of its prepared queries, as text."""
        self.pgconn.send_query_prepared(name.encode(), [str(one).encode() for one in values])
        answer = self._answered(name)
        value = answer.get_value(0, 0) if answer.ntuples else None
        if value is None:
            raise ConnectionLostError("the server closed the connection of queueproof itself")
        return value.decode()

    def blocking(self, pid: int) -> list[int]:
        """The backends that a backend waits for (`pg_blocking_pids`)."""
        found = self.asked("blockers", pid).strip("{}")
        return [int(one) for one in found.split(",")] if found else []

    def moment(self) -> str:
        """The time that the server's own clock shows, as text."""
        return self.asked("moment")

    def restore(self, sql: str) -> int:
        """Bring tables back to the beginning; the oid of the relation that was made last."""
        self.pgconn.send_query(f"{sql}; {LATEST}".encode())
        return int(self._answered(sql).get_value(0, 0) or 0)

    def lock_gate(self, pid: int) -> None:
        """Hold the key that a backend needs to pass a gate."""
        self._keys[pid] = _KEYS
        self.run(f"SELECT pg_advisory_lock({GATE_KEYS['first']}, {pid})")

    def unlock_gate(self, pid: int) -> None:
        """Take the key of a backend back that has gone."""
        held, _ = self._keys.pop(pid, _KEYS)  # a pooler's process ids may be anything
        self.run(f"SELECT pg_advisory_unlock({held}, {pid})")

    def open_gate(self, pid: int) -> None:
        """Let a backend that has stopped at a gate go on, and no further than to the next one."""
        held, other = self._keys[pid]
        self.asked("open", pid, other, held)
        self._keys[pid] = other, held


def without(relations: Sequence[str]) -> Iterator[str]:
    """Statements that take every gate away."""
    for relation, level in product(relations, _EVENTS):
        yield f'DROP TRIGGER IF EXISTS "~queueproof {level}" ON {relation}'


def within(gate: Gate | None, statement: Sequence[str], row: Sequence[str]) -> Iterator[str]:
    """Statements that make those on a queue's tables stop inside.

    The triggers are there only while they are wanted: a row trigger locks its row a little earlier
    than the untouched statement would. No trigger fires for a query: whoever runs it declares a
    cursor, which takes the snapshot, and fetches later.

    Args:
        gate: Where; None for nowhere.
        statement: The relations that a statement may name, as regclass text.
        row: Those whose rows stop it. A view's row triggers are INSTEAD OF, and change base
            tables, whose own triggers fire; a row trigger of a partitioned table is its
            partitions' too.
    """
    for level, relations in (("statement", statement), ("row", row)):
        for relation in relations if gate in {level, "every"} else ():
            yield (
                f'CREATE TRIGGER "~queueproof {level}" BEFORE {_EVENTS[level]} ON {relation} '
                f"FOR EACH {level.upper()} EXECUTE FUNCTION clock.gate()"
            )
