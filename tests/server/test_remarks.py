"""What is said of somebody else's queues: the file it stands in, and the page it ends on."""

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from queueproof.errors import QueueproofError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import Card, Judgement, Verdict
from scenarios.matrix import PROGRAMS, REMARKS, STORIES, StoryLine, peers, read_remarks, stories
from tests.fix_histories import each
from tests.fix_places import ROOT, SKIP_LOCKED, STRATEGIES
from workshop.conformance import Failure, Row, _said, recorded, redrawn, render, write

GOOD = """
[other]
version = "2.0"
promise = "Nothing is lost."
source = "https://other.example/docs"
rests_on = ["no-lost-job", "crash-safe"]
[other.remarks.fencing]
means = "A late result counts."
documented = "by design"
source = "https://other.example/late"
[other.remarks.server-clock]
means = "It reads the client's clock."
documented = "model only"
source = "https://other.example/clock"
"""


def row(tmp_path: Path, verdicts: dict[str, Verdict]) -> Row:
    """Somebody else's queue in which all holds, but for these."""
    (tmp_path / "remarks.toml").write_text(GOOD, encoding="utf-8")
    all_hold: dict[str, Verdict] = dict.fromkeys(CATALOGUE, "holds")
    found = [
        Judgement(id_, verdict, "because", *(("a story", "a-token") if verdict == "broken" else ()))
        for id_, verdict in (all_hold | verdicts).items()
    ]
    card = Card("other.sql", "PostgreSQL", 0, 1.0, found)
    return Row("peers/other", card, peer=read_remarks(tmp_path / "remarks.toml")["other"])


def test_every_peer_says_what_it_promises() -> None:
    """Each design in strategies/peers/ has a table of its own in the remarks."""
    said = read_remarks(STRATEGIES / REMARKS)
    assert {Path(name).name for name in peers(STRATEGIES)} <= set(said)


@each("""
    old => new => message
    remarks.fencing => remarks.fencin => [other]: unknown guarantee 'fencin'; did you mean
    "crash-safe" => "crashsafe" => [other]: unknown guarantee 'crashsafe'; did you mean
    "by design" => "yes" => [other.remarks.fencing]: `documented` is one of: by design,
    version = "2.0" => => [other]: write version, promise, source, each with a text
    version = "2.0" => version = 2.0 => [other]: write version, promise, source, each with
    means = "A late => mean = "A late => [other.remarks.fencing]: write means, documented,
    [other] => [other => (at line 2, column 7)
""")
def test_a_mistake_is_told_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    """What cannot be read is an error that names the file and the table."""
    path = tmp_path / "remarks.toml"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(QueueproofError) as raised:
        read_remarks(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("verdicts", "kept"),
    [
        ({"fencing": "broken"}, "yes: `no-lost-job`, `crash-safe`"),
        ({"crash-safe": "inconclusive"}, "?: `no-lost-job`, `crash-safe`"),
        ({"crash-safe": "broken", "no-lost-job": "inconclusive"}, "no: `crash-safe` ✗"),
    ],
)
def test_a_promise_is_kept_or_not(tmp_path: Path, verdicts: dict[str, Verdict], kept: str) -> None:
    """A break of anything else in the catalogue is no broken promise."""
    assert kept == row(tmp_path, verdicts).kept()


def test_the_page_says_what_a_break_means(tmp_path: Path) -> None:
    """Breaks and remarks stand below the matrix; what nobody has looked at is said to be so."""
    links = {"fencing": "stories.jsonl#other.fencing"}
    found = replace(row(tmp_path, {"fencing": "broken", "order": "inconclusive"}), links=links)
    page = render([found])
    story, late = (
        "<!--[-->(✗)<!--](stories.jsonl#other.fencing)-->",  # known, since it is documented
        "[by design](https://other.example/late)",
    )
    clock = "[model only](https://other.example/clock)"
    assert f"| other (model) | `fencing` | {story} | A late result counts. | {late} |" in page
    assert f"| `server-clock` | ✓\\* | It reads the client's clock. | {clock} |" in page
    assert "| other (model) | `order` | ? | not examined yet |  |" in page
    (line,) = (line for line in page.splitlines() if line.startswith("| [other](") and "✓" in line)
    assert line.count(" ✓ |") == len(CATALOGUE) - 3  # beside the break, the doubt and the remark
    assert "| other (model) | `backoff`" not in page


def test_a_page_is_written_without_what_could_not_be_judged(tmp_path: Path) -> None:
    """Its recorded verdicts and stories stay, those of others are new, and the page names it."""
    lost = StoryLine("sound/lost", "fencing", "an old reason", "an old token", None)
    gone = lost._replace(queue="peers/other", guarantee="order")
    lines = "".join(f"{json.dumps(one._asdict())}\n" for one in (gone, lost))
    (tmp_path / STORIES).write_text(f"{{}}\n{lines}")
    (tmp_path / "conformance.json").write_text('{"sound/lost": {"fencing": "broken"}, "x": {}}')
    failed = Failure("sound/lost", "internal error")
    write([row(tmp_path, {"fencing": "broken"})], tmp_path, [failed], "pgbouncer 1.18.0")
    recorded = json.loads((tmp_path / "conformance.json").read_text())
    assert recorded.keys() == {"peers/other", "sound/lost"}
    new = StoryLine("peers/other", "fencing", "because", "a-token", None)
    assert stories(tmp_path) == [new, lost]
    where = (tmp_path / STORIES).read_text().partition("\n")[0]
    known = {"postgres": "PostgreSQL", "pooler": "pgbouncer 1.18.0", "versions": {}}
    assert json.loads(where) == known
    page = (tmp_path / "conformance.md").read_text()
    assert "**sound/lost** could not be judged" in page
    assert "`pooler-safe` was asked with pgbouncer 1.18.0." in page


def test_one_queue_alone_can_be_judged_anew(tmp_path: Path) -> None:
    """What is recorded of the others stays: verdicts, stories, and the words of their rows."""
    (tmp_path / "peers").mkdir()
    (tmp_path / REMARKS).write_text(GOOD, encoding="utf-8")
    results = tmp_path / "results"
    for name in ("one", "two"):
        text = f"-- breaks: order\n\n{SKIP_LOCKED}"
        (tmp_path / f"{name}.sql").write_text(text, encoding="utf-8")
    found = (Judgement("order", "broken", "the | last came first", "a story", "token"),)
    rows = [Row(name, Card(name, "PostgreSQL", 0, 1.0, found), "order") for name in ("one", "two")]
    write(rows, results)
    before = (results / "conformance.md").read_text(encoding="utf-8")
    others = recorded(["two"], results, tmp_path, "PostgreSQL", "")
    write([rows[0], *others], results, beside=["two"])
    assert (results / "conformance.md").read_text(encoding="utf-8") == before
    assert [one.queue for one in stories(results)] == ["one", "two"]
    with pytest.raises(QueueproofError, match=r"never judged: three; name them, too"):
        recorded(["three"], results, tmp_path, "PostgreSQL", "")
    with pytest.raises(QueueproofError, match=r"this machine has PostgreSQL 19.*: judge all"):
        recorded(["two"], results, tmp_path, "PostgreSQL 19", "")


@pytest.mark.slow  # asks for what the extra `peers` installs
def test_a_page_has_the_version_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has the installed version, which a remark is about, and its package manager pins."""
    pinned = json.loads((STRATEGIES / "peers" / "package.json").read_text())["dependencies"]
    said = read_remarks(STRATEGIES / REMARKS)
    for name, program in PROGRAMS.items():
        about = said[Path(name).name].version.partition(",")[0]
        if program.file.endswith(".mjs"):
            assert pinned[program.packages[0]] == about
        else:
            assert metadata.version(program.packages[0]) == about
    name = "peers/procrastinate"
    peer = _said([name], STRATEGIES)[name]
    driver = f"psycopg {metadata.version('psycopg')}"
    assert peer.version == f"{metadata.version('procrastinate')}, {driver}"
    page = render([replace(row(tmp_path, {}), name=name, peer=peer)])
    assert f" | {peer.version} |" in page
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99.0")
    with pytest.raises(QueueproofError, match=r"is about 3\..*, and 99.0 is installed"):
        _said([name], STRATEGIES)


def test_the_steps_of_real_libraries_are_those_that_are_recorded() -> None:
    """`python -m workshop.conformance --redraw` writes the page, and judges nothing."""
    results = ROOT / "results"
    rows, pooler = redrawn(results, STRATEGIES)
    page = render(rows, (), pooler, "stories", stories(results))
    assert page == (results / "stories.md").read_text(encoding="utf-8")
