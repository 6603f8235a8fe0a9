"""Two versions of a queue on one schema, as a rolling deploy has them: some workers run each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from queueproof.errors import QueueproofError, Source
from queueproof.queues import sqltext
from queueproof.queues.model import FACTS, FAILURE, OPERATIONS, Claim, Operation
from queueproof.queues.sqlfile import SqlFileQueue, load

DRAINER = "drainer"  # who claims what either version would: see `queueproof.schedule.actors`
# Offered where one version has it: the first three are of whatever runs beside the workers.
_ANY = frozenset({"recover", "promote", "cleanup", "install", "jobs", "start"})
_MADE = re.compile(
    r'\bCREATE\s+(?:UNLOGGED\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:[\w"]+\.)?"?(\w+)',
    re.IGNORECASE,
)
_ABSENT: Mapping[str, object] = {
    "priority": 0,
    "delay": timedelta(0),
    "max_attempts": None,
    "queue": "default",
    "limit": 1,
    "lease": None,
    "error": FAILURE,
}
"""Arguments that one version takes and the other does not, and so nobody gives."""


@dataclass(frozen=True, slots=True)
class Owned(Claim):
    """A claim that knows which version made it: that version ends it, too."""

    version: int = 0  # its place in `Deployment.versions`


class Deployment(SqlFileQueue):
    """A queue that is made of two, which act on the tables that both have made.

    Workers with odd numbers run the `first`, 0 or 1, the others the other one; recovery, promotion
    and cleanup are done by both, one after the other. The schema of the one that is rolled out is a
    migration of the old one's, or the same.
    """

    def __init__(self, old: SqlFileQueue, new: SqlFileQueue, first: int = 0) -> None:
        self.versions = (old, new)
        self.name = f"{old.name} with {new.name}"
        self._first = first
        self.files = [*old.files, *new.files]
        self.blocks = {**old.blocks, **new.blocks}
        for fact, value in _agreed(old, new).items():
            setattr(self, fact, value)
        for trait in ("sees_backends", "sees_cluster", "sends_time", "draws_lots", "keeps_state"):
            setattr(self, trait, getattr(old, trait) or getattr(new, trait))
        self.joins_transactions = old.joins_transactions and new.joins_transactions
        spans = [old.longest_span, new.longest_span]
        self.longest_span = None if None in spans else max(filter(None, spans), default=0.0)
        self.digest = hashlib.sha256(f"{old.digest} {new.digest} {first}".encode()).hexdigest()[:12]
        self.written = f"{old.written}\0{new.written}"

    @property
    def ways(self) -> tuple[Deployment, ...]:
        """Itself, and the same with the workers' versions exchanged."""
        return self, Deployment(*self.versions, 1 - self._first)

    @property
    def cast(self) -> str:
        """The version that each actor runs, in words."""
        odd, even = (self.versions[n].name for n in (self._first, 1 - self._first))
        workers = f"w1 and w3 run {odd}, w2 and w4 run {even}"
        return f"{workers}; what recovers, promotes or cleans up runs both."

    @cached_property
    def offers(self) -> frozenset[str]:
        """The operations that both versions have; upkeep and observation where one has it."""
        old, new = (version.offers for version in self.versions)
        # Of what completes and claims at once the halves are asked here.
        return (old & new) - {"complete_and_claim"} | ((old | new) & _ANY)

    def takes(self, operation: str) -> frozenset[str]:
        """Arguments that both versions take."""
        taken = [one.takes(operation) for one in self.versions if operation in one.offers]
        if operation in {"enqueue", "claim"}:
            return taken[0].intersection(*taken)
        return frozenset[str]().union(*taken)  # of which neither may have it

    def source_of(self, operation: str) -> Source | None:
        """The place where the old version has it, or else the new one."""
        return next(one.source_of(operation) for one in self.versions if operation in one.offers)

    def source_of_break(self, guarantee: str) -> Source | None:
        """The line of the version that declares it."""
        declaring = (one for one in reversed(self.versions) if guarantee in one.breaks)
        return next(one.source_of_break(guarantee) for one in declaring)

    def begin(self, operation: str, **arguments: object) -> Operation[Any]:
        """Begin an operation of the version that workers with odd numbers run."""
        return self.begin_for("", operation, **arguments)

    def begin_for(self, actor: str, operation: str, **arguments: Any) -> Operation[Any]:  # noqa: ANN401
        """Begin an operation of the version that an actor runs; it is given what it takes."""
        absent = {name: _ABSENT[name] for name in OPERATIONS[operation] & _ABSENT.keys()}
        given: dict[str, Any] = {**absent, **arguments}
        old, new = self.versions
        own = self._version_of(actor)
        match operation:
            case "install":
                return self._install()
            case "recover":
                return self._recover(given)
            case "promote" | "cleanup":
                return self._upkeep(operation, given)
            case "jobs":
                return (new if "jobs" in new.offers else old).begin("jobs", **given)
            case "claim":
                return self._claim((own, 1 - own) if actor == DRAINER else (own,), given)
        claims = [given.get("job"), *given.get("jobs", ())]
        held = next((one.version for one in claims if isinstance(one, Owned)), None)
        version = self.versions[own if held is None else held]
        return version.begin(operation, **given) if operation in version.offers else _nothing()

    def _version_of(self, actor: str) -> int:
        """The place of the version that an actor runs; who has no number is no worker, or late."""
        number = re.search(r"\d+", actor)
        odd = int(number[0]) % 2 == 1 if number else actor != "late"
        return self._first if odd else 1 - self._first

    def _install(self) -> Operation[None]:
        old, new = self.versions
        yield from old.begin("install")
        if _schema(old) != _schema(new):
            yield from new.begin("install")

    def _claim(self, order: tuple[int, ...], given: Mapping[str, object]) -> Operation[list[Claim]]:
        for version in order:
            claims = yield from self.versions[version].begin("claim", **given)
            if claims:
                return [Owned(claim.id, claim.token, version) for claim in claims]
        return []

    def _recover(self, given: Mapping[str, object]) -> Operation[list[str]]:
        found: list[str] = []
        for version in self._in_turn("recover"):
            found += yield from version.begin("recover", **given)
        return list(dict.fromkeys(found))

    def _upkeep(self, operation: str, given: Mapping[str, object]) -> Operation[int | None]:
        moved: int | None = 0
        for version in self._in_turn(operation):
            more = yield from version.begin(operation, **given)
            moved = None if more is None or moved is None else moved + more
        return moved

    def _in_turn(self, operation: str) -> Iterator[SqlFileQueue]:
        order = (self._first, 1 - self._first)
        return (self.versions[n] for n in order if operation in self.versions[n].offers)


def deployment(old: str, new: str) -> Deployment:
    """The queue that two files make together; QueueproofError where that cannot be judged."""
    for name in (old, new):
        if not name.endswith(".sql"):
            raise QueueproofError(f"--with is about two queue files, and {name} is none")
    versions = load(old), load(new)
    if _share_nothing(*versions):
        raise QueueproofError(
            f"--with {new}: its tables are not those of {old}, so the two are no versions of one"
            " queue, and nothing of them together can be judged. Its schema is a migration of"
            f" {old}'s, or the same"
        )
    return Deployment(*versions)


def _share_nothing(old: SqlFileQueue, new: SqlFileQueue) -> bool:
    """True if each makes tables, and neither names one of the other's anywhere."""
    for one, other in ((old, new), (new, old)):
        made = {name.lower() for text in _schema(one) for name in _MADE.findall(text)}
        statements = (sql for block in other.blocks.values() for sql in block.statements)
        words = (word.name.lower() for sql in statements for word in sqltext.tokens(sql.text))
        if not made or not made.isdisjoint(words):
            return False
    return True


def _schema(version: SqlFileQueue) -> list[str]:
    return [statement.text for statement in version.blocks["schema"].statements]


def _nothing() -> Operation[None]:
    """An operation of the other version's alone."""
    yield from ()


def _agreed(old: SqlFileQueue, new: SqlFileQueue) -> dict[str, object]:
    """The facts of both; QueueproofError where each is judged by what the other does not keep."""
    facts = {fact: (getattr(old, fact), getattr(new, fact)) for fact in FACTS}
    # What one alone promises the two together do not.
    weaker: dict[str, object] = {
        "order": old.order if old.order == new.order else "none",
        "backoff": min(old.backoff, new.backoff) if old.backoff and new.backoff else None,
        "jitter": max(old.jitter, new.jitter),
        "promises": old.promises & new.promises,
        "retry_on": old.retry_on | new.retry_on,
        "breaks": {**old.breaks, **new.breaks},
    }
    for fact, (one, other) in facts.items():
        if fact not in weaker and one != other:
            raise QueueproofError(
                f"{fact} is {one} in {old.name} and {other} in {new.name}: while both run, neither"
                " is kept. Deploy that change by itself, once every worker knows the new SQL."
            )
    return {fact: one for fact, (one, _) in facts.items()} | weaker
