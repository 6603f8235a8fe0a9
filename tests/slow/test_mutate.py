"""Mutants of a queue's SQL: what is planted, that it is one change, and what becomes of it."""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from queueproof.advice.clauses import changes
from queueproof.advice.mutants import Mutants, mutants_of
from queueproof.advice.verdicts import judge
from queueproof.errors import QueueError, QueueproofError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues import sqltext
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import load, load_text
from queueproof.queues.sqltree import Parsed, applied
from queueproof.report.card import Card, Judgement, MutantJudgement
from queueproof.report.page import read_card, to_page
from queueproof.report.terminal import Output, mutants_summary, print_mutants
from tests.fix_places import STRATEGIES
from tests.fix_queues import COMPLETE, queue_file

PLPGSQL = re.compile(r": `(PERFORM|EXECUTE) ")  # statements of its own, which are no SQL
FILES = sorted([*STRATEGIES.glob("*.sql"), *(STRATEGIES / "sound").glob("*.sql")])

QUEUE = queue_file(
    more="ALTER TABLE jobs ADD seen_at timestamptz;",
    claim="""
UPDATE jobs SET status = 'running', seen_at = now()
WHERE id = (SELECT id FROM jobs WHERE status = 'queued' FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING id;""",
    jobs="",
)
NO_LOCK = "claim: `FOR UPDATE SKIP LOCKED` dropped"
NO_SKIP = "claim: SKIP LOCKED dropped"
SURVIVES = "complete: SET status dropped"
# A mutation by its name: a statement => the same with it.
CHANGES = r"""
NOWAIT dropped: SELECT 1 FROM t FOR UPDATE NOWAIT => SELECT 1 FROM t FOR UPDATE
SKIP LOCKED dropped: SELECT 1 FROM t FOR UPDATE OF t SKIP LOCKED LIMIT 1
  => SELECT 1 FROM t FOR UPDATE OF t LIMIT 1
`FOR NO KEY UPDATE SKIP LOCKED` dropped:
  SELECT 1 FROM t LIMIT 1 -- why\n FOR NO KEY UPDATE SKIP LOCKED
  => SELECT 1 FROM t LIMIT 1
ORDER BY dropped: SELECT 1 FROM t ORDER BY a, b => SELECT 1 FROM t
ORDER BY `b ASC NULLS LAST` turned: SELECT 1 FROM t ORDER BY a, b ASC NULLS LAST LIMIT 1
  => SELECT 1 FROM t ORDER BY a, b DESC NULLS LAST LIMIT 1
ORDER BY `a` turned: SELECT 1 FROM t ORDER BY a => SELECT 1 FROM t ORDER BY a DESC
condition `b BETWEEN 1 AND 2` dropped: SELECT 1 FROM t WHERE a = 1 AND b BETWEEN 1 AND 2 AND c
  => SELECT 1 FROM t WHERE a = 1 AND c
condition `c` dropped: SELECT 1 FROM t WHERE a = 1 AND (b OR c)
  => SELECT 1 FROM t WHERE a = 1 AND (b)
condition `a IS NULL` dropped: SELECT 1 FROM t WHERE a IS NULL AND b => SELECT 1 FROM t WHERE b
condition `a` dropped: DELETE FROM t WHERE a RETURNING b => DELETE FROM t RETURNING b
`a < b - 1` with <=: SELECT a < b - 1 FROM t => SELECT a <= b - 1 FROM t
`a >= (b < c)` with <=: SELECT a >= (b < c) FROM t => SELECT a <= (b < c) FROM t
SET a dropped: UPDATE t SET a = a + 1, b = now() WHERE c => UPDATE t SET b = now() WHERE c
SET a dropped: UPDATE t SET a = a + 1 WHERE c => UPDATE t SET a = a WHERE c
LIMIT dropped: SELECT 1 FROM t LIMIT :n => SELECT 1 FROM t
MATERIALIZED dropped: WITH a AS MATERIALIZED (SELECT 1) SELECT * FROM a
  => WITH a AS (SELECT 1) SELECT * FROM a
LIMIT moved into IN: DELETE FROM t WHERE id = ANY (ARRAY(SELECT id FROM t LIMIT 1)) AND b
  => DELETE FROM t WHERE id IN (SELECT id FROM t LIMIT 1) AND b
LIMIT moved into IN: DELETE FROM t WHERE id = (SELECT id FROM t LIMIT 1)
  => DELETE FROM t WHERE id IN (SELECT id FROM t LIMIT 1)
LIMIT moved into IN:
  WITH p AS (SELECT id FROM t LIMIT 1) UPDATE t SET a = 1 FROM p WHERE p.id = t.id
  => UPDATE t SET a = 1 WHERE t.id IN (SELECT id FROM t LIMIT 1)
"""
HOLDS = Judgement("single-claim", "holds", "seen")
OTHERS = [Judgement(name, "not-offered", "") for name in CATALOGUE if name != "single-claim"]
CARD = Card("queue.sql", "PostgreSQL", 0, 1.0, (HOLDS, *OTHERS))


def mutated(statement: str) -> dict[str, str]:
    """Every mutation of a statement: its name, and the statement with it."""
    return {one.what: applied(statement, one.edits) for one in changes(Parsed(statement))}


@pytest.mark.sample
@pytest.mark.parametrize("change", re.findall(r"^\S.*(?:\n  .*)*", CHANGES, re.MULTILINE))
def test_an_operator_makes_its_one_change(change: str) -> None:
    """Each operator changes its clause and leaves the rest of the text as it was."""
    what, both = re.sub(r"\n +", " ", change).replace(r"\n", "\n").split(": ", 1)
    statement, expected = both.split(" => ")
    assert mutated(statement)[what] == expected


def stretch(before: str, after: str) -> tuple[list[str], list[str]]:
    """The tokens of each that are left between what both begin and end with."""
    one, other = ([token.raw for token in sqltext.tokens(text)] for text in (before, after))
    while one and other and one[-1] == other[-1]:
        one.pop()
        other.pop()
    while one and other and one[0] == other[0]:
        del one[0], other[0]
    return one, other


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_mutant_is_one_change_that_parses_and_has_its_own_name(path: Path) -> None:
    """Each mutation is one change that parses, and each mutant has a name and SQL of its own."""
    queue = load(path)
    statements = [s.text for b in queue.blocks.values() for s in b.statements[:9]]
    # A mutation takes one stretch away, or changes one word.
    count = 0
    for statement in statements:
        if sqltext.first_keyword(statement) not in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}:
            continue
        original = repr(Parsed(statement).tree)
        for what, text in mutated(statement).items():
            assert repr(Parsed(text).tree) != original, what
            gone, new = stretch(statement, text)
            if what.endswith(" dropped"):
                assert gone, what
                assert not new or what.startswith("SET "), what
            elif what != "LIMIT moved into IN":
                assert max(len(gone), len(new)) <= 2, what  # `<=` is two tokens here
            count += 1
    assert count > 0
    found = mutants_of(queue)
    texts = [
        tuple(s.text for block in mutant.queue.blocks.values() for s in block.statements)
        for mutant in found.mutants
    ]
    assert len(set(texts)) == len({mutant.name for mutant in found.mutants}) == len(found.mutants)
    assert tuple(s.text for block in queue.blocks.values() for s in block.statements) not in texts
    assert all(mutant.diff and mutant.queue.name == queue.name for mutant in found.mutants)
    assert [told for told in found.unread if not PLPGSQL.search(told)] == []


def test_a_mutant_still_takes_what_the_queue_takes() -> None:
    """A mutant that has lost `queue = :queue` is still asked for jobs of one queue."""
    queue = load(STRATEGIES / "skip_locked.sql")
    name = "claim: condition `queue = :queue` dropped"
    (mutant,) = (one for one in mutants_of(queue).mutants if one.name == name)
    assert "queue" not in mutant.queue.blocks["claim"].used
    assert mutant.queue.takes("claim") == queue.takes("claim")


def test_bodies_are_mutated_and_a_transaction_goes_as_a_whole() -> None:
    """And what cannot be read there is said; BEGIN and its COMMIT go together, all else alone."""
    tidy = """
CREATE FUNCTION tidy(n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM jobs WHERE id < n;
  PERFORM 1 FROM jobs;
END $$;"""
    found = mutants_of(load_text(queue_file(more=tidy), "queue.sql"))
    (relaxed,) = (one for one in found.mutants if one.name == "tidy(): `id < n` with <=")
    assert relaxed.diff == "-  DELETE FROM jobs WHERE id < n;\n+  DELETE FROM jobs WHERE id <= n;"
    assert found.unread == ["tidy(): `PERFORM 1 FROM jobs` was not mutated: it cannot be parsed"]
    text = queue_file(complete=f"(id)!\nBEGIN;\nSELECT 1;\n{COMPLETE}\nCOMMIT;")
    names = [mutant.name for mutant in mutants_of(load_text(text, "queue.sql")).mutants]
    assert "complete: BEGIN and COMMIT dropped" in names
    assert "complete: `SELECT 1` dropped" in names
    alone = ("complete: BEGIN dropped", "complete: COMMIT")
    assert not any(name.startswith(alone) for name in names)


def test_a_python_queue_has_no_sql_to_mutate() -> None:
    """Only an SQL file can be mutated."""
    with pytest.raises(QueueproofError, match="mutate takes a queue file"):
        mutants_of(Queue())


def written(folder: Path, equivalents: str | None = None) -> Mutants:
    """The mutants of a queue in a folder, with the file beside it."""
    (folder / "queue.sql").write_text(QUEUE)
    if equivalents is not None:
        (folder / "queue.equivalent.toml").write_text(equivalents)
    return mutants_of(load(folder / "queue.sql"))


def only(mutants: Mutants, *names: str) -> Mutants:
    """Some of them."""
    return replace(mutants, mutants=[one for one in mutants.mutants if one.name in names])


def judged(mutants: Mutants, card: Card = CARD) -> dict[str, MutantJudgement]:
    """What became of each."""
    *_, card = judge(mutants, card, postgres=None, profile="glance")
    assert card.mutants is not None
    return {mutant.name: mutant for mutant in card.mutants}


def test_a_mutant_is_killed_survives_or_is_equivalent(tmp_path: Path) -> None:
    """A guarantee kills, and what none kills survives, unless it is known that it cannot matter."""
    # What could not be asked is named.
    mutants = written(tmp_path, f'"{NO_SKIP}" = "for this test"')
    unread, lost = "claim: SET seen_at dropped", "claim: SET status dropped"
    unknown = replace(OTHERS[0], verdict="inconclusive")
    card = replace(CARD, guarantees=[HOLDS, unknown, *OTHERS[1:]])
    found = judged(only(mutants, NO_LOCK, NO_SKIP, unread, lost, SURVIVES), card)
    assert (found[NO_LOCK].verdict, found[NO_LOCK].by) == ("killed", "single-claim")
    assert (found[NO_SKIP].verdict, found[NO_SKIP].reason) == ("equivalent", "for this test")
    told = found[unread].verdict, found[unread].reason
    assert told == ("equivalent", "nothing reads seen_at")
    assert (found[lost].verdict, found[lost].by) == ("killed", None)
    assert "does not work" in found[lost].reason
    survivor = found[SURVIVES]
    assert survivor.verdict == "survived"
    assert survivor.reason.endswith(f"; did not hold to begin with: {OTHERS[0].id}")
    assert f"not offered: {OTHERS[1].id}, " in survivor.reason


def test_a_mutant_survives_only_what_was_asked_in_full(tmp_path: Path) -> None:
    """A guarantee that `--only` left out might have found it; where nothing holds nothing could."""
    mutants = only(written(tmp_path), SURVIVES)
    holds = Judgement("server-clock", "holds", "seen")
    (partly,) = judged(mutants, replace(CARD, guarantees=[holds])).values()
    assert partly.verdict == "unjudged"
    assert partly.reason.endswith(f"{len(OTHERS)} of {len(CATALOGUE)} guarantees were not asked")
    broken = replace(CARD, guarantees=[Judgement("single-claim", "broken", "seen")])
    (card,) = judge(written(tmp_path), broken, postgres=None, profile="quick")
    assert card.mutants == []
    assert card.not_mutated == ["No guarantee holds, so none could find a mutant."]


def test_an_equivalent_mutant_that_is_killed_is_an_error(tmp_path: Path) -> None:
    """The list of equivalent mutants cannot say of a defect that it is none."""
    mutants = written(tmp_path, f'# why\n"{NO_LOCK}" = "wrong"')
    with pytest.raises(QueueError, match=r"toml:2: .* is not equivalent.*single-claim") as caught:
        judged(only(mutants, NO_LOCK))
    assert caught.value.source is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"claim: SKIP LOCK dropped" = "x"', r"toml:1: no mutant is named.*did you mean"),
        (f'"{NO_SKIP}" = ""', r"toml:1: .* has no reason"),
        ("nonsense", "is not TOML"),
    ],
)
def test_equivalents_that_say_nothing_are_errors(tmp_path: Path, text: str, message: str) -> None:
    """A name that no mutant has, or a reason that is none, is the user's error."""
    with pytest.raises(QueueError, match=message):
        written(tmp_path, text)


def test_mutants_are_on_the_card_its_page_and_the_terminal() -> None:
    """Read back as written; equivalents by name, survivors with their lines, and the count last."""
    seen = MutantJudgement("claim: x", "survived", None, "all hold", "-a\n+b")
    card = replace(CARD, mutants=(seen,), not_mutated=("f() was not mutated",))
    assert read_card(card.to_json()) == card
    assert mutants_summary([seen]) == "1 mutant: 0 killed, 0 equivalent, 1 survived"
    unjudged = replace(seen, verdict="unjudged")
    told = "1 mutant: 0 killed, 0 equivalent, 1 not judged by what was asked"
    assert mutants_summary([unjudged]) == told
    assert told in to_page([replace(card, mutants=[unjudged])])
    page = to_page([card])
    assert "-a\n+b" in page
    assert "f() was not mutated" in page
    assert '"mutants"' not in CARD.to_json()
    ends = [
        MutantJudgement("claim: a", "killed", "order", "seen", "-a"),
        MutantJudgement("claim: b", "equivalent", None, "nothing reads b", "-b"),
        MutantJudgement("claim: c", "survived", None, "all hold", "-c\n+d"),
    ]
    file = StringIO()
    print_mutants(Output(file), replace(CARD, mutants=ends, not_mutated=["f() was not mutated"]))
    told = file.getvalue()
    assert told.startswith("1 equivalent (the page and the JSON say why)\n  claim: b\n")
    assert "1 survived (all hold)\n  claim: c\n    -c\n    +d\nf() was not mutated\n" in told
    assert told.endswith("3 mutants: 1 killed, 1 equivalent, 1 survived\n\n")
