"""The card for the person at the keyboard: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queueproof.errors import Aside
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import Card, Judgement, Mended, MutantJudgement, worst_first
from queueproof.report.text import TRIED, WIDTH, Legend, counted, filled, remedy, to_text, with_code

STYLES = {
    "holds": "green",
    "accepted": "yellow",
    "broken": "bold red",
    "inconclusive": "magenta",
    "not-offered": "dim",
}
FIRST = "Fix what is broken first, then check again."
"""The advice on a verdict that follows from a break."""
_FIRST_SENTENCE = re.compile(r"(?<!\.)\. (?=[A-Z])")  # the safe form of some is `UPDATE ... WHERE`
_NAMED = 5  # guarantees of one verdict; more are counted
_NOT_KILLED = {"equivalent": "equivalent", "unjudged": "not judged", "survived": "survived"}


class Output(Console):
    """A console that prints text as it is."""

    def __init__(self, file: IO[str] | None = None) -> None:
        super().__init__(file=file, markup=False, highlight=False, emoji=False)

    def say(self, text: str | Text = "") -> None:
        """Print a line that only the terminal itself may break, so that it can be copied."""
        self.print(text, soft_wrap=True)

    def prose(self, text: str | Text) -> None:
        """Print prose: in lines that end at words on a terminal, in one elsewhere."""
        if self.is_terminal:
            self.print(text)
        else:
            self.say(text)

    def markdown(self, text: str, names: Collection[str] = ()) -> None:
        """Print Markdown: drawn on a terminal, with `names` as of `Page`; as it is elsewhere."""
        if self.is_terminal:
            from queueproof.report.pages import Page  # noqa: PLC0415 - a card has none, and it takes 30 ms

            self.print(Page(text, names))
        else:
            self.say(text.rstrip())


def print_card(
    out: Output, card: Card, aside: Aside = nullcontext, *, stories: bool = True
) -> None:
    """Print the verdicts, and the stories of what broke; `aside` tells why one is not drawn."""
    told = [one for one in card.guarantees if not one.left_out]
    if out.is_terminal:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading, is_name in (("guarantee", True), ("verdict", True), ("what was seen", False)):
            table.add_column(heading, overflow="fold", no_wrap=is_name)
        for one in sorted(told, key=worst_first):
            faint = "" if one.verdict in {"broken", "inconclusive"} else "dim"
            verdict = Text(one.verdict.replace("-", " "), STYLES[one.verdict])
            table.add_row(one.id, verdict, Text(one.reason, faint))
        out.print(table)
    else:
        for judgement in told:
            out.say(f"{judgement.id}: {judgement.verdict} ({judgement.reason})")
    if left_out := not_judged(card):
        out.prose(left_out)
    if effort := tried(card):
        out.prose(effort)
    legend = Legend()
    for name, (judgement, story) in card.breaks.items() if stories else ():
        out.say()
        out.rule(name, style="red") if out.is_terminal else out.say(f"--- {name} ---")
        text = story.story
        with aside(f"the drawing of a story of {judgement.id}"):
            if story.told:
                text = to_text(story.told, out.width if out.is_terminal else WIDTH, legend)
        print_story(out, text.removeprefix(f"{judgement.id}: ") if out.is_terminal else text)
    out.say()


def print_remedies(out: Output, card: Card) -> None:
    """Print how each broken guarantee of a card is kept."""
    broken = {judgement.id: judgement for judgement, _ in card.breaks.values()}
    fixes: dict[str, list[str]] = {}  # one change may end several breaks
    for name, judgement in broken.items():
        fixes.setdefault(judgement.remedy or remedy(name, judgement.told), []).append(name)
    for told, names in fixes.items():
        what = " and ".join(names) if len(broken) > 1 else "it"
        print_remedy(out, told.replace(TRIED, "") if len(fixes) > 1 else told, what)
    tried = [name for told, names in fixes.items() if TRIED in told for name in names]
    if len(fixes) > 1 and tried:
        which = f"The change for {', '.join(tried)} was tried: the"
        if len(tried) == len(broken):
            which = "Each change was tried by itself: its"
        elif len(tried) > 1:
            which = f"The changes for {', '.join(tried)} were tried, one by one: each"
        out.prose(TRIED.replace("This change was tried: the", which))
        out.say()


def print_remedy(out: Output, told: str, what: str = "it") -> None:
    """Print how what broke is fixed; in colours what a change takes out and what it writes."""
    for n, piece in enumerate(with_code(f"How to fix {what}: {told}")):
        if n % 2:
            change = Text(f"\n{piece}")
            change.highlight_regex(r"(?m)^-.*", "red")
            change.highlight_regex(r"(?m)^\+.*", "green")
            out.say(change)
        elif words := piece.strip():
            out.prose(f"\n{words}" if n else words)
    out.say()


def print_next(
    out: Output, guarantee: str, mend: str, *, fixed: bool = False, files: Iterable[str | Path] = ()
) -> None:
    """Print the commands that go on from a break.

    `mend` looks for a change that mends the queue, and is empty where none does. `fixed`: a change
    was tried for each break, so that a diff will come of it; the change is one of `files`.
    """
    if mend:
        what = "Write a checked fix:" if fixed else "Search for a fix:"
        out.say(f"{what:<22}{mend}{' > fix.diff' * fixed}")
        # Git refuses a diff of a file outside the folder that it is called in.
        if fixed and not any(os.path.relpath(file).startswith("..") for file in files):
            out.say(f"{'Apply it:':<22}git apply fix.diff")
    out.say(f"{'Explain a guarantee:':<22}queueproof explain {guarantee}")


def print_breaks(
    out: Output, card: Card, replay: str, *, named: bool, mend: str = "", fix: bool = True
) -> None:
    """Print what broke in a few lines, and what can be done about it.

    `replay` is the command that replays a story, up to its name if it is `named`, else its token;
    `mend` as for `print_next`. With `fix`, how to fix each has been told; it is repeated in a line
    where other breaks stand in between.
    """
    breaks = card.breaks
    repeated = fix and len(breaks) > 1
    for name, (judgement, story) in breaks.items():
        where = f"{story.place.file}:{story.place.line}" if story.place else card.queue
        if not out.is_terminal:
            out.say(f"{where}: {name}: {story.reason}")
            continue
        safe = judgement.remedy or remedy(judgement.id, judgement.told)
        first = _FIRST_SENTENCE.split(with_code(safe)[0])[0]
        out.say(Text.assemble((name, STYLES["broken"]), f"  {where.rpartition('/')[2]}"))
        _indented(out, story.reason, *[f"Fix: {first}"] * repeated)
    for judgement in card.guarantees if breaks and out.is_terminal else ():
        if judgement.explained:
            out.say(Text.assemble((judgement.id, STYLES["inconclusive"]), "  inconclusive"))
            _indented(out, judgement.reason, FIRST)
    if breaks:
        out.say()
    for what, stories in (("Replay a break:", breaks), ("See what is accepted:", card.accepted)):
        again = {name: story.replay for name, (_, story) in stories.items() if story.replay}
        others = ", ".join(islice(again, 1, None)) if named and stories is card.accepted else ""
        for name, token in islice(again.items(), 1 if named else None):
            more = f"  (or {others})" if others else ""
            out.say(f"{what:<22}{replay} {name if named else token}{more}")
    for judgement, _ in islice(breaks.values(), 1):
        fixed = all(TRIED in (one.remedy or "") for one, _ in breaks.values())
        files = [one.place.file if one.place else card.queue for _, one in breaks.values()]
        print_next(out, judgement.id, mend, fixed=fixed, files=files)
    if breaks or card.accepted:
        out.say()


def _indented(out: Output, *lines: str) -> None:
    """Print prose below a head, in lines that end at words."""
    for line in lines:
        out.say(indent(filled(line.replace("\n", " "), out.width - 2), "  "))


def print_story(out: Output, story: str) -> None:
    """Print a story, what its guarantee says as its title."""
    head, gap, rest = story.partition("\n\n")
    out.prose(Text(head, style="bold"))
    out.say(gap[1:] + rest)


def not_judged(card: Card) -> str:
    """The sentence on guarantees that were left out; empty where none was."""
    many = sum(one.left_out for one in card.guarantees)
    others = counted(many, "other guarantees")
    told = f"Not judged: the {others}, because --fail-fast ended the check at a break."
    return told if many else ""


def tried(card: Card) -> str:
    """A line with the evidence that all guarantees of a card share; empty where there is none."""
    told = ", ".join(counted(n, what) for what, n in sorted(card.shared.items()))
    return f"Tried, unlike ones first: {told}." if told else ""


def summary(judgements: Iterable[Judgement]) -> str:
    """The guarantees by verdict, worst first; of the usual verdicts, only their number."""
    found: dict[str, list[str]] = {}
    for judgement in judgements:
        verdict = "not judged" if judgement.left_out else judgement.verdict
        found.setdefault(verdict, []).append(judgement.id)
    named = []
    for verdict in ("broken", "inconclusive", "accepted"):
        if names := found.get(verdict):
            many = verdict != "broken" and len(names) > _NAMED
            named.append(f"{len(names) if many else ', '.join(names)} {verdict}")
    words = {"holds": "hold", "not judged": "not judged", "not-offered": "not offered"}
    counts = [(len(found.get(verdict, ())), word) for verdict, word in words.items()]
    told = [f"{n} {'holds' if (n, word) == (1, 'hold') else word}" for n, word in counts if n]
    return "; ".join([*named, *told])


def mutants_summary(mutants: Sequence[MutantJudgement]) -> str:
    """The number of mutants that met each end."""
    found = Counter(mutant.verdict for mutant in mutants)
    ends = [f"{found[verdict]} {verdict}" for verdict in ("killed", "equivalent", "survived")]
    if found["unjudged"]:  # then none can be said to have survived
        ends[-1] = f"{found['unjudged']} not judged by what was asked"
    return f"{counted(len(mutants), 'mutants')}: {', '.join(ends)}"


def print_mutants(out: Output, card: Card) -> None:
    """Print what became of the defects that were planted; each that went unseen with its lines."""
    mutants = card.mutants or ()
    for verdict, told in _NOT_KILLED.items():
        group = [mutant for mutant in mutants if mutant.verdict == verdict]
        if not group:
            continue
        reason = "the page and the JSON say why" if verdict == "equivalent" else group[0].reason
        out.prose(Text(f"{len(group)} {told} ({reason})", style="bold"))
        if verdict == "unjudged":
            continue
        for mutant in group:
            out.say(f"  {mutant.name}")
            for line in mutant.change.splitlines() if verdict == "survived" else ():
                out.say(f"    {line}")
    for sentence in card.not_mutated:
        out.prose(sentence)
    out.prose(mutants_summary(mutants))
    out.say()


def print_mended(out: Output, mended: Mended, profile: str, broken: Card) -> None:
    """Print the change that mends a queue with what it was verified by, and what is left.

    `broken` is the queue's card as it is.
    """
    if mended.diff:
        lines = counted(mended.lines, "lines")
        tried = f"Tried {counted(mended.tried, 'candidates')}"
        tried += "" if mended.card else ", until the search was interrupted"
        told = f"Mended: {', '.join(mended.mended)}. {lines} changed. {tried}; this is the best:"
        out.prose(Text(told, style="bold"))
        for change in mended.what:
            out.prose(f"  {change}")
        out.say()
        out.say(mended.diff)
        for sentence in _verified(mended, profile):
            out.prose(sentence)
        out.say("The diff is for `git apply` or `patch -p1`.")
    safe = {one.id: one.remedy for one in broken.guarantees}
    for name, reason in mended.left.items():
        out.prose(Text(f"Not mended: {name}: {reason}", style="bold"))
        _indented(out, f"In general: {safe.get(name) or CATALOGUE[name].safe}")
    out.say()


def _verified(mended: Mended, profile: str) -> Iterator[str]:
    """By what the mended queue was checked."""
    if mended.card is None:
        names = ", ".join(mended.mended)
        yield (
            f"It was checked for {names} alone: the stories that broke them are told no more, and a"
            " short look by their own programs found nothing. Whether it breaks another guarantee"
            " was not seen to its end: `queueproof check` on the mended file says so."
        )
        return
    whole = summary(mended.card.guarantees)
    yield f"All checks ran on the mended queue, profile {profile}: {whole}."
    if effort := tried(mended.card):
        yield effort
    if profile == "quick":
        yield "This was the quick profile: `queueproof check` without --profile checks more."
    if anyway := [one.id for one in mended.card.guarantees if one.verdict == "broken"]:
        yield f"Still broken: {', '.join(anyway)}."


def print_whole(
    out: Output, card: Card, seconds: float, note: str = "", fixing: float = 0.0
) -> None:
    """Print the verdict of the whole: in one line, or in two where a terminal has no room for it.

    `note` is what else has come of it; `fixing` of the seconds went into the search for fixes.
    """
    found = (card.word, STYLES[card.word])
    unasked = len(CATALOGUE) - len(card.guarantees)
    spent = f"{f'{unasked} not asked; ' if unasked else ''}{seconds - fixing:.0f} s"
    if fixing >= 1:
        spent += f", and {fixing:.0f} s to look for a fix"
    told = Text.assemble(found, f": {card.queue} ({summary(card.guarantees)}; {spent})")
    if out.is_terminal and len(told) > out.width:
        usual = {"holds", "not-offered"}
        named = summary(one for one in card.guarantees if one.verdict not in usual)
        counts = summary(one for one in card.guarantees if one.verdict in usual)
        rest = "; ".join(filter(None, [named, counts, spent]))
        told = Text.assemble(found, f": {card.queue}\n{rest}")
    if note:
        told.append(f". {note}")
    out.print(told, soft_wrap=not out.is_terminal)
