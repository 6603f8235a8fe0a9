"""A file that extends another one is that file, but for what stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.cli import run
from queueproof.errors import FormatError, QueueError, Source
from queueproof.queues.sqlfile import SqlFileQueue, load
from tests.fix_places import REFERENCE

BASE = """\
-- What it is about.
-- /// queue
-- lease = "30 seconds"
-- retry_on = [  # two of them
--   "55P03",
--   "40001",
-- ]
-- include = ["more/tables.sql"]
-- [states]
-- done = "completed"
-- ///

-- name: enqueue
INSERT INTO jobs DEFAULT VALUES RETURNING id;

-- The oldest first.
-- name: claim
SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE;

-- name: complete(id)!
DELETE FROM jobs WHERE id = :id;
"""
TABLES = "CREATE TABLE jobs (id bigserial PRIMARY KEY);\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A queue whose tables stand in a file beside it."""
    (tmp_path / "queues" / "more").mkdir(parents=True)
    (tmp_path / "queues" / "more" / "tables.sql").write_text(TABLES)
    path = tmp_path / "queues" / "base.sql"
    path.write_text(BASE)
    return path


def over(base: Path, header: str = "", blocks: str = "", name: str = "over.sql") -> Path:
    """A file in the folder above that extends a queue."""
    lines = ["/// queue", f'extends = "queues/{base.name}"', *header.splitlines(), "///"]
    path = base.parent.parent / name
    path.write_text("".join(f"-- {line}\n" for line in lines) + blocks)
    return path


def test_what_does_not_stand_here_stands_there(base: Path) -> None:
    """Keys, tables, blocks and what is included, each known by its own file and line."""
    claim = "\n-- Any.\n-- name: claim\nSELECT id FROM jobs LIMIT 1 FOR UPDATE;\n"
    path = over(base, 'lease = "1 minute"\nmax_attempts = 2\n[breaks]\norder = "none"', claim)
    queue, other = load(path), load(base)
    assert (queue.lease_seconds, queue.max_attempts) == (60, 2)
    assert queue.retry_on == other.retry_on == {"55P03", "40001"}
    assert queue.states == {"done": "completed"}
    assert load(over(base, 'states.ready = "queued"')).states == {"ready": "queued"}
    assert queue.offers == other.offers
    assert queue.blocks["schema"].statements[0].text == TABLES.strip().rstrip(";")
    assert "ORDER BY" not in queue.blocks["claim"].statements[0].text
    assert queue.source_of("claim") == Source(path, 10)
    assert queue.source_of("complete") == Source(base, 20)
    assert queue.source_of_break("order") == Source(path, 6)
    assert "The oldest first" not in queue.whole
    assert set(queue.files) == {path, base, base.parent / "more" / "tables.sql"}


def test_a_block_that_is_empty_here_is_not_offered(base: Path) -> None:
    """Elsewhere an empty block is a mistake."""
    assert "complete" not in load(over(base, blocks="-- name: complete\n")).offers
    base.write_text(f"{BASE}\n-- name: fail\n")
    with pytest.raises(FormatError, match="block fail is empty"):
        load(base)


def test_what_a_file_extends_may_extend_another(base: Path) -> None:
    """As far as it goes; a circle ends, and so does a file that is not there."""
    path = base.with_name("middle.sql")
    path.write_text('-- /// queue\n-- extends = "base.sql"\n-- lease = "1 minute"\n-- ///\n')
    assert load(over(path, "max_attempts = 2")).lease_seconds == 60
    base.write_text('-- /// queue\n-- extends = "middle.sql"\n-- ///\n')
    with pytest.raises(FormatError, match=r"base\.sql:2: extends: .*middle\.sql is this file, or"):
        load(path)
    base.unlink()
    with pytest.raises(FormatError, match=r"middle\.sql:2: extends: .*base\.sql: No such file"):
        load(path)


def test_a_mistake_is_told_where_it_stands(base: Path) -> None:
    """In whichever of the files."""
    base.write_text(BASE.replace("WHERE id = :id", "WHERE id = :idd OR $1"))
    with pytest.raises(QueueError, match=r"queues/base\.sql:21: parameters have names here"):
        load(over(base))
    with pytest.raises(QueueError, match=r"over\.sql:3: unknown key 'leases'; did you mean lease"):
        load(over(base, "leases = 1"))
    for key, value in (("include", '["a\\u0000b"]'), ("extends", '"a\\u0000b"')):
        (nul := base.with_name("nul.sql")).write_text(f"-- /// queue\n-- {key} = {value}\n-- ///\n")
        with pytest.raises(QueueError, match=rf"nul\.sql:2: {key}: no name of a file has a NUL"):
            load(nul)
    twice = "-- name: complete(id)!\nDELETE FROM jobs WHERE id = :id;\n" * 2
    with pytest.raises(QueueError, match=r"over\.sql:6: block complete stands already in line 4"):
        load(over(base, blocks=twice))


def test_a_break_is_accepted_in_the_file_itself(base: Path) -> None:
    """With those that stood in the other one, which a table here goes before."""
    base.write_text(BASE.replace("-- [states]", '-- [breaks]\n-- order = "known"\n-- [states]'))
    path = over(base)
    text = load(path).with_breaks({"fencing": "later"})
    path.write_text(text)
    assert load(path).breaks == {"order": "known", "fencing": "later"}
    assert len(text.splitlines()) == 6
    assert "TODO" not in base.read_text()


def test_what_an_edit_means_is_seen_in_the_digest(base: Path) -> None:
    """A token of a story must not outlive a change of what the queue is made of."""
    path = over(base)
    before = load(path).digest
    base.write_text(BASE.replace("ORDER BY id", "ORDER BY id DESC"))
    assert load(path).digest != before


def test_a_queue_is_shown_whole(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed text is a queue file, and the same queue."""
    assert run(["show", str(over(base, 'lease = "1 minute"'))]) == 0
    shown = base.parent.parent / "shown.sql"
    shown.write_text(capsys.readouterr().out)
    assert isinstance(whole := load(shown), SqlFileQueue)
    assert whole.lease_seconds == 60
    assert set(whole.blocks) == {"enqueue", "claim", "complete", "schema"}
    assert run(["show", "json:loads"]) == 4


def test_files_that_extend_one_another_without_end_are_refused(tmp_path: Path) -> None:
    """Also in a circle that goes over links."""
    for n in range(60):
        (tmp_path / f"{n}.sql").write_text(f'-- /// queue\n-- extends = "{n + 1}.sql"\n-- ///\n')
    with pytest.raises(FormatError, match="more than 50 files extend one another"):
        load(tmp_path / "0.sql")


def test_a_file_that_extends_nothing_is_as_it_was() -> None:
    """Byte for byte."""
    assert load(REFERENCE).whole == REFERENCE.read_text()
