"""Situations of a job's life, and what may go on there while somebody is in the midst of an act.

The way from one situation to the next is the specification's own step on what a queue answers at
best: an operation that may be accepted is. A meeting is an act that takes long, while another
worker, the clock and maintenance go on with the job's life: for one step, or for several.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

from queueproof.history.calls import Call, CallKind
from queueproof.judge.spec import FINISHED, Act, Declared, Job, Phase, step
from queueproof.judge.violations import Violation
from queueproof.schedule.actors import NEMESIS, PROMOTER
from queueproof.schedule.moments import APART, DAY, HOUR, past
from queueproof.schedule.programs import (
    ALIGN,
    COMPLETES,
    FAULTS,
    HEARTBEATS,
    MAINTENANCE,
    OBSERVE,
    PROMOTE,
    RECOVER,
    START,
    Do,
    FaultKind,
    JobSpec,
    OperationKind,
    Program,
    Script,
    Stage,
    advance,
    claim,
    crash,
    fail,
    in_turn,
    script,
    until,
    whole,
)
from queueproof.space.pieces import (
    ALIGNED,
    CLEAN,
    HIGHEST,
    LOWEST,
    MOST_ATTEMPTS,
    NEW,
    SETTLE,
    Pieces,
)

DEPTH = 5  # steps to a situation
WALK = 3  # steps of what goes on meanwhile
BATCH = 2  # jobs of a claim, where a job's life is led in batches
MOST_HELD = 12  # jobs that others hold
WORN = 0.5  # of the programs
AHEAD = 3  # times as many programs first of an act of several statements
OFTEN = 6  # times that somebody does the same, one after the other
REST = 40 * DAY  # seconds of a wait that has doubled a score of times
RESERVE = 6  # jobs that come later, more than any program enqueues
_EARLY, _LATER = 0.3, 0.6  # of a lease
# What is left of a lease, at least, and how much of it may pass then.
_AGES = {"fresh": 0.75, "young": 0.5, "old": 0.2, "late": 0.0, "lapsed": -math.inf}
_KEPT = {"fresh": 0.8, "young": 0.6, "old": 0.3, "late": 0.05}
_OLD = 400 * DAY  # seconds; older than what a cleanup or a window keeps
_OF_A_JOB = frozenset({"complete", "fail", "heartbeat"})
_TOGETHER = frozenset({"complete_many", "complete_and_claim"})
_BY_A_CLAIM = _OF_A_JOB | _TOGETHER
_LOCKING = _BY_A_CLAIM | {"recover", "claim"}
_BEGINNING = frozenset({"claim", "heartbeat"})  # a lease
_SPAN = frozenset({"advance", "crash"})  # which have no steps

Kind: TypeAlias = tuple[object, ...]
"""Programs of one kind are alike: of each kind one is tried before a second of any."""


class Known(NamedTuple):
    """A program that may be tried."""

    what: Kind  # who does which operations: the coarsest that tells it from others
    kind: Kind  # which one it is of: that, and in which situation
    make: Callable[[], Program]
    way: int  # how many steps it takes to the situation; a job that has one attempt is one more
    # Whether it has the same end in whichever order its actors go first, or another shows the same.
    apart: bool = False
    steps: int = 0  # of what goes on meanwhile; one more where the act comes to nothing by itself


class Situation(NamedTuple):
    """A job at some moment of its life."""

    job: Job = Job()  # as the specification knows it
    now: float = 0.0  # seconds
    way: tuple[Script, ...] = ()  # who has done what to get here
    claims: tuple[Call, ...] = ()  # the claims of the job so far
    # How they have ended, those that have: the operation that gave the job back.
    ends: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()  # workers who have crashed
    beaten: bool = False  # whether a heartbeat has been accepted
    cleaned: bool = False  # whether a cleanup has come since it ended
    over: bool = False  # whether its wait is over and no promotion has come yet
    lined: bool = True  # whether it stands in line: a promotion has come, or its wait is over
    rests: bool = False  # whether it has to wait before that, as after a failure
    key: Kind = ()  # what tells it from others, as far as a queue may tell them apart

    @property
    def holder(self) -> str:
        """The worker who holds the job; empty where it does not run."""
        running = self.job.holder if self.job.phase == Phase.RUNNING else None
        return running.actor if running else ""

    @property
    def waits(self) -> bool:
        """The job is to be tried again, and its wait is not over."""
        return self.job.phase == Phase.QUEUED and self.rests and not self.lined

    def lease(self, seconds: float | None) -> str:
        """The age of the holder's lease, as `_AGES` names it; empty where there is none."""
        if not self.holder or seconds is None:
            return ""
        left = (self.job.fresh_until - self.now) / seconds
        return next(age for age, least in _AGES.items() if left > least)


_May: TypeAlias = tuple[str, Do, Mapping[str, Any]]
"""An actor, its act, and what changes in a situation then; nothing where it comes to nothing."""


class Deed(NamedTuple):
    """An act that somebody may do in a situation, and the situation that should come of it."""

    actor: str
    do: Do
    after: Situation

    @property
    def script(self) -> Script:
        """As a program has it."""
        return script(self.actor, self.do)


class Space:
    """The situations of a queue's jobs, and the programs that are made of them.

    Args:
        bound: Most attempts of the job; 0: as the queue's header says.
        spent: How all attempts but the last have come to nothing before; empty where they have not.
    """

    def __init__(
        self,
        pieces: Pieces,
        rules: Declared,
        bound: int = 0,
        batch: int = 1,
        spent: tuple[Script, ...] = (),
    ) -> None:
        self.pieces, self.rules, self.batch = pieces, rules, batch
        self._jobs = (JobSpec(bound=bound),) * batch
        self._bound = bound or pieces.bound
        self._known: dict[Kind, dict[Script, Deed]] = {}
        self._ends_with_the_next = self._bound == 1 or bool(spent)
        self._ahead = spent  # or what puts the first of several an attempt ahead
        if batch > 1 and rules.lease is not None and self._bound != 1:
            over, rests = (script("clock", advance(span)) for span in (past(rules.lease), DAY))
            # What is taken back may have to wait (rule 14), and a queue may draw lots for how long.
            self._ahead = (script("w7", claim()), over, *pieces.reaper(), rests)

    @cached_property
    def situations(self) -> list[Situation]:
        """All of them, each by the shortest way."""
        absent = self._named(Situation())
        job = self._born(absent)["job"]
        if self._ahead and self.batch == 1:
            job = job._replace(claims=job.bound - 1)
        born = self._named(absent._replace(job=job))
        found = {one.key: one for one in ((born,) if job.claims else (absent, born))}
        frontier = deque(found.values())
        while frontier:
            at = frontier.popleft()
            if len(at.way) >= DEPTH or at.over:
                continue
            for deed in self._steps(at):
                if deed.after.key not in found:
                    found[deed.after.key] = deed.after
                    frontier.append(deed.after)
        return list(found.values())

    def _named(self, at: Situation) -> Situation:
        """A situation with its key."""
        history = tuple(call.actor for call in at.claims), at.ends, at.gone
        passed = at.beaten, at.cleaned, at.over, at.lined
        return at._replace(key=(*self._stands(at), at.holder, history, *passed))

    def _length(self, at: Situation) -> int:
        return len(at.way) + self._ends_with_the_next

    def _stands(self, at: Situation) -> Kind:
        last = self._is_last(at)
        return at.job.phase, at.waits, at.lease(self.rules.lease), at.job.crashed, last

    def _is_last(self, at: Situation) -> bool:
        """True if the job has no attempt left."""
        return self._bound is not None and at.job.exhausted

    # --- what may happen ------------------------------------------------------------------------

    def _acts(self, at: Situation) -> list[Deed]:
        known = [deed for deed in self._steps(at) if deed.actor != "clock"]
        if self.batch > 1 and self._ends_with_the_next:  # all else is done to single jobs
            known = [deed for deed in known if deed.do.kind in _TOGETHER]
        # Once a promotion has come, it is all one when the wait was over.
        return [deed for deed in known if deed.do.kind == "promote"] if at.over else known

    def _steps(self, at: Situation) -> list[Deed]:
        """Deeds that may happen; of two who never had the job it is all one which of them acts."""
        second = f"w{len({call.actor for call in at.claims}) + 2}"
        return [deed for deed in self._deeds(at).values() if deed.actor != second]

    def _deeds(self, at: Situation) -> dict[Script, Deed]:
        """All that may happen in a situation, by who does what."""
        if at.key not in self._known:
            self._known[at.key] = found = {}
            for actor, do, changes in (*self._done(at), *self._passing(at)):
                moved = at._replace(now=at.now + APART, way=(*at.way, (actor, (do,))))
                deed = Deed(actor, do, self._named(moved._replace(**changes)))
                found[deed.script] = deed
        return self._known[at.key]

    def _done(self, at: Situation) -> Iterator[_May]:
        """The acts that somebody may do to the job, or try to."""
        offers = self.pieces.offers
        yield *_only_do(NEW), self._born(at)
        if at.job.phase == Phase.ABSENT:
            return
        for who in self._workers(at):
            if not ((self.rules.held or self.rules.one_each) and at.holder == who):
                yield who, claim(self.batch), self._claims(at, who)
            mine = self._of(at, who)
            # What was taken back from a worker together it may have got together again.
            again = len(mine) > 1 and at.ends[at.claims.index(mine[-2])] in {"recover", "claim"}
            for nth in sorted({0, len(mine) - 1}) if mine else ():
                for do in self._ends_by(nth, again=again):
                    yield who, do, self._ends(at, who, do)
            if not mine and "start" in offers:
                yield who, START, {}
        if at.holder and not at.job.crashed:
            yield at.holder, crash(), self._dies(at)
        if "recover" in offers:
            yield "reaper", RECOVER, self._recovers(at)
        if "promote" in offers:
            due = at.over or not at.waits
            yield PROMOTER, PROMOTE, {"lined": True, "over": False} if due else {}
        if "cleanup" in offers:
            yield *_only_do(CLEAN), {"cleaned": at.cleaned or at.job.phase in FINISHED}

    def _passing(self, at: Situation) -> Iterator[_May]:
        """The ways in which time may pass, to a moment before and after whatever ends by itself."""
        lease = self.rules.lease
        spans: list[float] = []
        if at.holder and lease is not None:
            early, most = _EARLY * lease, _LATER * lease
            known = {"fresh": [early, most, past(lease)], "old": [early]}
            spans = known.get(at.lease(lease), [])
        if at.waits:
            spans.append(DAY)
        for seconds in spans:
            yield "clock", advance(seconds), {"lined": True, "now": at.now + seconds}
        if at.waits and "promote" in self.pieces.offers:
            yield "clock", whole(advance(DAY)), {"over": True, "now": at.now + DAY}

    def _workers(self, at: Situation) -> list[str]:
        """Two who may act: those who have had the job come first."""
        had = list(dict.fromkeys(call.actor for call in at.claims))
        known = (*had, *(f"w{len(had) + n}" for n in (1, 2)))
        return [who for who in known if who not in at.gone][:2]

    def _of(self, at: Situation, who: str) -> list[Call]:
        return [call for call in at.claims if call.actor == who]

    def _ends_by(self, nth: int, *, again: bool) -> Iterator[Do]:
        """The ways in which a worker may act on what it has got by one of its claims."""
        alone = self.pieces.enders(nth * self.batch)
        if self.batch == 1:
            yield from alone
        if self.pieces.joins:
            yield Do("complete_and_claim", batch=nth)
        if "complete_many" in self.pieces.offers and (self.batch > 1) == self.pieces.takes_limit:
            yield Do("complete_many", batch=nth)
            if nth and again:  # what was got by all of them
                yield Do("complete_many", part="one of each")
        if self.batch > 1:  # what leads to the same comes after that
            yield from alone

    def _call(self, at: Situation, kind: CallKind, who: str) -> Call:
        index, began = len(at.way), at.now + APART
        bound = self._bound if kind == "enqueue" else None
        return Call(index, kind, who, 2 * index, began, 2 * index + 1, began, bound=bound)

    def _born(self, at: Situation) -> Mapping[str, Any]:
        """A job comes; one that has ended may run once more where another is like it (rule 34)."""
        revives = self.pieces.offer.keyed and at.job.phase in FINISHED
        if at.job.phase != Phase.ABSENT and not revives:
            return {}
        outcome = step(self.rules, at.job, Act(self._call(at, "enqueue", NEW[0]), "enqueue"))
        assert not isinstance(outcome, Violation)
        job = outcome[-1]._replace(bound=at.job.bound, claims=0) if revives else outcome[0]
        return {"job": job, "lined": "promote" not in self.pieces.offers, "cleaned": False}

    def _claims(self, at: Situation, who: str) -> Mapping[str, Any]:
        call = self._call(at, "claim", who)
        outcome = step(self.rules, at.job, Act(call, "claim"))
        # What declares no backoff may also wait: the clock moves on in other programs.
        failed = at.waits and at.ends[-1:] == ("fail",)
        at_once = failed and not self.rules.backoff and "promote" not in self.pieces.offers
        free = at.job.phase == Phase.QUEUED and (at.lined or at_once)
        over = self._is_lost(at) and not self.rules.recovers
        if self._is_last(at) or not (free or over) or isinstance(outcome, Violation):
            return {}
        ends = (*at.ends, "claim") if over else at.ends
        return {"job": outcome[0], "claims": (*at.claims, call), "ends": ends, "lined": True}

    def _is_lost(self, at: Situation) -> bool:
        """True if the job's holder has certainly lost it."""
        return at.lease(self.rules.lease) == "lapsed" or (at.job.crashed and self.rules.tied)

    def _ends(self, at: Situation, who: str, do: Do) -> Mapping[str, Any]:
        """A worker acts on the job, by one of its claims."""
        kind: OperationKind = "complete"
        if do.kind == "fail" or do.kind == "heartbeat":  # noqa: PLR1714 - mypy knows them apart
            kind = do.kind
        act = Act(self._call(at, kind, who), kind, holder=_claim_of(self._of(at, who), do))
        outcome = step(self.rules, at.job, act)
        if isinstance(outcome, Violation):
            return {}
        again = self.pieces.offer.retries and not self._is_last(at)
        job = outcome[0 if again else -1]
        if kind == "heartbeat":
            return {"job": job, "beaten": True}
        if job.phase == at.job.phase:
            return {}
        ends = at.ends if at.job.phase == Phase.QUEUED else (*at.ends, kind)
        back = job.phase == Phase.QUEUED
        return {"job": job, "ends": ends, "lined": at.lined and not back, "rests": back}

    def _dies(self, at: Situation) -> Mapping[str, Any]:
        act = Act(self._call(at, "crash", at.holder), "crash")
        return {"job": _only(step(self.rules, at.job, act)), "gone": at.gone | {at.holder}}

    def _recovers(self, at: Situation) -> Mapping[str, Any]:
        outcome = step(self.rules, at.job, Act(self._call(at, "recover", "reaper"), "recover"))
        if isinstance(outcome, Violation) or not self._is_lost(at):
            return {}
        # Where no attempts are promised it may end any job, and at best puts it back.
        job = outcome[-1 if self._is_last(at) else 0]
        rests = self.rules.waits  # and a queue may draw lots for how long (rule 14)
        lined = "promote" not in self.pieces.offers and not rests
        return {"job": job, "ends": (*at.ends, "recover"), "lined": lined, "rests": rests}

    # --- programs -------------------------------------------------------------------------------

    def alone(self) -> Iterator[Known]:
        """Every act in every situation, with what shows what has come of it."""
        for at in self.situations:
            for deed in self._acts(at):
                for n, look in enumerate(self._looks(deed)):
                    # What is left behind by a worker that has beaten often does not add up, and
                    # maintenance that comes to nothing does so however often.
                    idle = deed.do.kind in MAINTENANCE and deed.after.key == at.key
                    often = idle or (n > 0 and deed.do.kind == "heartbeat")
                    stage = (script(deed.actor, *[deed.do] * (OFTEN if often else 1)),)
                    make = partial(self._program, at, stage, look)
                    what = (self._role(at, deed), deed.do.kind, deed.do.part, n)
                    # A sign of life may count the first time alone.
                    second = at.beaten and deed.do.kind == "heartbeat"
                    kind = (self.batch, *self._stands(at), *what, second)
                    yield Known(what, kind, make, self._length(at))
                if deed.do.kind == "cleanup" and self.batch == 1:
                    yield from self._watched(at)

    def _watched(self, at: Situation) -> Iterator[Known]:
        """A cleanup of what has ended by now, or a day ago, between two looks at what is there."""
        queue = self.pieces.offer.queue
        for age in (0.0, DAY) if "jobs" in queue.offers and "age" in queue.takes("cleanup") else ():
            looks = script("janitor", OBSERVE, Do("cleanup", seconds=age), OBSERVE)
            what = "cleanup", age, at.job.phase, NEW in at.way
            yield Known(what, (self.batch, *what), partial(self._aged, at, looks), self._length(at))

    def _aged(self, at: Situation, does: Script) -> Program:
        """A program whose jobs are older than what a cleanup keeps, whenever they ended."""
        return _long_ago(self._program(at, (does,), ()))

    def meetings(self) -> Iterator[Known]:
        """Every act in every situation, while the job's life goes on."""
        seen = set()
        for at in self.situations:
            for deed in self._acts(at):
                look = self._looks(deed)[0]
                lapsed = at.lease(self.rules.lease) == "lapsed"
                stands = self.batch, at.job.phase, lapsed or at.over
                idle = deed.after.key == at.key
                leads_to = deed.after.job.phase  # a last fail ends the job
                if deed.actor.startswith("w") and deed.do.kind not in _SPAN:
                    dies = script(NEMESIS, crash(int(deed.actor[1:])))
                    make = partial(self._program, at, (deed.script, dies), look)
                    what: Kind = (deed.do.kind, "crash", self._is_last(at))
                    yield Known(what, (*stands, *what), make, self._length(at), steps=1 + idle)
                for two in self._alike(at, deed) if not idle else ():
                    make = partial(self._in_pairs, at, deed, two, look)
                    # What has come of a job before is what tells such jobs from fresh ones.
                    before = at.ends[-1:] if two is deed else ()
                    both = frozenset((leads_to, two.after.job.phase))
                    what = (deed.do.kind, "in pairs", two.do.kind, both, *before)
                    yield Known(what, (*stands, *what), make, self._length(at), steps=1)
                for slow, lost in self._lookers(deed) if not idle else ():
                    what = (deed.do.kind, leads_to, "slow", slow[1][-1].kind, len(lost))
                    begins = deed.do.kind in _BEGINNING and slow[1][-1].kind != "claim"
                    left = self._looks(deed)[-1] if begins else ()
                    make = partial(self._program, at, (deed.script, slow), left, lost=lost)
                    yield Known(what, (*stands, *what), make, self._length(at), steps=1)
                for walk, other in self._walks(at, deed):
                    key = (at.key, frozenset((deed.script, other)))
                    if key in seen:
                        continue
                    seen.add(key)
                    kinds = frozenset(do.kind for do in other[1])
                    what = (deed.do.kind, kinds)
                    make = partial(self._meeting, at, deed, other, walk[-1])
                    # Whoever comes beside a job may be taken for it: that is no idle act.
                    joins = self._joins((deed.script, other))
                    apart = self._is_apart(at, deed, walk) and not joins
                    late = apart and self._locks(at, deed, walk)
                    last = self._is_last(at)
                    ends = walk[-1].after.job.phase  # a last fail leaves nothing to be claimed
                    kind = ("late", lapsed, last, *what) if late else (*stands, *what, ends)
                    # What ends one job of a batch does so first to a job that came alone.
                    aside = (apart and not late) or (self.batch > 1 and _is_single((deed, *walk)))
                    steps = len(walk) + (idle and not joins)
                    yield Known(what, kind, make, self._length(at), aside, steps)

    def _alike(self, at: Situation, deed: Deed) -> Iterator[Deed]:
        """The acts of another worker on a job of its own that has come the same way.

        Of acts that the same worker may do, those up to the act itself: two are met once.
        """
        if deed.do.kind in _SPAN or deed.actor == NEW[0]:
            return
        for two in self._acts(at):
            works = two.actor.startswith("w") and two.do.kind not in _SPAN
            same = two.actor == deed.actor or deed.do.kind in MAINTENANCE
            if works and same and two.after.key != at.key:
                yield two
            if two is deed:
                break

    def _in_pairs(self, at: Situation, deed: Deed, two: Deed, look: tuple[Stage, ...]) -> Program:
        """An act while another worker acts on its own job, which has come the same way."""
        other = (_the_other(two.actor), (whole(two.do),))
        program = self._program(at, (deed.script, other), look)
        stages = [
            again
            for stage in program.stages
            for again in (stage, *(_by_the_other(stage) if len(stage) == 1 else ()))
        ]
        return program._replace(jobs=program.jobs * 2, stages=tuple(stages))

    def _meeting(self, at: Situation, deed: Deed, other: Script, last: Deed) -> Program:
        """An act while others go on; what they have begun by their last one is kept, too."""
        first, then = (deed, last) if last.after.job.phase not in FINISHED else (last, deed)
        look = self._looks(first)[0] or self._looks(then)[0]
        return self._program(at, self._stage(deed, other), look)

    def _lookers(self, deed: Deed) -> Iterator[tuple[Script, Sequence[int]]]:
        """Whoever may look for jobs while an act takes long, and how often jobs may run beside it.

        Maintenance comes when all that the queue waits for is over, a claim within the lease. A
        recovery finds that job alone, or those of crashed workers too: it has something to do then,
        whatever the act holds.
        """
        if deed.do.kind in MAINTENANCE | _SPAN:
            return
        passes = advance(max(map(past, self.pieces.spans), default=DAY))
        cleans = [CLEAN] if "cleanup" in self.pieces.offers else []
        for actor, dos in (*self.pieces.reaper(), *cleans):
            slow = script(actor, passes, *map(whole, dos))
            yield slow, ()
            if RECOVER in dos:
                yield slow, _bounds(self.pieces)
        within = advance(_LATER * self.rules.lease) if self.rules.lease else passes
        yield script("w9", within, whole(claim(self.batch))), ()

    def _stage(self, deed: Deed, other: Script) -> Stage:
        """Both at once; the heartbeats of a worker may come from a thread of its own (rule 3)."""
        beats = HEARTBEATS if deed.actor == other[0] else ""
        if deed.do.kind == "heartbeat":
            return (script(deed.actor + beats, deed.do), other)
        return (deed.script, (other[0] + beats, other[1]))

    def _is_apart(self, at: Situation, deed: Deed, walk: tuple[Deed, ...]) -> bool:
        """True if it is all one who goes first: it ends the same, and the act does the same."""
        there = walk[-1].after
        end = self._replayed(there, [deed])
        does = deed.after.key != at.key
        return self._replayed(deed.after, walk) == end and (end != there.key) == does

    def _locks(self, at: Situation, deed: Deed, walk: tuple[Deed, ...]) -> bool:
        """True where somebody may lock what another wants, who then decides by an old row.

        Somebody late, for whom a wait is no answer; or the holder, whose heartbeat is under way.
        """
        kinds = {deed.do.kind, *(one.do.kind for one in walk)}
        known = len(walk) == 1 and kinds <= _LOCKING and at.job.phase not in FINISHED
        roles = {self._role(at, one) for one in (deed, *walk)}
        late = at.lease(self.rules.lease) == "lapsed" or not {"holder", ""} >= roles
        return known and (late or deed.actor == walk[0].actor)

    def _replayed(self, at: Situation, deeds: Iterable[Deed]) -> Kind | None:
        """The end of the same deeds in another situation; None where they cannot be done."""
        for deed in deeds:
            again = self._deeds(at).get(deed.script)
            if again is None:
                return None
            at = again.after
        return at.key

    def struck(self, fault: FaultKind) -> Iterator[Known]:
        """Every act that may come to something, with a fault at any of its steps."""
        for at in self.situations:
            for deed in self._acts(at):
                if deed.after.key == at.key or deed.do.kind in _SPAN:
                    continue
                # A fault knows workers by their number.
                actor = deed.actor if deed.actor.startswith("w") else "w9"
                number = 0 if FAULTS[fault].of_server else int(actor[1:])
                stage = script(actor, deed.do), script(NEMESIS, Do(fault, worker=number))
                before = self._precedent(deed)
                stands = self.batch, at.job.phase, at.job.crashed, self._is_last(at)
                # With the server a worker may go for good, and what tells of it may have gone too.
                looks = self._looks(deed)[: 1 + FAULTS[fault].of_server]
                for nth, look in enumerate(looks):
                    make = partial(self._program, at, stage, look, before)
                    # A promotion puts what is new in line, or what has waited after a failure.
                    what = (deed.do.kind, nth, at.over)
                    yield Known(what, (*stands, *what), make, self._length(at))

    def _precedent(self, deed: Deed) -> tuple[Script, ...]:
        """Another job that has ended so before: it shows what becomes of such jobs."""
        ends = deed.do.kind in COMPLETES or (deed.do.kind == "fail" and self._ends_with_the_next)
        the_same = deed.do._replace(job=0, batch=0, part="all")
        return (script("w8", claim(self.batch), the_same),) if ends else ()

    def _role(self, at: Situation, deed: Deed) -> str:
        """The actor's role: the holder, somebody else, or how the claim that is named has ended."""
        had = self._of(at, deed.actor)
        if not had:
            return ""
        by = _claim_of(had, deed.do) if deed.do.kind in _BY_A_CLAIM else had[-1]
        return dict(zip_longest(map(id, at.claims), at.ends, fillvalue="holder"))[id(by)]

    def _walks(self, at: Situation, deed: Deed) -> Iterator[tuple[tuple[Deed, ...], Script]]:
        """Acts that may go on while one is under way: any, or several that come to something."""
        here = {at.key}
        paths: list[tuple[tuple[Deed, ...], Situation]] = [((), at)]
        for length in range(1, WALK + 1):
            further = []
            for path, there in paths:
                for one in self._deeds(there).values():
                    walk = (*path, one)
                    if one.actor == "clock" and one.after.over:
                        continue
                    comes_to_something = one.after.key not in here
                    if not (comes_to_something or length == 1):
                        continue
                    if (other := self._script(deed, walk)) is None:
                        continue
                    if comes_to_something:
                        here.add(one.after.key)
                        further.append((walk, one.after))
                    if one.actor != "clock":
                        yield walk, other
            paths = further

    def _script(self, deed: Deed, walk: tuple[Deed, ...]) -> Script | None:
        """Several steps as one actor's; None where it takes two workers, or the one who acts."""
        workers = {one.actor for one in walk if one.actor.startswith("w")}
        kinds = {one.do.kind for one in walk}
        if len(workers) > 1 or deed.do.kind in _SPAN:
            return None
        if deed.do.kind in MAINTENANCE and kinds & MAINTENANCE and self.pieces.offer.queue.leader:
            return None
        actor = min(workers, default=f"{walk[0].actor}2" if walk[0].actor != "clock" else "w9")
        if actor == deed.actor:
            # Whose heartbeats may come from a thread of its own, one after the other (rule 3).
            beats = kinds if deed.do.kind != "heartbeat" else {"heartbeat"} - kinds
            both = kinds | {deed.do.kind}
            if self.rules.worker_heartbeat or self.rules.held:
                return None
            if not {"heartbeat"} <= beats <= {"heartbeat", "advance"}:
                return None
            if "claim" in both:
                return None
        dos = [one.do for one in walk]
        return actor, tuple(do if do.kind in _SPAN else whole(do) for do in dos)

    def _program(
        self,
        at: Situation,
        stage: Stage,
        look: tuple[Stage, ...],
        before: tuple[Script, ...] = (),
        lost: Sequence[int] = (),
    ) -> Program:
        """A program of one act; where jobs are capped, as many run as may beside the job's own.

        Args:
            before: What has become of other jobs.
            lost: How often jobs of crashed workers may run.
        """
        limit = self.pieces.offer.queue.concurrency_limit
        cap = limit or 1
        # Those of crashed workers count until they are recovered, and leave a place for this job.
        lost = lost[: limit - 1] if limit else lost
        beside = cap - 1 - len(lost)
        others = [script(f"w{20 + n}", claim()) for n in range(beside)] if cap <= MOST_HELD else []
        jobs = () if at.job.phase == Phase.ABSENT or at.way[:1] == (NEW,) else self._jobs
        jobs += self._jobs[:1] * (self.batch * len(before) + len(others) + (cap > 1))
        jobs = (*(JobSpec(bound=n) for n in lost for _ in range(self.batch)), *jobs)
        crashed = [script(f"w{40 + n}", claim(self.batch), crash()) for n in range(len(lost))]
        exact = any(do.kind == "until" for one in look for _, dos in one for do in dos)
        aligned = script("clock", whole(ALIGN)) if at.over else ALIGNED
        # Only a list tells whether a recovery has ended a job, or left it for a claim to bury.
        buried = at.job.phase == Phase.FAILED and at.ends[-1:] == ("recover",)
        seen = [script("observer", OBSERVE)] * (buried and "jobs" in self.pieces.offers)
        # By tokens of two claims the jobs of a batch are apart as they are.
        mixed = self.batch > 1 and any(do.part == "one of each" for _, dos in stage for do in dos)
        came = (*(() if mixed else self._ahead), *before, *crashed, *at.way, *seen)
        way = in_turn(SETTLE, *came, *others, *[aligned] * exact)
        program = Program(jobs, (*way, stage, *look), self._jobs[:1] * RESERVE)
        return _like_the_other(program) if jobs and self._joins((*at.way, *stage)) else program

    def _joins(self, stage: Iterable[Script]) -> bool:
        """True where somebody enqueues a job that may be taken for another."""
        return self.pieces.offer.keyed and any(who == NEW[0] for who, _ in stage)

    def _looks(self, deed: Deed) -> list[tuple[Stage, ...]]:
        """The stages that show whether a lease is kept, and what an end or a death leaves.

        The run's end shows all else.
        """
        lease, after = self.rules.lease, deed.after
        last = (*self.pieces.reaper(), script("w6", claim(self.batch)))
        if lease is not None and after.job.phase in FINISHED and deed.do.kind in _BY_A_CLAIM:
            return [in_turn(script("clock", advance(past(lease))), *last)]
        if lease is None or after.lease(lease) not in _KEPT or after.job.crashed:
            return [()]
        begins = deed.do.kind in _BEGINNING
        if self.rules.worker_heartbeat and deed.do.kind != "heartbeat":
            # The worker's lease may have begun before.
            kept = advance(min(_KEPT[after.lease(lease)], _EARLY) * lease)
        elif begins and after.lease(lease) == "fresh":
            kept = until(lease)
        else:
            kept = advance(_KEPT[after.lease(lease)] * lease)
        looks = [in_turn(script("clock", kept), *last)]
        if begins:
            # What was old is over, and not what somebody has begun anew.
            over = _LATER * lease if after.lease(lease) == "old" else past(lease)
            dead = [script(who, crash()) for who in dict.fromkeys((after.holder, deed.actor))]
            looks.append(in_turn(*dead, script("clock", advance(over)), *last))
        return looks


def _the_other(worker: str) -> str:
    """A worker who does what another one does."""
    return f"w{50 + int(worker[1:])}"


def _by_the_other(stage: Stage) -> tuple[Stage, ...]:
    """The same by another worker, or by the producer once more; nothing by anybody else."""
    ((actor, dos),) = stage
    if actor == NEW[0]:
        return (stage,)
    return in_turn((_the_other(actor), dos)) if actor.startswith("w") else ()


def _claim_of(claims: Sequence[Call], do: Do) -> Call:
    """The claim by which a worker acts; the last of several."""
    nth = do.job if do.kind in _OF_A_JOB else do.batch
    return claims[-1 if do.part == "one of each" else min(nth, len(claims) - 1)]


def _is_single(deeds: Iterable[Deed]) -> bool:
    """True where one job is ended, and no batch."""
    kinds = {one.do.kind for one in deeds}
    return not kinds.isdisjoint({"complete", "fail"}) and kinds.isdisjoint(_TOGETHER)


def _only(outcome: list[Job] | Violation) -> Job:
    assert not isinstance(outcome, Violation)
    return outcome[0]


def _only_do(one: Script) -> tuple[str, Do]:
    actor, (do,) = one
    return actor, do


# --- the same life with another job ---------------------------------------------------------------


def spaces(pieces: Pieces, rules: Declared) -> list[Space]:
    """The spaces of a queue: of a job with one attempt left, of one with more, of a batch."""
    bounds = _bounds(pieces)
    found = [Space(pieces, rules, bound) for bound in bounds]
    if 1 < bounds[0] <= MOST_ATTEMPTS:  # the queue's own, and no enqueue can ask for fewer
        found += [
            Space(pieces, rules, bounds[0], spent=way) for way in spent(pieces, rules, bounds[0])
        ]
    if pieces.takes_limit:
        found += [Space(pieces, rules, bound, BATCH) for bound in reversed(bounds)]
    return found


def _bounds(pieces: Pieces) -> list[int]:
    """The times that a job may run: the fewest and the most; 0: as the queue's header says."""
    bounds = pieces.bounds() or [0]
    return list(dict.fromkeys((bounds[0], bounds[-1])))


def spent(pieces: Pieces, rules: Declared, bound: int) -> Iterator[tuple[Script, ...]]:
    """The ways in which all attempts of a job but its last come to nothing."""
    times = range(bound - 1)

    def cycles(takes: Callable[[int], Script], seconds: float) -> Iterator[Script]:
        for n in times:
            yield from (takes(n), script("clock", advance(past(seconds))), *pieces.reaper())

    if rules.tied or rules.signs or rules.one_each:  # it takes a death each time
        freed = 0.0 if rules.tied else rules.lease
        if freed is not None:
            yield tuple(cycles(lambda n: script(f"w{100 + n}", claim(), crash()), freed))
    elif rules.lease is not None:  # one worker is too slow, and needs no new process
        yield (*cycles(lambda _: script("w100", claim()), rules.lease), script("w100", crash()))
    if pieces.offer.retries:
        yield tuple(cycles(lambda n: script("w100", claim(), fail(n)), REST))


Skin: TypeAlias = Callable[[Program], Program]


def _wearing(**facts: object) -> Skin:
    def skin(program: Program) -> Program:
        jobs = (job._replace(**facts) for job in program.specs)  # type: ignore[arg-type]  # its fields
        return program.having(tuple(jobs))

    return skin


_like_the_other = _wearing(payload="same")


def _elsewhere(program: Program) -> Program:
    stages = tuple(
        tuple(
            (who, tuple(do._replace(queue="other") if "claim" in do.kind else do for do in dos))
            for who, dos in stage
        )
        for stage in program.stages
    )
    return _wearing(queue="other")(program._replace(stages=stages))


def _long_ago(program: Program) -> Program:
    return program._replace(stages=(*in_turn(script("clock", advance(_OLD))), *program.stages))


def _put_off(program: Program) -> Program:
    """Its jobs had to wait, and a younger one that had not comes before anybody claims."""
    jobs = tuple(job._replace(delay=HOUR) for job in program.jobs)
    waits = in_turn(script("clock", advance(DAY)), NEW) if jobs else ()
    return program._replace(jobs=jobs, stages=(*waits, *program.stages))


def _joined(program: Program) -> Program:
    """Another job like it comes, and is claimed, too, where two that wait would be one."""
    claims = (
        (n, who)
        for n, stage in enumerate(program.stages, 1)
        for who, dos in stage
        if any("claim" in do.kind for do in dos)
    )
    at, who = next(claims, (0, ""))
    more = in_turn(NEW, script(who, claim())) if who else ()
    stages = (*program.stages[:at], *more, *program.stages[at:])
    return _like_the_other(program._replace(stages=stages))


def _looked_before(program: Program) -> Program:
    """Whoever claims has looked before, when all that there was had to wait."""
    if any(START in dos for stage in program.stages for _, dos in stage):
        return program  # who begins there has no life before
    acts = [(who, do.kind) for stage in program.stages for who, dos in stage for do in dos]
    claiming = dict.fromkeys(who for who, kind in acts if kind == "claim")
    looks = in_turn(*(script(who, claim()) for who in claiming), *[NEW] * len(program.jobs))
    return program._replace(
        jobs=(JobSpec(delay=HOUR),),
        reserve=(*program.jobs, *program.reserve),
        stages=(*looks, *program.stages),
    )


def _with_another(program: Program) -> Program:
    return program._replace(jobs=(*program.jobs, *program.reserve[:1]))


def skins(pieces: Pieces) -> list[list[Skin]]:
    """The ways in which a job may be different all along, and of each its forms."""
    takes = pieces.offer.queue.takes("enqueue")
    known: list[tuple[bool, list[Skin]]] = [
        (pieces.offer.queue.routes, [_elsewhere]),
        ("priority" in takes, [_wearing(priority=one) for one in (-1, 1000, LOWEST, HIGHEST)]),
        (pieces.alike, [_like_the_other]),
        ("payload" in takes, [_wearing(payload="large")]),
        (pieces.offer.keyed and not pieces.offer.held, [_joined]),
        (True, [_long_ago]),
        ("delay" in takes, [_looked_before]),
        ("delay" in takes, [_put_off]),
        (True, [_with_another]),
    ]
    return [forms for offered, forms in known if offered]


def ordered(
    known: Iterable[Known], seed: int, several: Collection[object] = frozenset()
) -> list[Known]:
    """Programs in an order of chance, one of each kind before a second one of any.

    Among these, one of each that does the same comes before a second one, too; of an act between
    whose statements others may come, more of them. Those come later in which it is all one who goes
    first, and those that take more steps.

    Args:
        several: Operations that send several statements.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    shuffled = list(known)
    rng.shuffle(shuffled)
    shuffled.sort(key=attrgetter("steps", "way"))
    seen: Counter[tuple[Kind, int]] = Counter()
    ranked = []
    for one in shuffled:
        rank = seen[one.kind, one.apart]
        seen[one.kind, one.apart] += 1
        rank += one.apart * (rank + 1)
        turn = seen[one.what, rank]
        ranked.append((rank, turn // AHEAD if one.what[0] in several else turn, one))
        seen[one.what, rank] += 1
    return [one for *_, one in sorted(ranked, key=itemgetter(0, 1))]


def worn(known: Iterable[Known], pieces: Pieces, seed: int) -> Iterator[Program]:
    """The programs, half of them in a skin."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    offered = skins(pieces)
    for one in known:
        yield rng.choice(rng.choice(offered))(one.make()) if rng.random() < WORN else one.make()
