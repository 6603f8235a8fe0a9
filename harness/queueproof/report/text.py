"""A story as text: a line for each operation, or a column per actor where they meet."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from string import ascii_lowercase
from typing import assert_never

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.story import (
    Account,
    AllowedWait,
    Answered,
    Asked,
    Claimed,
    Enqueued,
    Event,
    Fact,
    Fault,
    Moment,
    Part,
    Passed,
    Sent,
    Story,
    Told,
    is_event,
    is_worker,
)
from queueproof.schedule.moments import spoken
from queueproof.schedule.programs import FAULTS, PayloadKind

COLUMN = 32  # characters; two workers and the margin fit into a terminal of 80
WIDTH = 106  # characters of a line, where there is no terminal: three workers
NARROWEST = 30  # characters; narrower, an actor's column has no room for a word
LONGEST = 12  # moments that may repeat together
OFTEN = 3  # times from which on what repeats is told once
FEW = 3  # names or answers that are listed, and not only the first and the last
TRIED = (
    "This change was tried: the break is gone."
    " `queueproof mend` also checks that nothing else breaks."
)
"""The end of a fix that was tried."""
_SNAPSHOT = "(has its snapshot, has read nothing)"
# By the kind of an event; of a stop, and of a crash that cuts an operation short, by its `about`.
_EVENTS: Mapping[str, str] = {
    "connection": "on connection {0}",
    "commit": "COMMIT",
    "uncommitted": "(not committed yet)",
    "waits": "waits for {0}",
    "statement": _SNAPSHOT,
    "query": _SNAPSHOT,
    "row": "(has locked a row, and not the next)",
    "goes on": "goes on",
    "rewrite": "the tables are rewritten, their rows in another physical order",
    "crash": "crashes",
    "committed": "crashes after [{1}] was committed, before anything else was sent",
    "undone": "crashes before [{1}] was committed: it has no effect",
}
_ANSWERS: Mapping[str, str] = {
    "answer": "{}",
    "error": "ERROR {}",
    "lost": "no answer: its connection is cut",
}
_PAYLOADS: Mapping[PayloadKind, str] = {
    "same": "a payload that others have as well",
    "large": "a payload of 10,000 characters, with keys like attempts",
}
_ROLES: Mapping[str, str] = {
    "drainer": "at the end it recovers, claims and completes all that is left, and lets time pass,"
    " to see what becomes of each job",
    "promoter": "makes due jobs claimable, as the queue's own scheduler does",
    "nemesis": "brings the faults",
    "janitor": "removes finished jobs, as the queue's own cleanup does",
    "late": "a worker, which asks last",
}
NO_LETTER = -1  # of a statement that is short enough to stand in its step
_CONTROL = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|END)?\s*", re.IGNORECASE)
_BEGIN = re.compile(r"\s*(BEGIN|START)\b(?!.*ISOLATION)", re.IGNORECASE | re.DOTALL)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


class Legend:
    """The statements of a run's stories: each has one letter, and is shown once.

    BEGIN, COMMIT and ROLLBACK say all there is to say of them, and have none. An empty statement,
    by which a driver asks whether its connection is alive, is left out.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def lettered(self, story: Story) -> tuple[Story, list[tuple[int, str]]]:
        """A story with the letters of the run, and those of its statements that are new."""
        known = len(self._numbers)
        numbers = [
            NO_LETTER
            if _CONTROL.fullmatch(sql)
            else self._numbers.setdefault(sql, len(self._numbers))
            for sql in story.statements
        ]

        def one(fact: Fact) -> Fact:
            match fact:
                case Sent() | Event(about="committed" | "undone"):
                    return replace(fact, statement=numbers[fact.statement])
            return fact

        def shown(fact: Fact) -> bool:
            return not isinstance(fact, Sent) or bool(story.statements[fact.statement].strip())

        told = ((turn, tuple(map(one, filter(shown, turn.facts)))) for turn in story.turns)
        turns = tuple(replace(turn, facts=facts) for turn, facts in told if facts)
        before = tuple(
            replace(job, statements=tuple(numbers[n] for n in job.statements))
            for job in story.before
        )
        new = [(number, sql) for sql, number in self._numbers.items() if number >= known]
        return replace(story, turns=turns, before=before), new


def to_text(
    told: Told, width: int = WIDTH, legend: Legend | None = None, *, sql: bool = True
) -> str:
    """A story, as it is read on a terminal.

    A line has so many characters, `NARROWEST` at least; SQL and plans keep theirs. The legend is
    the run's, where the text stands among others. Without `sql` the caller shows that.
    """
    width = max(width, NARROWEST)
    guarantee, reason = CATALOGUE[told.guarantee], why(told)
    return "\n\n".join(
        [
            filled(f"{guarantee.id}: {guarantee.sentence}", width),
            *_told(told, width, legend or Legend(), sql=sql),
            filled(f"Why it matters: {reason[0].upper()}{reason[1:]}.", width),
        ]
    )


def steps_of(told: Told, width: int = WIDTH) -> str:
    """A story without its SQL, and without what is known of its guarantee."""
    return "\n\n".join(_told(told, max(width, NARROWEST), Legend(), sql=False))


def _told(told: Told, width: int, legend: Legend, *, sql: bool) -> list[str]:
    if isinstance(told, Story):
        parts = _run(*legend.lettered(told), width, sql=sql)
    else:
        parts = (_part(part, width) for part in told.parts)
    return [part for part in parts if part]


def filled(prose: str, width: int) -> str:
    """Prose in lines that end at words; each line of it stays one."""
    fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(fill, prose.split("\n")))


def why(told: Told) -> str:
    """The harm that a breach does to a user, as far as the story tells which."""
    guarantee = CATALOGUE[told.guarantee]
    if isinstance(told, Account):
        return guarantee.why
    alone = f"{told.cause} alone" if told.alone else told.cause
    return guarantee.whys.get(alone, guarantee.whys.get(told.cause, guarantee.why))


def with_code(remedy: str) -> list[str]:
    """A remedy in pieces: prose, the lines of a change, prose, and so on."""
    return re.split(r"\n\n```diff\n(.*?)\n```\n\n", remedy, flags=re.DOTALL)


def remedy(name: str, told: Told | None, offers: Collection[str] | None = None) -> str:
    """The way to keep a guarantee, as far as its story and the operations tell what breaks it."""
    guarantee = CATALOGUE[name]
    safe = guarantee.safe
    if guarantee.safe_alone and offers is not None and "recover" not in offers:
        return guarantee.safe_alone
    if guarantee.safe_by_itself and isinstance(told, Story) and len(told.actors) == 1:
        return guarantee.safe_by_itself
    if guarantee.advised and isinstance(told, Account):
        return told.parts[-1].text
    undone = _undone(told) if isinstance(told, Story) and guarantee.undone else None
    if undone is None:
        return safe
    return f"Here {undone[0]} put back a job that had ended. {safe}"


def counted(number: int, what: str) -> str:
    """So many of what is named in the plural; of one, the first noun in the singular."""
    named = re.sub(r"s\b", "", what, count=1) if number == 1 else what
    return f"{number:,} {named}"


def _run(story: Story, new: Sequence[tuple[int, str]], width: int, *, sql: bool) -> Iterator[str]:
    told = (f"Broken: {story.broken}.", story.cast, before(story), story.conditions.told())
    yield from (filled(prose, width) for prose in (*told, "\n".join(roles(story))))
    columns = _columns(story)
    room = len(columns) > 1 and 4 + len(columns) * (COLUMN + 2) - 2 <= width
    yield _timeline(story, columns, width) if room else _listing(story, width)
    yield filled("\n".join(remarks(story)), width)
    if sql:
        yield from _legend(story, new)


def _legend(story: Story, new: Sequence[tuple[int, str]]) -> Iterator[str]:
    shown = {NO_LETTER, *(number for number, _ in new)}
    sent = (fact for turn in story.turns for fact in turn.facts if isinstance(fact, Sent))
    if above := sorted({fact.statement for fact in sent} - shown):
        yield f"{', '.join(f'[{letter(number)}]' for number in above)}: as above"
    for number, sql in new:
        yield f"[{letter(number)}]\n{textwrap.indent(sql, '    ')}"
    for sql in story.functions:
        yield f"What is called there:\n{textwrap.indent(sql, '    ')}"


def _part(part: Part, width: int) -> str:
    if part.kind == "prose":
        return filled(part.text, width)
    return (f"{part.head}\n" if part.head else "") + textwrap.indent(part.text, "    ")


def before(story: Story) -> str:
    """The jobs that a story begins with, those that are alike together, and what a lease is."""
    told = []
    for facts, jobs in itertools.groupby(story.before, _facts):
        names = [job.job for job in jobs]
        many = len(names) > 1
        what = f"jobs {_several(names)} were" if many else f"job {names[0]} was"
        told.append(f"{what} enqueued{facts}")
    sentences = [f"Before: {'; '.join(told)}."] if told else []
    if story.lease and any(isinstance(fact, Passed) for turn in story.turns for fact in turn.facts):
        sentences.append(f"A lease lasts {spoken(story.lease)}.")
    return " ".join(sentences)


def _facts(job: Enqueued) -> str:
    known = {
        f"queue {job.queue!r}": job.queue,
        f"priority {job.priority}": job.priority,
        f"due in {spoken(job.delay)}": job.delay,
        f"max_attempts {job.bound}": job.bound is not None,
        _PAYLOADS.get(job.payload, ""): job.payload,
        "in one transaction": job.joined,
    }
    facts = ", ".join(told for told, holds in known.items() if holds)
    sent = " ".join(f" [{letter(number)}]" for number in job.statements)
    return sent + (f" ({facts})" if facts else "")


def roles(story: Story) -> Iterator[str]:
    """The role of each actor that is no worker."""
    for actor in story.actors:
        if actor in _ROLES:
            yield f"{actor}: {_ROLES[actor]}."
    workers = [actor for actor in story.actors if is_worker(actor)]
    if workers and int(workers[-1][1:]) > len(workers) + FEW:
        yield f"{workers[-1]}: a worker; those whose numbers are missing were not needed."


def remarks(story: Story) -> Iterator[str]:
    """Remarks on what is not plain: waits that are no breach, why a worker does what it does."""
    yield from map(_allowed, story.allowed)
    if story.conditions.isolation and any(map(_BEGIN.match, story.statements)):
        yield (
            f"At {story.conditions.isolation.upper()} every statement of a transaction sees what"
            " its first one saw, and nothing that others have committed since."
        )
    if story.guarantee == "order" and "of priority" in story.broken:
        yield (
            "The greatest priority goes first. If small numbers go first in your queue, write"
            " `- :priority` in enqueue."
        )
    if CATALOGUE[story.guarantee].undone and _undone(story) == ("fail", True):
        yield (
            "Why a worker fails what it has completed: complete succeeded, its answer was lost, and"
            " the error path calls fail."
        )


def _undone(story: Story) -> tuple[str, bool] | None:
    """The last operation on a completed job, and whether the worker that completed it did that."""
    asked: dict[str, Asked] = {}
    completed: dict[str, str] = {}  # by job, its worker
    found = None
    for turn in story.turns:
        for fact in turn.facts:
            if isinstance(fact, Asked):
                asked[turn.actor] = fact
            elif isinstance(fact, Answered) and (of := asked.pop(turn.actor, None)):
                if fact.kind != "answer" or fact.text in {"nothing", "rejected"}:
                    continue
                if of.operation in {"complete", "complete_many"}:
                    completed |= dict.fromkeys(of.jobs, turn.actor)
                elif of.operation in {"fail", "heartbeat"} and completed.keys() & {*of.jobs}:
                    found = of.operation, {completed.get(job) for job in of.jobs} == {turn.actor}
                elif of.operation == "recover" and completed:
                    found = of.operation, False
    return found


def _allowed(wait: AllowedWait) -> str:
    if wait.rival:
        both = f"{wait.actor}'s claim waits for {wait.rival}'s because both chose the same job"
        return f"{both}. The wait is normal. The break is that both got the job."
    return f"{wait.actor}'s claim may wait here: with an old snapshot even SKIP LOCKED does."


def worded(fact: Fact) -> str:
    """A fact in a few words."""
    match fact:
        case Asked():
            return _asked(fact)
        case Sent():
            return f"{mark(fact.statement)}{fact.beginning}"
        case Answered():
            return _ANSWERS[fact.kind].format(fact.text)
        case Passed():
            return f"the clock moves on by {_jump(fact)}"
        case Event(kind=kind, about=about):
            told = about if kind == "stops" or (kind == "crash" and about) else kind
            return _EVENTS[told].format(about, letter(fact.statement))
        case Fault():
            return FAULTS[fact.kind].told.format(fact.about)
        case _:
            assert_never(fact)


def bound(sent: Sent) -> str:
    """The parameters of a statement, and what it read; nothing where it has neither."""
    shown = ", ".join(f"${number} = {value}" for number, value in sent.bound)
    return " ".join([f"({shown})"] * bool(shown) + [f"(returned {sent.read})"] * bool(sent.read))


def _asked(asked: Asked) -> str:
    match asked.operation:
        case "claim":
            return f"claim{f' from {asked.queue!r}' if asked.queue else ''}{_at_most(asked.limit)}"
        case "heartbeat" if not asked.jobs:
            return "heartbeat, without a job"
        case "complete" | "fail" | "heartbeat" | "complete_many":
            claims = asked.claims or (Claimed(0),) * len(asked.jobs)
            named = zip(asked.jobs, claims, strict=True)
            jobs = ", ".join(f"{job}{_claimed(claim)}" for job, claim in named)
            if asked.limit:
                return f"complete job {jobs} and claim{_at_most(asked.limit)}"
            return f"{asked.operation} job {jobs}"
        case "enqueue":
            where = f" into {asked.queue!r}" if asked.queue else ""
            facts = [f"due in {spoken(asked.delay)}"] if asked.delay else []
            facts += [_PAYLOADS[asked.payload]] if asked.payload else []
            return ", ".join([f"enqueue{where}", *facts])
        case _:
            return asked.operation


def _at_most(limit: int) -> str:
    return f", at most {limit}" if limit > 1 else ""


def _claimed(claim: Claimed) -> str:
    if not (n := claim.number):
        return ""
    which = _ORDINALS[n - 1] if n <= len(_ORDINALS) else ordinal(n)
    known = f", {claim.known}" if claim.known else ""
    return f" (its {which} claim{known})"


def ordinal(number: int) -> str:
    """A place in a row: 6th, 21st, 112th."""
    ending = "th" if 10 < number % 100 < 14 else _ENDINGS.get(number % 10, "th")  # noqa: PLR2004 - 11th to 13th
    return f"{number}{ending}"


def mark(number: int) -> str:
    """A statement's letter as it stands before its first words; nothing where it has none."""
    return "" if number == NO_LETTER else f"[{letter(number)}] "


def letter(number: int) -> str:
    """The name of a statement: a to z, then aa, ab, ..."""
    prefix = ascii_lowercase[number // 26 - 1] if number >= len(ascii_lowercase) else ""
    return prefix + ascii_lowercase[number % 26]


def _several(names: Sequence[str]) -> str:
    """Names, of many the first and the last."""
    if len(names) <= FEW:
        return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    return f"{names[0]} to {names[-1]}"


@dataclass(frozen=True, slots=True)
class Passage:
    """Moments that come several times, one after the other; most come once."""

    first: int  # the number of the first moment, from 1
    times: int
    moments: tuple[Moment, ...]  # all of them, in their order

    @property
    def number(self) -> str:
        """The number of its moment, or of the first and the last."""
        last = self.first + len(self.moments) - 1
        return str(self.first) if self.first == last else f"{self.first}-{last}"

    def columns(self) -> list[tuple[Moment, ...]]:
        """Each moment of a passage, as it is each time."""
        size = len(self.moments) // self.times
        return [self.moments[n::size] for n in range(size)]


def passages(story: Story) -> Iterator[Passage]:
    """The moments of a story; those in a row that differ only in who acts are one passage."""
    moments = story.moments
    kinds = [_kind(moment) for moment in moments[:-1]]  # the last moment is what breaks
    place = 0
    while place < len(moments):
        size, times = 1, 1
        for length in range(1, LONGEST + 1):
            often = _repeats(kinds, place, length)
            names = [moment.actor for moment in moments[place : place + often * length : length]]
            if len({*names}) not in {1, often}:
                continue  # in turns, and who does what would be lost
            # What comes once more in part is told by itself.
            if often >= OFTEN and often * length > size * times:
                size, times = length, often
        end = place + size * times
        yield Passage(place + 1, times, tuple(moments[place:end]))
        place = end


def _repeats(kinds: Sequence[object], place: int, length: int) -> int:
    """The number of times that what stands at a place comes in a row."""
    pattern = kinds[place : place + length]
    if None in pattern:
        return 1
    times = 1
    while (end := place + (times + 1) * length) <= len(kinds):
        if kinds[end - length : end] != pattern:
            break
        times += 1
    return times


def _kind(moment: Moment) -> object:
    """The kind that moments told as one share; None for a moment that is told by itself."""
    if not (moment.begins and moment.ends) or moment.raced:
        return None
    return is_worker(moment.actor) or moment.actor, tuple(map(_plain, moment.facts))


def _plain(fact: Fact) -> object:
    match fact:
        case Answered(kind="answer"):
            return replace(fact, text="")
        case Sent():
            return replace(fact, bound=(), read="")
        case Passed():
            return Passed
        case _:
            return fact


def _listing(story: Story, width: int) -> str:
    found = list(passages(story))
    margin = max((len(one.number) for one in found), default=0)
    lines: list[str] = []
    for passage in found:
        wrapped = [
            "  " * (line > 0) + "    " * (n > 0) + piece
            for line, told in enumerate(lines_of(passage))
            for n, piece in enumerate(textwrap.wrap(told, width - margin - 6))
        ]
        lines += _numbered(passage.number, margin, wrapped)
    return "\n".join(lines)


def _numbered(number: object, margin: int, lines: Sequence[str]) -> Iterator[str]:
    """Lines, the first of them with a number before it."""
    for n, line in enumerate(lines):
        yield f"{number if n == 0 else '':>{margin}}  {line}".rstrip()


def lines_of(passage: Passage) -> list[str]:
    """A passage as lines: who, and what happened; what repeats below how often it does."""
    if passage.times == 1:
        return [_line(passage.moments[0])]
    columns = passage.columns()
    told = [_line(_merged(column)) if column[0].actor else _jumps(column) for column in columns]
    if len(told) == 1:
        names = list(dict.fromkeys(moment.actor for moment in columns[0]))
        what = told[0].partition(": ")[2]
        if len(names) == passage.times:
            return [f"{_several(names)}, one after the other: {what}"]
        return [f"{_several(names)}, {passage.times} times: {what}"]
    names = list(dict.fromkeys(m.actor for m in passage.moments if is_worker(m.actor)))
    by = f", by {_several(names)}, one after the other" if names[1:] else ""
    return [f"{passage.times} times{by}:", *told]


def _jumps(column: Sequence[Moment]) -> str:
    facts = [fact for moment in column for fact in moment.facts if isinstance(fact, Passed)]
    return f"the clock moves on by {', then '.join(dict.fromkeys(map(_jump, facts)))}"


def _jump(fact: Passed) -> str:
    return spoken(fact.seconds) if fact.seconds else "about a second"


def _merged(column: Sequence[Moment]) -> Moment:
    """Moments as one: with the name that all have, and all the answers."""
    actor = "the worker" if len({moment.actor for moment in column}) > 1 else column[0].actor
    facts = tuple(map(_merged_facts, zip(*(m.facts for m in column), strict=True)))
    return replace(column[0], actor=actor, facts=facts)


def _merged_facts(facts: Sequence[Fact]) -> Fact:
    match facts[0]:
        case Answered() as first:
            texts = list(dict.fromkeys(fact.text for fact in facts if isinstance(fact, Answered)))
            shown = texts if len(texts) <= FEW else [texts[0], "…", texts[-1]]
            return replace(first, text="; ".join(shown))
        case Sent() as first:
            alike = all(fact == first for fact in facts)
            return first if alike else replace(first, bound=(), read="")
        case fact:
            return fact


def _line(moment: Moment) -> str:
    """A moment as one line; a statement is told by its letter."""
    if not moment.actor:
        return "; ".join(map(worded, moment.facts))
    often, told = _folded([_joined(facts) for facts in _operations(moment.facts)])
    on = not moment.begins and not is_event(moment.facts[0], "goes on", "crash")
    return f"{moment.actor}{', going on' if on else ''}{often}: {told}"


def _operations(facts: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    """The facts of each operation of a moment; only the drainer's have several."""
    starts = [n for n, fact in enumerate(facts) if n and isinstance(fact, Asked)]
    return (facts[n:end] for n, end in itertools.pairwise([0, *starts, len(facts)]))


def _folded(told: Sequence[str]) -> tuple[str, str]:
    """Operations as one line: how often it all was done, and what; what repeats is told once."""
    place, pieces = 0, []
    while place < len(told):
        found = ((_repeats(told, place, size), size) for size in range(1, len(told) - place + 1))
        times, size = max(found, key=lambda one: (one[0] > 1) * one[0] * one[1])
        if times == 1:
            pieces.append(told[place])
            place += 1
            continue
        often = "twice" if times == 2 else f"{times} times"  # noqa: PLR2004 - has a word
        what = _folded(told[place : place + size])[1]
        if times * size == len(told):
            return f", {often}", what
        place += times * size
        pieces.append(f"{often}: {what}" if place == len(told) else f"{often} ({what})")
    return "", "; ".join(pieces)


def _joined(facts: Iterable[Fact]) -> str:
    told = ""
    for fact in facts:
        match fact:
            case Sent():
                what = mark(fact.statement) or f"{fact.beginning} "
                told += f" {what}{bound(fact)}".rstrip()
            case Answered():
                told += f" => {worded(fact)}"
            case Event(kind="stops" | "uncommitted"):
                told += f" {worded(fact)}"
            case _:
                told += f"; {worded(fact)}" if told else worded(fact)
    return told.strip()


def _columns(story: Story) -> list[str]:
    """The actors with a column: workers, and those whose operations others get into; or nobody."""
    moments = story.moments
    if not any(moment.raced for moment in moments):
        return []
    open_ones = {moment.actor for moment in moments if not moment.ends or not moment.begins}
    return [actor for actor in story.actors if is_worker(actor) or actor in open_ones]


def _timeline(story: Story, columns: Sequence[str], width: int) -> str:
    lines = [
        "    " + "".join(actor.ljust(COLUMN + 2) for actor in columns).rstrip(),
        "    " + "".join(("-" * COLUMN).ljust(COLUMN + 2) for _ in columns).rstrip(),
    ]
    for passage in passages(story):
        actors = {moment.actor for moment in passage.moments}
        if passage.times == 1 and actors <= {*columns}:
            moment = passage.moments[0]
            margin = " " * ((COLUMN + 2) * columns.index(moment.actor))
            wrapped = [
                margin + piece
                for fact in moment.facts
                for line in _lines(fact)
                for piece in textwrap.wrap(line, COLUMN, subsequent_indent="  ") or [""]
            ]
        else:
            wrapped = [
                ("   " if n or m else "-- ") + "  " * (m > 0) + piece
                for n, line in enumerate(lines_of(passage))
                for m, piece in enumerate(textwrap.wrap(line, width - 9))
            ]
        lines += _numbered(passage.first, 2, wrapped)
    return "\n".join(lines)


def _lines(fact: Fact) -> Sequence[str]:
    match fact:
        case Answered():
            return [f"=> {worded(fact)}"]
        case Sent() if params := bound(fact):
            return [worded(fact), params]
        case _:
            return [worded(fact)]
