"""What is told of a guarantee, beside its record."""

from io import StringIO

import pytest

from queueproof.cli import run
from queueproof.doctor import Tool
from queueproof.errors import Exit
from queueproof.explain import defects, explain
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load, load_text
from queueproof.report.data import from_data
from queueproof.report.story import Story
from scenarios.matrix import stories
from tests.fix_commands import Command
from tests.fix_places import ROOT, STRATEGIES
from tests.fix_queues import queue_file


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_story_that_a_page_draws_is_of_the_defect_that_it_shows(name: str) -> None:
    """The diff of its example, or of the smallest defect, is shown, and that one's story drawn."""
    told = explain(CATALOGUE[name])
    shown, *others = defects(name)
    assert told.startswith(f"{name}: ")
    assert shown.diff in told
    if example := CATALOGUE[name].example:
        assert shown.name == f"strategies/broken/{example}.sql"
    else:
        assert 0 < shown.size <= min((other.size for other in others), default=shown.size)
    assert len(others) + 1 == len(list(STRATEGIES.glob(f"broken/{name.replace('-', '_')}_*.sql")))
    # `make results` keeps it as data; the SQL that it shows stands in that queue's file.
    path = shown.name.removesuffix(".sql").removeprefix("strategies/")
    recorded = [
        one for one in stories(ROOT / "results") if (one.queue, one.guarantee) == (path, name)
    ]
    assert recorded, f"no story is recorded of {path}: `make results` does that"
    story = from_data(recorded[0].told)
    assert story.guarantee == name
    file = load(STRATEGIES / f"{path}.sql").whole
    sent = set(story.statements if isinstance(story, Story) else ())
    assert [sql for sql in sent - {"ROLLBACK"} if sql not in file] == []


def test_what_a_guarantee_needs_is_said_where_a_bare_queue_lacks_it() -> None:
    """The words stand in the record of those, and of those only, that cannot be asked of it."""
    bare = Offer(load_text(queue_file(complete="", jobs=""), "bare.sql"), held=False)
    lacking = [name for name, one in CATALOGUE.items() if one.needs(bare) is not None]
    assert [name for name, one in CATALOGUE.items() if one.asks] == lacking != []


@pytest.mark.parametrize("width", [80, 120])
def test_prose_ends_at_the_edge_of_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At words; the SQL of a diff and addresses keep their lines."""
    monkeypatch.setenv("COLUMNS", str(width))
    tools = [Tool("a server", "unusable", "in /a " * 30, "this and that " * 10, "get one " * 20)]
    monkeypatch.setattr("queueproof.doctor.look", lambda: tools)
    for arguments in ([], ["guarantees"], ["explain", "fencing"], ["help"], ["doctor"]):
        told = StringIO()
        told.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdout", told)
        assert run(arguments) == Exit.HOLDS
        assert max(map(len, told.getvalue().partition("\n--- ")[0].splitlines())) <= width


def test_without_a_name_all_guarantees_are_listed(command: Command) -> None:
    """As `queueproof guarantees` does."""
    listed = command("explain")
    told, _, how = listed.out.partition("\n\n")
    assert (listed.code, len(told.splitlines())) == (Exit.HOLDS, len(CATALOGUE))
    assert how == "Explain one: queueproof explain fencing\n"
    assert command("guarantees") == listed
