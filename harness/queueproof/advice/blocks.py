"""Safe forms of a whole block: as one transaction, in one order, or with fewer statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from queueproof.advice.clauses import Change, added, rewritten
from queueproof.advice.forms import TWICE, Form
from queueproof.advice.reading import HELD, Draft
from queueproof.probes.serving import serving_indexes
from queueproof.queues.block import Block
from queueproof.queues.filetext import OPERATION_OF
from queueproof.queues.sqltext import BEGINS, Span
from queueproof.queues.sqltree import Edit


def _as_one(whole: Block, _: Draft) -> Iterator[Change]:
    """Statements that belong together are one transaction."""
    if len(whole.statements) > 1 and whole.statements[0].word not in BEGINS:
        yield Change("BEGIN and COMMIT around it", _transaction(whole))


def _transaction(whole: Block) -> list[Edit]:
    start, end = whole.statements[0].start, whole.statements[-1].span.end
    return [Edit.at(start, "BEGIN;\n"), Edit.at(end, ";\nCOMMIT")]


def _bound(whole: Block, draft: Draft) -> Iterator[Change]:
    """A count is compared with what the file compares it with elsewhere, and not with a number."""
    for place in whole.statements:
        for seen in re.finditer(r"\b(\w+\.)?(\w+)\s*[<>]=?\s*(\d+)\b", place.text):
            count = seen[2]
            bounds = rf"\b{count}\s*[<>]=?\s*(?:\w+\.)?([a-z_]\w*)\b(?!\()"
            for bound in dict.fromkeys(re.findall(bounds, draft.text)):
                edit = Edit(Span(*seen.span(3)), f"{seen[1] or ''}{bound}").moved(place.start)
                yield Change(f"compares {count} with {bound}", [edit])


def _capped(whole: Block, _: Draft) -> Iterator[Change]:
    """An exponent stays within what an interval can hold."""
    power = r"(?i)(\^|<<|\bpow(?:er)?\(\s*2(?:\.0)?\s*,)\s*"
    for place in whole.statements:
        for given in (r"(\w+(?:\.\w+)?)\b(?!\s*[.(])", r"\(((?:[^()]|\([^()]*\))*)\)"):
            for edit in rewritten(place.text, power + given, r"\1 LEAST(\2, 10)", place.start):
                yield Change("exponent capped", [edit])


def _compared(whole: Block, _: Draft) -> Iterator[Change]:
    """Numbers in a document are compared as numbers: as texts, '2' is more than '12'."""
    part = r"\(?(\w+\s*->>\s*'\w+')\)?"
    for place in whole.statements:
        pattern = rf"{part}(\s*[<>]=?\s*){part}"
        if edits := rewritten(place.text, pattern, r"(\1)::int\2(\3)::int", place.start):
            yield Change("compares numbers, not texts", edits)


def _found(whole: Block, _: Draft) -> Iterator[Change]:
    """A function answers FOUND of the job's change, and not of a statement behind it."""
    change = r"(?is)(\bBEGIN\s+(?:UPDATE|DELETE)\b[^;]*;)(\s*)"
    change += r"(?!\s*IF\b)(?=[^;]*;\s*RETURN\s+FOUND\b)"  # another one in between
    answer = r"\1\2IF NOT FOUND THEN RETURN false; END IF;\2"
    for place in whole.statements:
        for edit in rewritten(place.text, change, answer, place.start):
            yield Change("answers false where nothing was changed", [edit])


def _committed_last(whole: Block, draft: Draft) -> Iterator[Change]:
    """A transaction ends behind all that belongs to it."""
    *before, last = whole.statements
    ends = [place for place in before if place.word in {"COMMIT", "END"}]
    if len(ends) == 1 and last.word not in {"COMMIT", "END"}:
        gone = Edit(_with_end(draft, ends[0].span))
        there = Edit.at(last.span.end, f";\n{ends[0].text}")
        yield Change(f"{ends[0].text} moved to the end", [gone, there])


def _fresh(whole: Block, _: Draft) -> Iterator[Change]:
    """Rows that a lock guards are read after it was taken, whatever the default is."""
    for place in whole.statements:
        if place.text.upper() in {"BEGIN", "START TRANSACTION"}:
            edit = Edit.at(place.span.end, " ISOLATION LEVEL READ COMMITTED")
            yield Change("READ COMMITTED", [edit])


def _tokened(whole: Block, draft: Draft) -> Iterator[Change]:
    """The count of attempts, which the claim does not return yet, is a token for each attempt."""
    known = draft.jobs
    if known.token or not known["attempts"]:
        return
    own = [site for site in draft.sites if site.own]
    answers = [
        (claim, update.args["returning"].expressions[-1])
        for claim in own
        if claim.block == "claim"
        for update in claim.changes(known.table.name)
        if update.args.get("returning") is not None
    ]
    for site in (site for site in own if site.block == whole.name):
        for change in site.changes(known.table.name):
            test = f"{known['attempts']} = :attempt"
            asked = added(site.parsed, change, test)
            if asked is None:
                continue
            for claim, last in answers:
                told = Edit.at(claim.parsed.span(last).end, f", {known['attempts']} AS attempt")
                edits = [told.moved(claim.start), asked.moved(site.start)]
                yield Change(f"asks for {test}, which the claim returns", edits)


def _swapped(whole: Block, _: Draft) -> Iterator[Change]:
    """Shared rows are locked in the same order by everybody."""
    reads = {"UPDATE", "INSERT", "DELETE", "SELECT", "WITH"}
    places = [place for place in whole.statements if place.word in reads]
    for one, other in combinations(places, 2):
        yield Change("statements swapped", [Edit(one.span, other.text), Edit(other.span, one.text)])


def _locked_first(whole: Block, draft: Draft) -> Iterator[Change]:
    """A batch is locked in one order before anything is done with it."""
    table, key = draft.jobs.table.sql, draft.jobs.key
    if table:
        at = next(place for place in whole.statements if place.word not in BEGINS | {"SET"})
        ids = f"SELECT {key} FROM {table} WHERE {key} = ANY (:ids) ORDER BY {key} FOR UPDATE;\n"
        yield Change("the batch locked by id first", [Edit.at(at.start, ids)])


def _shortened(whole: Block, draft: Draft) -> Iterator[Change]:
    """A statement less; one that ends a transaction stays."""
    for place in whole.statements if len(whole.statements) > 1 else ():
        if place.word not in BEGINS | {"COMMIT", "END"}:
            what = f"`{place.text.split(maxsplit=2)[0]} …` dropped"
            yield Change(what, [Edit(_with_end(draft, place.span))])


def _with_end(draft: Draft, span: Span) -> Span:
    """A statement with its semicolon, and its line's end."""
    after = re.match(r"[ \t]*;[ \t]*\n?", draft.text[span.end :])
    return Span(span.start, span.end + (after.end() if after else 0))


def _answered(whole: Block, draft: Draft) -> Iterator[Change]:
    """The INSERT itself answers the id that it gave out."""
    index = next((n for n, one in enumerate(whole.statements) if "currval" in one.text), 0)
    if index:
        before, asks = whole.statements[index - 1].span, whole.statements[index].span
        if draft.text[before.end : asks.start].strip() == ";":
            given = draft.text[asks.start : asks.end]
            column = re.search(r"pg_get_serial_sequence\([^,]*,\s*'(\w+)'", given)
            key = column[1] if column else draft.jobs.key.sql
            answer = key if key == "id" else f"{key} AS id"
            edit = Edit(Span(before.end, asks.end), f"\nRETURNING {answer}")
            yield Change("RETURNING id instead of currval", [edit])


_SESSIONS = (  # what a session keeps, and the same for a transaction
    (r"(?i)\b(pg_(?:try_)?advisory)_lock(_shared)?(?=\s*\()", r"\1_xact_lock\2"),
    (r"(?i)(\bset_config\s*\([^()]*,\s*)false(?=\s*\))", r"\1true"),
    (r"(?i)\ASET\s+(?!LOCAL\b|TRANSACTION\b)(?:SESSION\s+)?", "SET LOCAL "),
)


def _of_transaction(whole: Block, draft: Draft) -> Iterator[Change]:
    """Locks and settings end with the transaction: the next one may run in another session."""
    edits = [
        edit
        for one in whole.statements
        for pattern, new in _SESSIONS
        for edit in rewritten(one.text, pattern, new, one.start)
    ]
    if not edits:
        return
    edits += [
        Edit(_with_end(draft, place.span))
        for place in whole.statements
        if re.match(r"(?i)SELECT\s+pg_advisory_unlock\w*\s*\([^;]*\)\s*\Z", place.text)
    ]
    if whole.statements[0].word not in BEGINS:
        edits += _transaction(whole)
    yield Change("locks and settings of the transaction", edits)


_TYPES = (
    (r"\b(timestamp\w*)\s*\(\d\)", r"\1"),
    (r"\btimestamp\b(?! with)(?= *[,\s])", "timestamptz"),
    (r"\bUNLOGGED ", ""),
    (r" CACHE \d+", ""),
    (r"(?<=priority)(\s+)text(\s+NOT NULL DEFAULT )'0'", r"\1int\g<2>0"),
    (r"\btext(\s+GENERATED ALWAYS AS )\(([^()]*->>[^()]*)\)", r"int\1((\2)::int)"),
)


def _retyped(whole: Block, draft: Draft) -> Iterator[Change]:
    """Tables that survive a crash, times with a zone, numbers in their order."""
    plain = [place for place in whole.statements if "$" not in place.text]
    for pattern, new in _TYPES:
        edits = [edit for one in plain for edit in rewritten(one.text, pattern, new, one.start)]
        for some in [edits, *([one] for one in edits)] if edits else ():
            first = some[0]
            gone = draft.text[first.span.start : first.span.end]
            yield Change(f"{first.new.strip() or f'no {gone.strip()}'} in the schema", some)


def _indexed(whole: Block, draft: Draft) -> Iterator[Change]:
    """An index holds just what may be claimed, in the order of the claim."""
    for of in _indexes(draft):
        table = of.split(maxsplit=2)[1]
        for place in whole.statements:
            made = re.match(r"(?is)CREATE INDEX (\w+\s+)?(?=ON)", place.text)
            if made and f"ON {table} " in place.text:
                span = Span(place.start + made.end(), place.span.end)
                yield Change(f"index {of}", [Edit(span, of)])
        there = Edit.at(whole.statements[-1].span.end, f";\nCREATE INDEX {of}")
        yield Change(f"index {of}", [there])


def _indexes(draft: Draft) -> list[str]:
    """Indexes that serve the claim: by its own query, then by what its columns are for."""
    known, queue = draft.jobs, draft.queue
    claims = (serving_indexes(statement.text) for statement in queue.blocks["claim"].statements)
    found = [one.sql.removeprefix("CREATE INDEX ") for indexes in claims for one in indexes]
    if known.table.name and known["status"]:
        of_queue, urgent = "queue" in queue.takes("claim"), "priority" in queue.order
        found.append(known.index(queue=of_queue, urgent=urgent))
    return list(dict.fromkeys(found))


_NO_SCHEMA = " ".join(name for name in OPERATION_OF if name != "schema")

WHOLE: Sequence[Form] = (
    Form(_as_one, f"{TWICE} no-lost-job not-early stale-recovery", _NO_SCHEMA),
    Form(_capped, "backoff no-lost-job retry-given"),
    Form(_compared, "retry-given retry-bound order backoff stale-recovery"),
    Form(_found, "fencing final-state live-lease", "schema"),
    Form(_bound, "retry-bound retry-given stale-recovery no-lost-job"),
    Form(_committed_last, f"{TWICE} no-lost-job backoff stale-recovery", _NO_SCHEMA),
    Form(_fresh, "isolation"),
    Form(_tokened, TWICE, " ".join(HELD - {"complete_many"})),
    Form(_swapped, "no-deadlock concurrency-limit", _NO_SCHEMA),
    Form(_locked_first, "no-deadlock", "complete_many"),
    Form(_answered, "pooler-safe", "enqueue"),
    Form(_of_transaction, "pooler-safe", _NO_SCHEMA),
    Form(_retyped, "server-clock crash-safe order live-lease not-early backoff", "schema"),
    Form(_indexed, "steady-cost order", "schema"),
    Form(
        _shortened,
        "crash-safe non-blocking backoff no-lost-job pooler-safe not-early live-lease",
        _NO_SCHEMA,
        last=True,
    ),
)
