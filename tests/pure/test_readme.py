"""What the README says is so, and what messages refer to is there."""

import re
from pathlib import Path

import pytest

from queueproof.cli import run
from queueproof.cli.ends import exit_code_of
from queueproof.errors import ClassError, Exit, FormatError, QueueError
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.worker import WorkerError
from tests.fix_places import ROOT
from workshop import guarantees

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "strategies").glob("README.md")),
    *sorted((ROOT / "strategies").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
STORIES = (ROOT / "results" / "stories.md").read_text(encoding="utf-8")
TELLING = ["README.md", "CHANGELOG.md", "results/conformance.md", "docs/index.md"]


def test_every_exit_code_has_a_line() -> None:
    """Those of the command line, and two more for the signals that end it."""
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    assert {*Exit, 129, 143} == {int(code) for line in told for code in line.split(",")}


def test_guarantees_and_options_are_spelt_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option that it names is one, and so is each guarantee that it explains."""
    # The help, too, says how long a profile takes, and on what machine; defaults stand there plain.
    run(["check", "--help"])
    run(["replay", "--help"])
    told = capsys.readouterr().out
    words = re.sub(r"[\s│]+", " ", told)
    assert "For an SQL file, on two idle cores, quick takes 10 to 20 s" in words
    assert "[default: number of CPUs]" in words
    known = set(re.findall(r"--[a-z-]+", told))
    lines = re.findall(r"queueproof (?:check|replay) .*", README)
    named = set(re.findall(r" (--[a-z-]+)", " ".join(lines)))
    assert named
    assert named <= known
    ids = re.findall(r"queueproof explain ([\w-]+)", README)
    assert ids
    assert set(ids) <= set(CATALOGUE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_of_the_checkout(page: Path) -> None:
    """Pages are read there; the site and `make release` make addresses of them."""
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    near = [link for link in links if "://" not in link]
    assert [link for link in near if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", TELLING)
def test_a_finding_leads_to_its_steps(page: str) -> None:
    """On GitHub, too: each link to a story leads to one that its page has."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "results/stories.md" in text or "(stories.md" in text
    led = set(re.findall(r"\bstories\.md#([\w.-]+)", text))
    assert led <= set(re.findall(r'^<a id="([\w.-]+)"></a>$', STORIES, re.MULTILINE))


def test_the_page_of_the_guarantees_is_up_to_date() -> None:
    """`make docs` writes it."""
    assert guarantees.PAGE.read_text(encoding="utf-8") == guarantees.readme()


def test_readme_is_read_in_a_minute() -> None:
    """What is longer stands in docs/."""
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("file", ["README.md", "docs/index.md", "docs/about/faq.md", "action.yml"])
def test_how_long_a_check_takes_is_said_of_a_machine(file: str) -> None:
    """A busy machine takes several times as long, and who waits there is to know that."""
    text = (ROOT / file).read_text(encoding="utf-8")
    told = "10 to 20 s.*on two idle cores|on two idle cores.*10 to 20 s"
    assert re.search(told, text, re.DOTALL)


@pytest.mark.parametrize("kind", [FormatError, ClassError, WorkerError])
def test_references_can_be_read(kind: type[QueueError], capsys: pytest.CaptureFixture[str]) -> None:
    """Its last line is a command, which prints a part of the reference."""
    assert exit_code_of(kind("q: no good"), []) == Exit.UNUSABLE
    told, last = capsys.readouterr().err.splitlines()
    assert told == "q: no good"
    assert run(last.partition(": queueproof ")[2].split()) == Exit.HOLDS
    assert len(capsys.readouterr().out.splitlines()) > 20
