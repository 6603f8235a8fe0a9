"""A remedy in the words of the queue that it is for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.resources import files

from sqlglot import exp

from queueproof.advice.maker import Jobs
from queueproof.advice.reading import Draft
from queueproof.advice.search import Advice, source
from queueproof.errors import Aside, QueueproofError, Source
from queueproof.queues.model import Queue
from queueproof.report.card import Card, Judgement, Place
from queueproof.report.story import Told
from queueproof.report.text import remedy

_CAUSES = tomllib.loads(files(__package__).joinpath("causes.toml").read_text("utf-8"))["cause"]
"""Remedies for what stands in a queue's SQL, where no safe form was seen to mend it."""
_END = re.compile(r"until|expire|expiry|deadline|\bvt\b")
_DUE = re.compile(r"(?<=<= )now\(\)|clock_timestamp\(\) \+ (delay|least\(.*?, 16\)\))")
_QUOTED = ("queued", "completed", "failed")  # states that remedies name alone
_NUMBER = r"(big|small)?int(eger|[248])?|numeric|decimal|real|float[48]?|double precision"


def with_remedies(
    card: Card, queue: Queue, aside: Aside = nullcontext, advice: Mapping[str, Advice] | None = None
) -> Card:
    """A card that says how each broken guarantee is kept, in the queue's own names.

    `aside` tells why a remedy keeps the names of the reference; `advice` is by guarantee.
    """
    judgements = []
    for one in card.guarantees:
        told = remedy(one.id, one.told, queue.offers) if one.stories else None
        with aside(f"what mends {one.id}, in the queue's own names"):
            story = f"{one.reason}\n{one.story}"
            told = remedy_of(one.id, one.told, story, queue) if one.stories else None
        if told and advice and one.id in advice:
            told, place = advice[one.id]
            one = _placed(one, place)  # noqa: PLW2901 - the same, at the line that it names
        judgements.append(replace(one, remedy=told))
    return replace(card, guarantees=judgements)


def _placed(judgement: Judgement, source: Source) -> Judgement:
    """A judgement whose stories stand at the line to change, which its remedy names."""

    def there(place: Place | None) -> Place | None:
        return Place(str(source.path), source.line) if place else None

    more = [replace(one, place=there(one.place)) for one in judgement.more]
    return replace(judgement, place=there(judgement.place), more=more)


def in_own_names(text: str, draft: Draft) -> str:
    """A remedy with the table, columns and states of a queue, as far as its SQL tells them."""
    text = _DUE.sub(lambda due: _time(due[0], draft.jobs["due"].name, draft.text), text)
    for pattern, own in _own(draft):
        text = re.sub(pattern, own.replace("\\", r"\\"), text)
    return text


def remedy_of(guarantee: str, told: Told | None, story: str, queue: Queue) -> str:
    """The way to keep a guarantee, in a queue's own names, as far as its SQL and the story tell."""
    general = remedy(guarantee, told, queue.offers)
    try:
        draft = Draft(source(queue).text, queue.name)
    except (OSError, QueueproofError):
        return general
    text = in_own_names(general, draft)
    if cause := cause_of(guarantee, draft, story):
        return f"{cause} In general: {text}"  # it stands there, and may still not be what breaks it
    index = re.search(r"CREATE INDEX ON ([\w.]+)", text)
    if index and _is_view(index[1], draft):
        return (
            f"{index[1]} is a view, and no index holds what a view computes. Ask in the claim for "
            "the table's own columns, and index the table WHERE they say that a job can run."
        )
    if guarantee != "live-lease" or not _adds_up(draft):
        return text
    lease = draft.jobs.lease
    anew = _time(f"now(){' + lease' if _ends(draft.jobs) else ''}", lease.name, draft.text)
    return f"The heartbeat adds to {lease}: set it from the clock, `{lease} = {anew}`. Also: {text}"


def cause_of(guarantee: str, draft: Draft, story: str = "") -> str | None:
    """The remedy for what a file's SQL, its functions included, has and that breaks a guarantee."""
    for cause in _CAUSES:
        told = re.search(cause.get("because", ""), story)
        if guarantee not in cause["guarantees"].split() or not told:
            continue
        for name in cause["blocks"].split():
            block = draft.queue.blocks.get(name)
            texts = [statement.text for statement in block.statements] if block else []
            calls = (site for site in draft.sites if site.block == name and not site.own)
            texts += [site.parsed.text for site in calls]
            pattern = cause["pattern"].replace("{jobs}", re.escape(draft.jobs.table.sql))
            if seen := re.search(pattern, "\n".join(texts), re.IGNORECASE | re.DOTALL):
                return str(cause["safe"].format(seen[0], *seen.groups()))
    return None


def _is_view(name: str, draft: Draft) -> bool:
    made = rf"(?i)\bVIEW\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:\w+\.)?{re.escape(name)}\b"
    return any(re.search(made, one.text) for one in draft.queue.blocks["schema"].statements)


def _adds_up(draft: Draft) -> bool:
    """True where a heartbeat counts the lease from where it stood, and not from the clock."""
    return any(
        name == draft.jobs.lease.name == term.name
        for name, value in draft.written("heartbeat")
        for add in value.find_all(exp.Add)
        for term in (add.this, add.expression)
    )


def _ends(known: Jobs) -> bool:
    """True where the lease's column has its end, and not its beginning."""
    return known.clock == "until" or _END.search(known.lease.name) is not None


def _time(moment: str, column: str, sql: str) -> str:
    """A point in time as a column holds it: as a number where the schema says so."""
    number = re.search(rf"\b{re.escape(column)}\s+({_NUMBER})\b", sql, re.IGNORECASE)
    if not column or not number:
        return moment
    told = f"extract(epoch FROM {moment})" + " * 1000" * ("* 1000" in sql)
    # The end of a wait that is rounded down lies before it.
    return f"ceil({told})" if "int" in number[1].lower() and "+" in moment else told


def _own(draft: Draft) -> list[tuple[str, str]]:
    """Patterns of a text, each with what it becomes, in this order."""
    known, sql = draft.jobs, draft.text
    table, status = known.table.sql, known["status"]
    found = [(r"(?<=attempts = ):attempt", f":{known.token or 'attempt'}")]
    if table:
        found.append((r"(?<=FROM )jobs\b|(?<=UPDATE )jobs\b|(?<=ON )jobs\b", table))
    if not status:
        found.append((r"\bstatus = 'running' AND ", ""))
        found.append((r"\bsays `status = 'running'`", "says that it runs"))
    if len(draft.running) > 1:
        found.append((r"\bstatus = 'running'", f"{status} IN ({', '.join(draft.running)})"))
    told = {state: own for state, own in known.states.items() if own in sql}
    found += [
        (rf"status = '{state}'", f"{status} = {told[state]}")
        for state in ("running", "queued")
        if status and state in told
    ]
    quoted = [state for state in _QUOTED if told.get(state, "").startswith("'")]
    found += [(f"'{state}'", told[state]) for state in quoted]
    lacking = {"queue": r"(?<=\()queue, ", "priority": "priority DESC, ", "due": "run_at, "}
    found += [(pattern, "") for role, pattern in lacking.items() if not known[role]]
    bounds_all = "max_attempts" not in draft.queue.takes("enqueue")  # and no job has its own
    if not known["most"] and draft.queue.max_attempts and bounds_all:
        found.append((r"\bmax_attempts`, the row's own", f"{draft.queue.max_attempts}`"))
    columns = {
        r"\bid(?= = :id\b|\) WHERE)": known.key,
        r"\bstatus(?= IN)": status,
        r"\battempts(?= [=<>+-])": known["attempts"],
        r"\bmax_attempts\b": known["most"],
        r"\brun_at\b": known["due"],
        r"\bpriority(?= DESC)": known["priority"],
        r"\bqueue(?= = :queue)": known["queue"],
    }
    found += [(pattern, f"{column}") for pattern, column in columns.items() if column]
    if lease := known.lease:
        then = _time("now()" if _ends(known) else "now() - lease", lease.name, sql)
        found.append((r"\blocked_at < now\(\) - lease", f"{lease} < {then}"))
    return found
