"""What a command writes harms nothing that it reads, and waits for no reader for ever."""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queueproof import waits
from queueproof.cli.files import append, refuse_outputs, write, write_new
from queueproof.errors import QueueproofError
from queueproof.queues.filetext import read
from tests.fix_commands import Command
from tests.fix_places import SKIP_LOCKED
from tests.fix_programs import Begin, finished
from tests.fix_queues import SOUND

SCHEMA = "CREATE TABLE jobs (id bigint);\n"
WORKER = "import sys\n"
HARMS = {
    "by its name": ["check", "q.sql", "--json", "q.sql"],
    "by a detour": ["check", "q.sql", "--html", "./q.sql"],
    "by its whole path": ["check", "q.sql", "--junit", "{place}/q.sql"],
    "by a link": ["check", "q.sql", "--badge", "link"],
    "through a link": ["check", "link", "--json", "q.sql"],
    "by a hard link": ["check", "q.sql", "--json", "hard"],
    "what it says of mutants": ["mutate", "q.sql", "--json", "q.equivalent.toml"],
    "an included file": ["check", "includes.sql", "--json", "schema.sql"],
    "the other version": ["check", "q.sql", "--with", "other.sql", "--json", "other.sql"],
    "the story's file": ["replay", "q.sql", "TOKEN", "--export", "link.spec"],
    "the worker": ["check", f"exec: {sys.executable} worker.py", "--json", "worker.py"],
    "the class": ["check", "outputs_mine:Mine", "--json", "outputs_mine.py"],
    "of mutants": ["mutate", "q.sql", "--json", "q.sql"],
    "of a benchmark": ["bench", "other.sql", "q.sql", "--json", "q.sql"],
    "another run's card": ["report", "card.json", "--html", "./card.json"],
}


def test_what_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    """A file written in part would keep the next attempt away; a loop is named, and stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(QueueproofError, match=r"cannot write .*: File too large"):
            write_new(tmp_path / "jobs.sql", "-- name: schema#\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*tmp_path.iterdir()]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    told = r"cannot write .*loop: Too many levels of symbolic"
    with pytest.raises(QueueproofError, match=told):
        refuse_outputs([loop], [])
    with pytest.raises(QueueproofError, match=told):
        write(loop, "")
    assert loop.is_symlink()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_server: None) -> Path:  # noqa: ARG001
    """A folder of queues, with other names for one of them; no server may be started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.sql").write_text(SKIP_LOCKED)
    (tmp_path / "other.sql").write_text(SKIP_LOCKED)
    (tmp_path / "link").symlink_to("q.sql")
    (tmp_path / "hard").hardlink_to(tmp_path / "q.sql")
    (tmp_path / "link.spec").symlink_to("q.sql")
    (tmp_path / "schema.sql").write_text(SCHEMA)
    head, mark, rest = SKIP_LOCKED.partition("-- /// queue\n")
    (tmp_path / "includes.sql").write_text(f'{head}{mark}-- include = ["schema.sql"]\n{rest}')
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "outputs_mine.py").write_text(SOUND)
    (tmp_path / "card.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("arguments", HARMS.values(), ids=HARMS)
def test_no_output_replaces_an_input(place: Path, arguments: list[str], command: Command) -> None:
    """Exit 4 with both names, and every file is as it was."""
    before = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
    ran = command(*(one.format(place=place) for one in arguments))
    assert (ran.code, "it is read here: name another file" in ran.err) == (4, True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("second", ["card.json", "./card.json", "{place}/card.json", "card_link"])
def test_two_outputs_are_not_one_file(place: Path, second: str, command: Command) -> None:
    """However the second is spelt, and whether or not the file is there yet."""
    (place / "card_link").symlink_to("card.json")
    for there in (True, False):
        if not there:
            (place / "card.json").unlink()
        outputs = ("--json", "card.json", "--html", second.format(place=place))
        ran = command("check", "q.sql", *outputs)
        assert (ran.code, "reports need a file each" in ran.err) == (4, True)


def test_the_job_summary_is_an_output_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """What GitHub appends to may not be the queue."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "q.sql"))
    ran = command("check", "q.sql", "--annotate", "github")
    assert (ran.code, "it is read here" in ran.err) == (4, True)


@pytest.mark.parametrize("put", [write, append])
def test_a_pipe_that_nobody_reads_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, str], None]
) -> None:
    """Nobody opens it, or somebody opens it and reads nothing: what is waited for is told."""
    monkeypatch.setattr(waits, "READER", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(QueueproofError, match=r"waited 0\.1 s for somebody to read .*pipe"):
        put(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(QueueproofError, match=r"waited 0\.1 s for somebody to read .*pipe"):
        put(pipe, "x" * 1_000_000)
    os.close(reader)


def test_a_terminal_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device takes as much as its buffer holds, and no more."""
    monkeypatch.setattr(waits, "READER", 0.1)
    master, slave = os.openpty()
    with pytest.raises(QueueproofError, match=r"waited 0\.1 s for somebody to read"):
        write(Path(os.ttyname(slave)), "x" * 1_000_000)
    os.close(master)
    os.close(slave)


def test_a_pipe_with_a_reader_gets_all_of_it(tmp_path: Path, begin: Begin) -> None:
    """More than a pipe holds, to a reader who comes when he likes."""
    pipe, copy = tmp_path / "pipe", tmp_path / "copy"
    os.mkfifo(pipe)
    code = "import sys; open(sys.argv[2], 'w').write(open(sys.argv[1]).read())"
    process = begin(sys.executable, "-c", code, str(pipe), str(copy))
    write(pipe, "x" * 1_000_000)
    process.wait(30)
    assert copy.read_text() == "x" * 1_000_000


def test_a_queue_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    """As from `<(generate)`; one that nobody writes into ends, and so does one without an end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] * 1_000)"
    process = begin(sys.executable, "-c", code, str(pipe), SKIP_LOCKED)
    assert read(pipe) == SKIP_LOCKED * 1_000
    process.wait(30)
    monkeypatch.setattr(waits, "READER", 0.1)
    with pytest.raises(QueueproofError, match=r"waited 0\.1 s for somebody to write into .*pipe"):
        read(pipe)
    with pytest.raises(QueueproofError, match="longer than 64 MiB"):
        read(Path("/dev/zero"))
    for endless in (pipe, Path("/dev/zero")):  # what `report` and --fail-if are given
        with pytest.raises(QueueproofError):
            waits.text(endless)


def test_what_is_in_another_encoding_is_told_what_to_do(tmp_path: Path) -> None:
    """A project's settings, a card: not with the words of Python's codecs."""
    (tmp_path / "pyproject.toml").write_text("é", "latin-1")
    with pytest.raises(QueueproofError, match=r"cannot read .*pyproject\.toml: save it as UTF-8"):
        waits.text(tmp_path / "pyproject.toml")


@pytest.mark.parametrize(
    ("before", "arguments", "told"),
    [
        ("", ["check", os.fsdecode(b"j\xff.sql")], r"'j\udcff.sql' is no UTF-8"),
        ("rmdir ../here;", ["guarantees"], "the folder that this was begun in is not there any"),
    ],
    ids=["a name that no report can hold", "a folder that is gone"],
)
def test_where_it_is_begun(tmp_path: Path, before: str, arguments: list[str], told: str) -> None:
    """Before anything starts: what is wrong, and exit code 4."""
    command = f'mkdir here && cd here && {before} exec "$@"'
    asked = ["bash", "-c", command, "bash", sys.executable, "-m", "queueproof", *arguments]
    done = finished(*asked, cwd=tmp_path)
    assert (done.returncode, told in done.stderr) == (4, True), done.stderr
