"""The search for a small change that mends a queue: candidates, refused fast, then checked.

Candidates are asked in order of their size. One that lets a story happen again, under any order, is
refused within moments: the stories of the queue itself, and those by which others were refused.
What is left is asked for the guarantees that were broken; the first that keeps them is checked by
everything, like any queue. Budgets are counts, so that a seed gives the same diff.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from functools import partial
from io import StringIO
from itertools import count, islice, product
from pathlib import Path
from typing import NamedTuple

from queueproof.advice.catalogue import Fix, changed, fixes
from queueproof.advice.reading import Draft
from queueproof.errors import QueueError, QueueproofError, Source
from queueproof.examine.calibrate import calibrate
from queueproof.examine.check import check_queue, first_flaw
from queueproof.examine.processes import MOST as PROCESSES
from queueproof.examine.processes import lent_server, processes
from queueproof.examine.replay import replay
from queueproof.examine.work import runner_under
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.judge.checker import declare
from queueproof.postgres import Server, open_server
from queueproof.probes.probes import PROBES
from queueproof.queues.filetext import QueueText, read
from queueproof.queues.model import Queue
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import SqlFileQueue, load, load_text
from queueproof.report.card import Card, Judgement, Mended
from queueproof.report.text import TRIED, counted
from queueproof.run.lab import Lab
from queueproof.run.open import open_lab
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.moments import DAY, past
from queueproof.schedule.programs import JobSpec, Program, advance, claim, crash, in_turn, script
from queueproof.search.shrink import Failure, breaches, find
from queueproof.search.tokens import decode_token
from queueproof.space.pieces import Pieces

MOST = 120  # candidates for each broken guarantee
ADVISED, OF_ALL = 30, 90  # the same where a check only looks for what to say, and for all together
DEAR = frozenset({"steady-cost", "old-snapshot", "crash-safe"})
"""Their stories take seconds each: a check does not look for what mends them."""
DEPTH = 3  # changes that go together
BRANCHES = 6  # candidates of a kind that are changed further
SMALLER = 4  # forms that replace less, tried once one is found
SURE = 3  # times that a story must not happen with the form that is told
KEEPING = 3  # forms with which no story happens that are asked for the whole guarantee
SHORT = 16  # lines of a change that are shown
STORY = 60  # schedules of a story's program that must not tell it any more
AGAIN = 4  # checks by everything
AT_ONCE = 2  # candidates that are examined beside each other; the first that is sound is taken
_ABOUT = {  # of which columns a guarantee speaks most: what changes them is tried first
    "retry-bound": ("attempts", "most"),
    "retry-given": ("attempts", "most"),
    "backoff": ("due",),
    "not-early": ("due",),
    "live-lease": ("until", "since"),
    "stale-recovery": ("until", "since"),
    "fencing": ("attempts",),
    "routing": ("queue",),
    "order": ("priority", "due"),
}
_OTHERWISE = {  # what a form that mends a guarantee may break instead: too much of a good thing
    "retry-bound": "retry-given",
    "retry-given": "retry-bound",
    "live-lease": "stale-recovery",
    "stale-recovery": "live-lease",
    "not-early": "no-lost-job",
    "no-lost-job": "final-state",
    "final-state": "no-lost-job",
    "no-starvation": "not-early",
    "fencing": "live-lease",
}
_TO_DO = {  # patterns of a form's name, each with the words in which a reader is told to do it
    r"^(\w+): asks for (.*)": r"Let \1 also ask for \2",
    r"^(\w+): (.*) added$": r"Add \2 to \1",
    r"^(\w+): (.*) added, (.*) instead of (\w+)$": r"Add \2 to \1, and write \3 instead of \4",
    r"^(\w+): (.*) dropped$": r"Drop \2 from \1",
    r"^\w+: (.*) dropped from (.*)$": r"Drop \1 from \2",
    r"^(\w+): (.*) asked instead$": r"Let \1 ask for \2 instead",
    r"^(\w+): (.*) moved to the end$": r"Move \2 to the end of \1",
    r"^(\w+): sets (.*)$": r"Let \1 set \2",
    r"^\w+: compares (.*)$": r"Compare \1",
    r"^schema: no (.*) in the schema$": r"Drop `\1`",
    r"^schema: (.*) in the schema$": r"Declare it `\1`",
}


class Goal(NamedTuple):
    """The questions that a candidate is asked."""

    stories: tuple[str, ...]  # tokens; none may be told any more
    wanted: tuple[str, ...]  # guarantees that must hold; none: the stories are all that is asked
    broken: tuple[str, ...] = ()  # which the original breaks: no story of theirs counts against it
    profile: str = "mutants"  # by which the guarantees are asked: this one finds one small change


class Outcome(NamedTuple):
    """The end that a candidate came to."""

    stories: tuple[str, ...] = ()  # those that are still told
    flaw: str = ""  # the guarantee that it breaks instead; nothing where it is as wanted
    reason: str = ""
    blocks: frozenset[str] = frozenset()  # whose statements take part in that
    token: str = ""  # the story of that, where it is another than those

    @property
    def is_sound(self) -> bool:
        """True where nothing is left to ask but everything."""
        return not self.reason


@dataclass(slots=True)
class Tries:
    """The candidates that were tried for one guarantee."""

    name: str
    tried: int = 0
    passed: int = 0  # those that no longer tell a story
    checked: int = 0  # those of them that were asked for what must hold
    instead: dict[str, None] = field(default_factory=dict)  # what some break, all stories gone

    def __str__(self) -> str:
        if not self.tried:
            return f"{self.name}: the file as it is goes first"
        told = f"{self.name}: {self.tried} candidates tried"
        if self.passed:
            told += f", {self.checked} of the {self.passed} that pass its stories checked further"
        return told


class Variant(NamedTuple):
    """A file on the way, and what is wrong with it."""

    text: str
    what: tuple[str, ...]
    target: str
    blocks: frozenset[str]
    stories: tuple[str, ...]


def mend(
    queue: Queue,
    card: Card,
    *,
    postgres: str | None,
    trust: bool = False,
    profile: str,
    jobs: int = 1,
    progress: Callable[[str, float | None], None] = lambda _what, _done: None,
) -> Generator[Mended | None]:
    """Look for a small change of a queue's own SQL that mends what is broken.

    Profile, jobs and progress are as for `check_queue`. Twice as many processes try candidates, as
    each waits for the server half the time; nobody knows how many it will take: progress is None.

    Yields:
        The change so far, each time it mends one guarantee more, which was asked for what it mends
        alone; None once a check by everything refuses it; and what came of it all, at last.
    """
    file = source(queue)
    texts = {path: read(path) for path in file.paths}  # as they are now: somebody may edit them
    with open_server(postgres, trust=trust) as server:
        yield from _Search(file, texts, card, server, profile, jobs, progress).mended()


class Advice(NamedTuple):
    """The lines to write in a queue's file."""

    text: str  # the lines, in words
    place: Source  # the first one that changes


def advise(
    queue: Queue, card: Card, server: Server, progress: Callable[[str, float | None], None]
) -> dict[str, Advice]:
    """Advice for each broken guarantee: one safe form with which its stories do not happen."""
    broken = [one for one in card.guarantees if one.verdict == "broken"]
    if not (broken and isinstance(queue, SqlFileQueue)):
        return {}
    file = source(queue)
    text = file.text
    found: dict[str, Advice] = {}
    used: dict[str, Fix] = {}
    judged = sorted((one for one in broken if one.id not in DEAR), key=_first)
    budget = iter(range(OF_ALL))
    for again, one in product((False, True), judged):
        if one.id in found or (again and not used):
            continue
        if again:  # only what was found to mend others
            budget = iter(())
        stories = tuple(story.replay for story in one.stories if story.replay)
        goal = Goal(stories, (), tuple(other.id for other in broken if other is not one))
        ask = partial(_judged, path=queue.name, goal=goal, seed=card.seed, server=server)
        progress(f"looking for what mends {one.id}", None)
        kept = _Asking(text, queue.name, one.id, goal, ask, budget).fix(used.values())
        if kept is not None:
            used[kept.text] = kept
            place = file.source_of(_first_row(text, kept.text))
            found[one.id] = Advice(said(text, kept, place), place)
    return found


@dataclass(frozen=True, slots=True)
class _Asking:
    """A broken guarantee, and what candidates are asked for it."""

    text: str  # the file as it is
    path: str
    guarantee: str
    goal: Goal  # the stories
    ask: Callable[..., Outcome]  # has a file judged by a goal, by this one unless given
    budget: Iterator[int]  # one for each form that may still be tried

    def fix(self, used: Iterable[Fix]) -> Fix | None:
        """The form that mends it, or several together; what mends other guarantees goes first."""
        forms = self._forms(self.text, self.ask)
        for fix in used if forms else ():
            if _ends(self.ask, fix) and self._kept(fix).is_sound:
                return fix
        first: Fix | None = None
        for fix in islice(self._ending(self.text, forms, self.ask), KEEPING):
            if self._kept(fix).is_sound:
                return fix
            first = first or fix
        several = first is not None or len(self.goal.stories) > 1
        return self._on_top(first) if forms and several else None

    def _kept(self, fix: Fix) -> Outcome:
        """The guarantee asked itself: a form may end that story, and put another in its place.

        What takes something away may break any other.
        """
        wanted = {self.guarantee, _OTHERWISE.get(self.guarantee, self.guarantee)}
        wanted |= CATALOGUE.keys() - DEAR if fix.last else set()
        asked = tuple(sorted(wanted - set(self.goal.broken)))
        return self.ask(fix.text, goal=Goal((), asked, profile="glance"))

    def _on_top(self, found: Fix | None) -> Fix | None:
        """A form for each story, one on top of the other, and for those that come to light then."""
        stories = [] if found else [*self.goal.stories]
        besides = (*self.goal.broken, self.guarantee)  # by its other stories
        for _ in range(len(stories) + DEPTH):
            if found and not stories:
                flaw = self._kept(found)
                if flaw.is_sound or flaw.flaw != self.guarantee or not flaw.token:
                    return found if flaw.is_sound else None
                stories = [flaw.token]
            ask = partial(self.ask, goal=Goal((stories.pop(0),), (), besides))
            text = found.text if found else self.text
            forms = self._forms(text, ask)
            fix = next(self._ending(text, forms, ask), None)
            if forms and fix is None:
                return None
            if fix and found:
                what, last = f"{found.what}. {fix.what}", fix.last or found.last
                fix = fix._replace(what=what, last=last)
            found = fix or found
        return None

    def _forms(self, text: str, ask: Callable[[str], Outcome]) -> list[tuple[Fix, bool]]:
        """The forms for what is told of a text; see `ranked`."""
        told = ask(text)
        return ranked(Draft(text, self.path), self.guarantee, told.blocks) if told.stories else []

    def _ending(
        self, text: str, forms: Sequence[tuple[Fix, bool]], ask: Callable[[str], Outcome]
    ) -> Iterator[Fix]:
        """The forms with which a story does not happen, each as small as still ends it."""
        for (fix, _), _ in zip(forms[:ADVISED], self.budget, strict=False):
            if _ends(ask, fix):
                gone = _replaced(text, fix)
                like = (other for other, _ in forms if other.block == fix.block and not other.last)
                less = (other for other in like if _skips(other) or not _skips(fix))
                smaller = [other for other in less if _replaced(text, other) < gone][:SMALLER]
                yield next((other for other in smaller if ask(other.text).is_sound), fix)


def _ends(ask: Callable[[str], Outcome], fix: Fix) -> bool:
    """True where a story does not happen with a form."""
    # It may hang on ids that the server draws: once without it may be luck.
    return all(ask(fix.text).is_sound for _ in range(SURE))


def _skips(fix: Fix) -> bool:
    """True where a claim passes by what others hold; one that only asks again waits for them."""
    return fix.block == "claim" and "SKIP LOCKED" in fix.what


def _first(judgement: Judgement) -> bool:
    """Sorts waits first: a claim that passes by what others hold does not take it twice either."""
    return judgement.id != "non-blocking"


def _replaced(text: str, fix: Fix) -> int:
    """The words of a file that a form replaces, counted: an author keeps most of them."""
    same = SequenceMatcher(None, text.split(), fix.text.split(), autojunk=False)
    return len(text.split()) - sum(block.size for block in same.get_matching_blocks())


def _first_row(before: str, after: str) -> int:
    """The first line, from 0, that a text changes or adds lines behind."""
    rows = (_row(*lines) for *lines, _, _ in _differing(before.split("\n"), after.split("\n")))
    return next(rows, 0)


def _row(at: int, upto: int) -> int:
    """The first of some lines that are changed; where lines are added, the one before them."""
    return at if upto > at or not at else at - 1


def _differing(old: list[str], new: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """The lines from and up to which two texts differ: those of one, and of the other."""
    same = SequenceMatcher(None, old, new)
    for tag, at, upto, begin, end in same.get_opcodes():
        if tag != "equal":
            yield at, upto, begin, end


def said(before: str, fix: Fix, place: Source) -> str:
    """A form in words, and the lines to take out and to write where they are few."""
    old, new = before.splitlines(), fix.text.splitlines()
    lines: list[str] = []
    for at, upto, begin, end in _differing(old, new):
        # The space keeps `-` and an SQL comment apart from the `---` of a diff's header.
        if upto == at and at:
            # A line that stands in the text twice does not tell where it is.
            twice = at > 1 and [*map(str.strip, old)].count(old[at - 1].strip()) > 1
            lines += [f"  {line}" for line in old[at - 1 - twice : at]]
        lines += [f"- {line}" for line in old[at:upto]] + [f"+ {line}" for line in new[begin:end]]
    shown = "\n".join([".", "", "```diff", *lines, "```", "", ""]) if len(lines) <= SHORT else ". "
    asked = fix.what.split(". ")
    for pattern, told in _TO_DO.items():
        asked = [re.sub(pattern, told, one) for one in asked]
    return f"{'. '.join(asked)} ({place.path.name}:{place.line}){shown}{TRIED}"


def ranked(draft: Draft, guarantee: str, blocks: Collection[str]) -> list[tuple[Fix, bool]]:
    """The safe forms for a guarantee, the likeliest first, and which are about its columns.

    The blocks are those that take part in the story; none where they are not known.
    """
    mine = {*blocks, "schema", "enqueue"}  # every story begins with a job
    about = [f"{draft.jobs[role]}" for role in _ABOUT.get(guarantee, ())]

    def speaks(fix: Fix) -> bool:
        return any(column and column in fix.what for column in about)

    found = fixes(draft, guarantee)
    # Of each block one in turn: nobody knows which operation is to blame, and some have many forms.
    turns = Counter[tuple[object, ...]]()
    order: dict[str, tuple[object, ...]] = {}
    for fix in sorted(found, key=lambda fix: fix.size):
        likely = speaks(fix) or (guarantee == "single-claim" and _skips(fix))
        likely = likely or "BEGIN and COMMIT" in fix.what  # several statements, and no transaction
        kind = (bool(blocks) and fix.block not in mine, fix.last, not likely)
        turns[*kind, fix.block] += 1
        order[fix.text] = (*kind, turns[*kind, fix.block], fix.size)
    return [(fix, speaks(fix)) for fix in sorted(found, key=lambda fix: order[fix.text])]


def source(queue: Queue) -> QueueText:
    """The text of a queue's file; a QueueproofError where it has none, or has changed since."""
    if not isinstance(queue, SqlFileQueue):
        raise QueueproofError(f"mend takes a queue file (.sql): {queue.name} is none")
    if load(queue.name).digest != queue.digest:
        raise QueueproofError(f"{queue.name} has changed since it was read; check it again")
    return queue.file


@dataclass
class _Search:
    file: QueueText
    texts: Mapping[Path, str]
    card: Card
    server: Server
    profile: str
    jobs: int
    progress: Callable[[str, float | None], None]
    tried: int = 0
    _pool: ProcessPoolExecutor = field(init=False)
    _stories: dict[str, list[str]] = field(default_factory=dict)  # tokens by broken guarantee
    _lost_since: list[str] = field(default_factory=list)  # tokens of what a whole check broke
    _learnt: list[str] = field(default_factory=list)  # tokens by which candidates were refused
    _refused: set[str] = field(default_factory=set)  # texts, by the check of everything
    _known: dict[tuple[str, Goal], Outcome] = field(default_factory=dict)
    _tries: Tries = field(init=False)
    _again: str = ""  # why it begins once more
    _spoilt: dict[str, str] = field(default_factory=dict)  # by guarantee, why what mends it is none
    _text: str = ""  # so far, with what mends ...
    _done: list[str] = field(default_factory=list)  # ... these guarantees
    _what: tuple[str, ...] = ()
    _left: dict[str, str] = field(default_factory=dict)  # by guarantee, why nothing mends it

    def mended(self) -> Generator[Mended | None]:
        """Mend one guarantee after the other, and check what came of it by everything."""
        broken = [one for one in self.card.guarantees if one.verdict == "broken"]
        for judgement in sorted(broken, key=_first):
            self._stories[judgement.id] = [s.replay for s in judgement.stories if s.replay]
        for _ in range(AGAIN):
            self._text, self._done, self._what, self._left = self.file.text, [], (), {}
            # They are ended before a check has some of its own.
            with processes(self.server, min(2 * self.jobs, PROCESSES)) as self._pool:
                yield from self._one_by_one()
            card = self._checked(self._text) if self._done else None
            lost = self._lost(card) if card else []
            if not lost:
                yield self._mended(self._left, card)
                return
            self._refused.add(self._text)
            told = ", ".join(lost)
            self._again = f"what was found breaks {told}, so once more: "
            why = f"what mends it breaks {told} in a whole check"
            self._spoilt |= dict.fromkeys(self._done, why)
            yield None
        self._text, self._done, self._what = self.file.text, [], ()
        yield self._mended(self._left | self._spoilt)

    def _mended(self, left: dict[str, str], card: Card | None = None) -> Mended:
        diff = as_diff(self.file, self._text, self.texts)
        lines = changed(self.file.text, self._text)
        return Mended(diff, self._what, lines, tuple(self._done), left, self.tried, card)

    def _one_by_one(self) -> Generator[Mended]:
        broken = list(self._stories)
        for at, name in enumerate(broken):
            self._tries = Tries(name)
            self._tell()
            before = self.tried
            found = next(self._found(name), None)
            if found is None:
                tries = self.tried - before
                told = f"none of {counted(tries, 'candidates')} mends it"
                if self._tries.instead:
                    told += f"; some break {', '.join(self._tries.instead)} instead"
                told = told if tries else "no safe form fits"
                self._left[name] = self._spoilt.get(name, told)
                continue
            self._text, self._what = found.text, (*self._what, *found.what)
            self._done.append(name)
            why = "the search was interrupted before anything mended it"
            yield self._mended(self._left | dict.fromkeys(broken[at + 1 :], why))

    def _found(self, name: str) -> Iterator[Variant]:
        """The candidates that mend a guarantee, the smallest first."""
        text, wanted = self._text, (*self._done, name)
        stories = tuple(token for one in wanted for token in self._stories[one])
        stories += tuple(self._lost_since)
        goal = Goal(stories, () if stories else wanted, self._others(wanted))
        begin = self._outcomes([text], goal)[0]
        if not begin.stories and text not in self._refused:
            whole = self._outcomes([text], Goal((), wanted))[0]
            if whole.is_sound:
                yield Variant(text, (), name, whole.blocks, ())
                return
        serial = count()
        frontier = [(0, 0, next(serial), Variant(text, (), name, begin.blocks, begin.stories))]
        seen = {text}
        budget = self.tried + MOST
        while frontier and self.tried < budget:
            depth, _, _, variant = heapq.heappop(frontier)
            branches = 0
            for fix, outcome in self._asked(variant, stories, wanted, seen, budget):
                what = (*variant.what, fix.what)
                if outcome.is_sound and fix.text not in self._refused:
                    yield Variant(fix.text, what, name, outcome.blocks, ())
                if not outcome.stories and outcome.flaw not in {"", name}:
                    self._tries.instead[outcome.flaw] = None
                gone = set(variant.stories) - set(outcome.stories)
                better = gone or (not outcome.stories and outcome.flaw != variant.target)
                if outcome.flaw and better and depth + 1 < DEPTH and branches < BRANCHES:
                    branches += 1
                    blocks = outcome.blocks or variant.blocks
                    then = Variant(fix.text, what, outcome.flaw, blocks, outcome.stories)
                    size = changed(self.file.text, fix.text)
                    heapq.heappush(frontier, (depth + 1, size, next(serial), then))

    def _asked(
        self,
        variant: Variant,
        stories: tuple[str, ...],
        wanted: tuple[str, ...],
        seen: set[str],
        budget: int,
    ) -> Iterator[tuple[Fix, Outcome]]:
        """Each safe form for a variant, and what came of it; stories are asked first."""
        draft = Draft(variant.text, self.file.path)
        fits = [fix for fix, _ in ranked(draft, variant.target, variant.blocks)]
        new = [fix for fix in fits if fix.text not in seen]
        seen.update(fix.text for fix in new)
        new = new[: budget - self.tried]
        goal = Goal(stories, (), self._others(wanted))
        told = self._outcomes([fix.text for fix in new], goal, each=self._tried)
        self.tried += len(new)
        left = [fix for fix, outcome in zip(new, told, strict=True) if outcome.is_sound]
        self._tries.passed += len(left)
        yield from ((f, o) for f, o in zip(new, told, strict=True) if not o.is_sound)
        for at in range(0, len(left), AT_ONCE):
            some = left[at : at + AT_ONCE]
            known = [token for token in self._learnt if decode_token(token)[1] in wanted]
            texts = [fix.text for fix in some]
            outcomes = self._outcomes(texts, Goal((), wanted), known, self._examined)
            self._learnt += (o.token for o in outcomes if o.token and o.token not in self._learnt)
            yield from zip(some, outcomes, strict=True)

    def _others(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The guarantees that are broken besides, and not asked for yet."""
        return tuple(name for name in self._stories if name not in wanted)

    def _tried(self) -> None:
        self._tries.tried += 1
        self._tell()

    def _examined(self) -> None:
        self._tries.checked += 1
        self._tell()

    def _tell(self, doing: str = "", done: float | None = None) -> None:
        mended = f"{len(self._done)} of {len(self._stories)} mended"
        named = f" ({', '.join(self._done)})" if self._done else ""
        self.progress(f"{self._again}{mended}{named}; {doing or self._tries}", done)

    def _outcomes(
        self,
        texts: Sequence[str],
        goal: Goal,
        known: Sequence[str] = (),
        each: Callable[[], None] = lambda: None,
    ) -> list[Outcome]:
        new = [text for text in texts if (text, goal) not in self._known]
        asked = goal._replace(stories=(*goal.stories, *known))
        judge = partial(_judged, path=str(self.file.path), goal=asked, seed=self.card.seed)
        for text, outcome in zip(new, self._pool.map(judge, new), strict=True):
            self._known[text, goal] = outcome
            each()
        return [self._known[text, goal] for text in texts]

    def _checked(self, text: str, name: str | None = None) -> Card:
        """A text checked by everything, or by one guarantee."""
        doing = "all checks on the mended queue: "
        with open_lab(load_text(text, self.file.path), self.server) as lab:
            return check_queue(
                lab,
                select(name and [name]),
                seed=self.card.seed,
                profile=self.profile,
                jobs=self.jobs,
                progress=lambda what, done: self._tell(doing + what, done),
            )

    def _lost(self, card: Card) -> list[str]:
        """The guarantees that are not as they should be, once all of them were asked."""
        before = {one.id: one.verdict for one in self.card.guarantees}
        lost: list[Judgement] = []
        for one in card.guarantees:
            was = before.get(one.id)
            if one.id in self._done or was == "holds":
                fails = one.verdict not in {"holds", "accepted"}
            else:
                fails = one.verdict == "broken" != was
            # What was not asked before may have been broken all along.
            if fails and (was or self._checked(self.file.text, one.id).verdict != "broken"):
                lost.append(one)
                self._lost_since.extend(s.replay for s in one.stories if s.replay)
        return [one.id for one in lost]


# --- one candidate, in a process of its own -----------------------------------------------------


def _judged(
    text: str, *, path: str, goal: Goal, seed: int, server: Server | None = None
) -> Outcome:
    """Judge a candidate by the stories, by what is wanted, and by what held."""
    try:
        with open_lab(load_text(text, path), server or lent_server()) as lab:
            offer = calibrate(lab, replayed=bool(goal.stories))  # as a story's replay does
            told: list[str] = []
            blocks: frozenset[str] = frozenset()
            for token in goal.stories:
                if (acting := _told_again(lab, offer, token, seed)) is not None:
                    told.append(token)
                    blocks |= acting
            if told:
                name = decode_token(told[0])[1]
                return Outcome(tuple(told), name, "the story happens again", blocks)
            offer = calibrate(lab) if goal.stories else offer
            if goal.stories and (failure := _broken_besides(lab, offer, goal)) is not None:
                broken = failure.violation
                return Outcome((), broken.guarantee, broken.because, _acting(failure))
            if not goal.wanted:
                return Outcome()
            flaw = first_flaw(lab, select(goal.wanted), seed=seed, profile=goal.profile)
            if flaw is not None:
                again = replay(lab, flaw.replay) if flaw.replay else None
                failure = again.failure if again else None
                acted = _acting(failure) if failure else frozenset[str]()
                return Outcome((), flaw.id, flaw.reason, acted, flaw.replay or "")
    except QueueError as error:
        return Outcome(goal.stories, "", f"it does not work: {error}")
    return Outcome()


def _told_again(lab: Lab, offer: Offer, token: str, seed: int) -> frozenset[str] | None:
    """The blocks that tell a story again under any order; None where it is not told."""
    _, guarantee, _, data = decode_token(token)
    if "probe" in data:
        found = PROBES[guarantee].replay(lab, offer, data["probe"])
        return None if found is None else frozenset()
    conditions = Conditions(**data["under"])
    if conditions.killed and not lab.server.ours:
        return None
    program = Program.from_data(data["program"])
    runner = runner_under(lab, offer, conditions)
    failure = find(runner, declare(offer), program, data["broken"], budget=STORY, seed=seed)
    return None if failure is None else _acting(failure)


def _broken_besides(lab: Lab, offer: Offer, goal: Goal) -> Failure | None:
    """A breach of another guarantee, by the stories' programs or by a job's plain life.

    A job that no worker gets any more tells no story, and is no mend.
    """
    plain = (_life(Pieces(offer)), (), Conditions())
    tried = [plain, *(one for token in goal.stories for one in _programs(token))]
    for program, schedule, conditions in tried:
        run = runner_under(lab, offer, conditions).run(program, schedule)
        for one in breaches(run, declare(offer)):
            if one.guarantee in CATALOGUE and one.guarantee not in goal.broken and not one.doubts:
                return Failure(program, schedule, run, one, conditions)
    return None


def _programs(token: str) -> Iterator[tuple[Program, tuple[int, ...], Conditions]]:
    data = decode_token(token)[3]
    if "program" in data:
        for schedule in ((), tuple(data["schedule"])):
            yield Program.from_data(data["program"]), schedule, Conditions(**data["under"])


def _life(pieces: Pieces) -> Program:
    """Two jobs that are failed, lost in a crash and completed, as far as the queue has that."""
    lives = [script("w1", claim(), *(one for one in pieces.enders() if one.kind == "fail"))]
    if pieces.lease is not None:
        lives += [script("w2", claim()), script("w2", crash())]
    passes = (advance(past(pieces.lease or 0.0)), advance(DAY))
    later = [one for life in lives for one in (life, script("clock", *passes), *pieces.reaper())]
    return Program((JobSpec(),) * 2, in_turn(*later, script("w3", claim(), *pieces.ending())))


def _acting(failure: Failure) -> frozenset[str]:
    """The blocks that take part in a breach; of a wait, the one that waits and should pass by."""
    broken = failure.violation
    waits = broken.guarantee == "non-blocking"
    return frozenset(
        beat.step.block
        for beat in failure.run.trace
        if beat.step is not None and (not waits or beat.call == broken.call)
    )


# --- the diff -----------------------------------------------------------------------------------


def as_diff(before: QueueText, after: str, texts: Mapping[Path, str]) -> str:
    """A unified diff of the files that the changed lines stand in.

    `git apply` and `patch -p1` take it where the files' paths lead to them.

    Args:
        texts: Those of the files that a queue's text has been put together from.
    """
    changes: dict[Path, list[tuple[int, int, list[str]]]] = {}
    new = after.split("\n")
    for at, upto, begin, end in _differing(before.text.split("\n"), new):
        first = before.source_of(_row(at, upto))
        row = first.line - (upto > at or not at)
        changes.setdefault(first.path, []).append((row, row + upto - at, new[begin:end]))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for path, lines in changes.items()
        for line in _diff_of(path, texts[path], lines)
    )


def _diff_of(path: Path, text: str, changes: Iterable[tuple[int, int, list[str]]]) -> Iterator[str]:
    """A file's diff; its last change is made first, so that the numbers of lines stay right."""
    lines = text.split("\n")
    for at, upto, written in sorted(changes, reverse=True):
        lines[at:upto] = written
    old, new = (StringIO(one).readlines() for one in (text, "\n".join(lines)))
    name = os.path.relpath(path)
    return unified_diff(old, new, f"a/{name}", f"b/{name}")
