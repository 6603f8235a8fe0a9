"""Safe forms of a whole block: as one transaction, in one order, or with fewer statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from queueproof.mend.draft import HELD, Draft
from queueproof.mend.edits import Offer, added, changes_of, moved
from queueproof.mend.statements import TWICE
from queueproof.probes.serving import serving_index
from queueproof.queues import sqltext
from queueproof.queues.block import Block
from queueproof.queues.sqltree import Edit, Span


def _as_one(block: Block, starts: Sequence[int], _: Draft) -> Iterator[Offer]:
    """Statements that belong together are one transaction."""
    words = [sqltext.first_keyword(statement.text) for statement in block.statements]
    if block.name == "schema" or len(words) == 1 or words[0] in {"BEGIN", "START"}:
        return
    end = starts[-1] + len(block.statements[-1].text)
    yield (
        "BEGIN and COMMIT around it",
        [Edit(Span(starts[0], starts[0]), "BEGIN;\n"), Edit(Span(end, end), ";\nCOMMIT")],
    )


def _fresh(block: Block, starts: Sequence[int], _: Draft) -> Iterator[Offer]:
    """What a lock guards is read after it was taken, whatever the default is."""
    for start, statement in zip(starts, block.statements, strict=True):
        if statement.text.upper() in {"BEGIN", "START TRANSACTION"}:
            end = start + len(statement.text)
            yield "READ COMMITTED", [Edit(Span(end, end), " ISOLATION LEVEL READ COMMITTED")]


def _tokened(block: Block, _: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """The count of attempts, which the claim does not return yet, is a token for each attempt."""
    known = draft.columns
    if block.name not in HELD - {"complete_many"} or known.token or not known.attempts:
        return
    own = [site for site in draft.sites if site.own]
    answers = [
        (claim, update.args["returning"].expressions[-1])
        for claim in own
        if claim.block == "claim"
        for update in changes_of(claim, known.table)
        if update.args.get("returning") is not None
    ]
    for site in (site for site in own if site.block == block.name):
        for change in changes_of(site, known.table):
            asked = added(site, change, f"{known.attempts} = :attempt")
            if asked is None:
                continue
            for claim, last in answers:
                end = claim.parsed.span(last).end
                told = Edit(Span(end, end), f", {known.attempts} AS attempt")
                yield (
                    f"asks for {known.attempts} = :attempt, which the claim returns",
                    [moved(told, claim.start), moved(asked, site.start)],
                )


def _swapped(block: Block, starts: Sequence[int], _: Draft) -> Iterator[Offer]:
    """Shared rows are locked in the same order by everybody."""
    if block.name == "schema":
        return
    spans = [
        Span(start, start + len(statement.text))
        for start, statement in zip(starts, block.statements, strict=True)
        if sqltext.first_keyword(statement.text) in {"UPDATE", "INSERT", "DELETE", "SELECT", "WITH"}
    ]
    for at, one in enumerate(spans):
        for other in spans[at + 1 :]:
            texts = [_.text[span.start : span.end] for span in (one, other)]
            yield "statements swapped", [Edit(one, texts[1]), Edit(other, texts[0])]


def _locked_first(block: Block, starts: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """A batch is locked in one order before anything is done with it."""
    table = draft.columns.table
    if block.name != "complete_many" or not table:
        return
    at = next(
        start
        for start, statement in zip(starts, block.statements, strict=True)
        if sqltext.first_keyword(statement.text) not in {"BEGIN", "START", "SET"}
    )
    key = draft.columns.key
    ids = f"SELECT {key} FROM {table} WHERE {key} = ANY (:ids) ORDER BY {key} FOR UPDATE;\n"
    yield "the batch locked by id first", [Edit(Span(at, at), ids)]


def _shortened(block: Block, starts: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """A statement less; one that ends a transaction stays."""
    if block.name == "schema" or len(block.statements) == 1:
        return
    for index, statement in enumerate(block.statements):
        if sqltext.first_keyword(statement.text) in {"BEGIN", "START", "COMMIT", "END"}:
            continue
        span = _with_end(draft, Span(starts[index], starts[index] + len(statement.text)))
        yield f"`{statement.text.split(maxsplit=2)[0]} …` dropped", [Edit(span)]


def _with_end(draft: Draft, span: Span) -> Span:
    """A statement with its semicolon, and its line's end."""
    after = re.match(r"[ \t]*;[ \t]*\n?", draft.text[span.end :])
    return Span(span.start, span.end + (after.end() if after else 0))


def _answered(block: Block, starts: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """The INSERT itself answers the id that it gave out."""
    texts = [statement.text for statement in block.statements]
    if block.name != "enqueue" or not any("currval" in text for text in texts):
        return
    index = next(n for n, text in enumerate(texts) if "currval" in text)
    end = starts[index] + len(texts[index])
    before = starts[index - 1] + len(texts[index - 1])
    if draft.text[before : starts[index]].strip() == ";":
        yield "RETURNING id instead of currval", [Edit(Span(before, end), "\nRETURNING id")]


_SESSIONS = (  # what a session keeps, and the same for a transaction
    (r"(?i)\b(pg_(?:try_)?advisory)_lock(_shared)?(?=\s*\()", r"\1_xact_lock\2"),
    (r"(?i)(\bset_config\s*\([^()]*,\s*)false(?=\s*\))", r"\1true"),
    (r"(?i)\ASET\s+(?!LOCAL\b|TRANSACTION\b)(?:SESSION\s+)?", "SET LOCAL "),
)


def _of_transaction(block: Block, starts: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """Locks and settings end with the transaction: the next one may run in another session."""
    if block.name == "schema":
        return
    statements = list(zip(starts, (one.text for one in block.statements), strict=True))
    edits = [
        Edit(Span(start + m.start(), start + m.end()), m.expand(new))
        for start, text in statements
        for pattern, new in _SESSIONS
        for m in re.finditer(pattern, text)
    ]
    if not edits:
        return
    edits += [
        Edit(_with_end(draft, Span(start, start + len(text))))
        for start, text in statements
        if re.match(r"(?i)SELECT\s+pg_advisory_unlock\w*\s*\([^;]*\)\s*\Z", text)
    ]
    if sqltext.first_keyword(statements[0][1]) not in {"BEGIN", "START"}:
        end = starts[-1] + len(statements[-1][1])
        edits += [Edit(Span(starts[0], starts[0]), "BEGIN;\n")]
        edits += [Edit(Span(end, end), ";\nCOMMIT")]
    yield "locks and settings of the transaction", edits


_TYPES = (
    (r"\b(timestamp\w*)\s*\(\d\)", r"\1"),
    (r"\btimestamp\b(?! with)(?= *[,\s])", "timestamptz"),
    (r"\bUNLOGGED ", ""),
    (r" CACHE \d+", ""),
    (r"(?<=priority)(\s+)text(\s+NOT NULL DEFAULT )'0'", r"\1int\g<2>0"),
)


def _retyped(block: Block, starts: Sequence[int], _: Draft) -> Iterator[Offer]:
    """Tables that survive a crash, times with a zone, numbers in their order."""
    if block.name != "schema":
        return
    for pattern, new in _TYPES:
        edits = [
            Edit(Span(start + m.start(), start + m.end()), m.expand(new))
            for start, statement in zip(starts, block.statements, strict=True)
            if "$" not in statement.text
            for m in re.finditer(pattern, statement.text)
        ]
        if edits:
            yield f"{edits[0].new.strip() or 'default'} in the schema", edits


def _indexed(block: Block, starts: Sequence[int], draft: Draft) -> Iterator[Offer]:
    """An index holds just what may be claimed, in the order of the claim."""
    if block.name != "schema":
        return
    end = starts[-1] + len(block.statements[-1].text)
    for index in _indexes(draft):
        of = index.removeprefix("CREATE INDEX ")
        table = of.split(maxsplit=2)[1]
        for start, statement in zip(starts, block.statements, strict=True):
            made = re.match(r"(?is)CREATE INDEX (\w+\s+)?(?=ON)", statement.text)
            if made and f"ON {table} " in statement.text:
                span = Span(start + made.end(), start + len(statement.text))
                yield f"index {of}", [Edit(span, of)]
        yield f"index {of}", [Edit(Span(end, end), f";\n{index}")]


def _indexes(draft: Draft) -> list[str]:
    """What the claim's own query would be served by, then what its columns are for."""
    known, queue = draft.columns, draft.queue
    claims = (serving_index(statement.text) for statement in queue.blocks["claim"].statements)
    found = [index.sql for index in claims if index]
    if known.table and known.status:
        keys = [f"{known.queue}"] if known.queue and "queue" in queue.takes("claim") else []
        keys += [f"{known.priority} DESC"] if known.priority and "priority" in queue.order else []
        keys += [f"{known.due}"] if known.due else []
        by = ", ".join([*keys, f"{known.key}"])
        of = f"{known.table} ({by}) WHERE {known.status} = {known.free}"
        found.append(f"CREATE INDEX ON {of}")
    return list(dict.fromkeys(found))


WHOLE: Sequence[tuple[Callable[[Block, Sequence[int], Draft], Iterator[Offer]], str, bool]] = (
    (_as_one, f"{TWICE} no-lost-job not-early stale-recovery", False),
    (_fresh, "isolation", False),
    (_tokened, TWICE, False),
    (_swapped, "no-deadlock", False),
    (_locked_first, "no-deadlock", False),
    (_answered, "pooler-safe", False),
    (_of_transaction, "pooler-safe", False),
    (_retyped, "server-clock crash-safe order live-lease not-early backoff", False),
    (_indexed, "steady-cost order", False),
    (
        _shortened,
        "crash-safe non-blocking backoff no-lost-job pooler-safe not-early live-lease",
        True,
    ),
)
