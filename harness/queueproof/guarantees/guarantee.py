"""A guarantee as one record: all that is particular to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from queueproof.queues.offer import Offer
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import FAULTS, Program
from queueproof.space.pieces import Pieces
from queueproof.space.suites import Suite

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run


class Variation(NamedTuple):
    """Conditions that should change nothing, and the programs that are run under them."""

    conditions: Conditions
    known: Sequence[str]  # of which kinds, as `Suite.first` knows them
    share: int  # of so many there is one

    def programs(self, suite: Suite, count: int) -> list[Program]:
        """Those for a queue, out of about so many of each kind."""
        return [one for what in self.known for one in suite.first(what, count // self.share)]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One sentence that a queue keeps or breaks.

    In texts a line's end is a space, as in a paragraph.
    """

    id: str  # public and frozen: it stands in files, reports and exit messages
    called: str  # what people call its break, or look for, with commas between
    sentence: str
    why: str  # what its breach does to a user
    source: str  # where the idea or a known case is written down
    wild: str  # how it breaks in real queues
    safe: str  # how it is kept in PostgreSQL
    # The same where the queue offers no recover; empty where that changes nothing.
    safe_alone: str = ""
    # The same where its story has one actor, whom nobody disturbs; or empty.
    safe_by_itself: str = ""
    # Whether its probe says at last what mends this queue, which stands in the place of `safe`.
    advised: bool = False
    # Whether it is broken by what undoes an end: the operation is named that did.
    undone: bool = False
    # The broken queue that shows best what `wild` says, where it is not the one with the fewest
    # changed lines.
    example: str = ""
    asks: str = ""  # what it needs of a queue beside enqueue and claim, in words; nothing for most
    # What is missing where the guarantee cannot be asked, None where it can.
    needs: Callable[[Offer], str | None] = lambda _: None
    # What the header says for its break to be accepted, beside [breaks]; empty where it does not.
    accepted: Callable[[Offer], str] = lambda _: ""
    # Those that its breach needs and no situation of one job holds; None for none.
    programs: Callable[[Pieces], Iterable[Program]] | None = None
    # Whether it is asked in runs of its own, so that those of others say nothing about it.
    apart: bool = False
    variations: tuple[Variation, ...] = ()  # conditions of which it says that they change nothing
    # What a run under the conditions of a variation is worth, in words and counts.
    evidence: Callable[[Run], Mapping[str, int]] = lambda _: {}
    lacking: str = ""  # the evidence without which a pass is none, where it is one thing
    # Whether nothing can be told of a queue whose time stands still while the database's is moved.
    timed: bool = False
    # Whether it is measured where it is not asked too, but for a quick look.
    told_anyway: bool = False
    # Whether its breach means that something acknowledged was lost or doubled.
    acknowledged: bool = False
    probe: str = ""  # which of `probes.MEASURING` measures it on the whole queue; empty for none
    waits: bool = False  # whether it is broken by a wait: its story ends when somebody waits
    shows_late: bool = False  # whether its breach may show only in what comes of the job later
    # `why` where that depends on the operation whose answer breaks it, by its name; `complete
    # alone`: where nobody is hurt but the worker itself.
    whys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in fields(self):
            if isinstance(text := getattr(self, one.name), str):
                object.__setattr__(self, one.name, " ".join(text.split()))

    @property
    def faults(self) -> bool:
        """Its programs bring faults: a pass needs all kinds, and errors of one are no breach."""
        return any(kind in FAULTS for one in self.variations for kind in one.known)


def followed(offer: Offer) -> str | None:
    """The reason why nothing is asked about what comes after a claim; None where it is."""
    ends = offer.queue.delivery == "at-most-once"
    return 'a claim ends the job: delivery = "at-most-once"' if ends else None


def finishing(offer: Offer) -> str | None:
    """The operations that are missing where no job can be ended; None where one can."""
    if (over := followed(offer)) is not None:
        return over
    offered = offer.any_of("complete", "complete_many", "fail")
    return None if offered else "neither complete nor fail is offered"
