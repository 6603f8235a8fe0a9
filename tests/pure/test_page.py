"""A card as a page and on GitHub: what is shown; nothing a queue says becomes part of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from queueproof.cli import run
from queueproof.errors import QueueproofError
from queueproof.report.card import (
    NOT_JUDGED,
    Break,
    Card,
    Judgement,
    MutantJudgement,
    Place,
    Verdict,
)
from queueproof.report.data import to_data
from queueproof.report.draw import draw
from queueproof.report.forms import to_badge
from queueproof.report.github import SUMMARY_BYTES, commands, to_summary
from queueproof.report.page import painted, read_card, read_matrix, to_page
from queueproof.report.story import (
    Account,
    AllowedWait,
    Answered,
    Asked,
    Claimed,
    Enqueued,
    Event,
    Part,
    Passed,
    Sent,
    Story,
    Turn,
)
from queueproof.report.text import to_text
from queueproof.schedule.conditions import PLAIN

EVIL = """</script></svg></pre><script>alert(1)</script>'"><img src=x onerror=alert(1)>"""


def race(evil: str = "", *, name: str = "w2") -> Story:
    """Two workers, of whom one waits; every text holds what it is given."""
    updated = Sent(0, f"UPDATE{evil}", (("1", f"a{evil}"),))
    completes = Asked("complete", 0, (f"1{evil}",), 0.0, (Claimed(1, f"attempt 1{evil}"),))
    deadlock = Answered("error", f"40P01: deadlock{evil}")
    return Story(
        guarantee="non-blocking",
        broken=f"w1 had to wait{evil}",
        before=(Enqueued(f"1{evil}", 0, 0.0, 3),),
        conditions=PLAIN,
        turns=(
            Turn(name, (Asked("claim", 1, (), 0.0), updated)),
            Turn("clock", (Passed(33.4),)),
            Turn("w3", (Event("crash"),)),
            Turn("w1", (completes, Sent(1, "SELECT", ()), Event("waits", name), deadlock)),
        ),
        allowed=(AllowedWait("w1", name, f"1{evil}"),),
        statements=(f"UPDATE jobs -- {evil}", f"SELECT '{evil}', $${evil}$$"),
    )


def card(*judgements: Judgement, queue: str = "q.sql") -> Card:
    """A card of some verdicts."""
    return Card(queue, "PostgreSQL 18", 0, 1.0, judgements)


def broken(told: Story | Account, reason: str = "because") -> Judgement:
    """A guarantee with a story."""
    text = to_text(told)
    return Judgement(told.guarantee, "broken", reason, text, "TOKEN", {"runs": 7}, (), told)


class Tag(NamedTuple):
    """An element of a page."""

    name: str
    facts: dict[str, str | None]


class Reader(HTMLParser):
    """What a browser makes of a page: its elements, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append(Tag(tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.text += data


def hostile() -> Card:
    """A card in which all that a queue can say is an attack."""
    account = Account(
        "steady-cost",
        (Part("prose", EVIL), Part("sql", EVIL, EVIL), Part("plan", EVIL), Part("figures", EVIL)),
    )
    more = (Break(EVIL, EVIL, EVIL, race(EVIL)),)
    one = broken(race(EVIL, name=f"w{EVIL}"), EVIL)
    judgements = (
        replace(one, more=more, replay=EVIL, evidence={EVIL: 1}, place=Place(EVIL, 3)),
        broken(account, EVIL),
        Judgement("order", "broken", EVIL, EVIL, EVIL),
        Judgement("routing", "inconclusive", EVIL),
    )
    mutant = MutantJudgement(EVIL, "survived", EVIL, EVIL, EVIL)
    return read_card(Card(EVIL, EVIL, 0, 1.0, judgements, (mutant,), (EVIL,)).to_json())


@pytest.mark.parametrize("cards", [1, 2])
def test_what_a_queue_says_is_text(cards: int) -> None:
    """No payload, id, error, SQL or path becomes an element or an attribute of its own."""
    found = Reader(to_page([hostile()] * cards))
    names = {tag.name for tag in found.tags}
    assert names.isdisjoint({"script", "img", "iframe", "object", "link", "base", "form"})
    assert not [key for tag in found.tags for key in tag.facts if key.startswith("on")]
    assert found.text.count("<img src=x onerror=alert(1)>") > 30


def test_the_page_takes_nothing_from_elsewhere() -> None:
    """One file: no source, no import, and no address but those that a reader may follow."""
    page = to_page([card(broken(race()))])
    found = Reader(page)
    assert [tag.name for tag in found.tags if "src" in tag.facts] == []
    addresses = [(tag.name, tag.facts["href"]) for tag in found.tags if "href" in tag.facts]
    assert {name for name, _ in addresses} == {"a"}
    own = {tag.facts["id"] for tag in found.tags if "id" in tag.facts}
    assert [to for _, to in addresses if to and to.startswith("#") and to[1:] not in own] == []
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert 'class="drawn" role="group"' in page
    assert {tag.name for tag in found.tags}.isdisjoint({"script", "link"})


def test_the_broken_come_first_and_the_whole_table_last() -> None:
    """The broken come first, then the accepted, then every verdict; the others are counted."""
    accepted = replace(broken(race()), id="order", verdict="accepted")
    others = Judgement("routing", "not-offered", "r"), Judgement("single-claim", "holds", "r")
    found = Reader(to_page([card(*others, accepted, broken(race()))]))
    places = [found.text.index(what) for what in (": non-blocking", ": order", "Verdicts")]
    assert places == sorted(places)
    table = found.text[places[-1] :]
    worst_first = "non-blocking", "order", "single-claim", "routing", "not offered"
    places = [table.index(what) for what in worst_first]
    assert places == sorted(places)
    asked = [Judgement(name, "inconclusive", NOT_JUDGED) for name in ("order", "backoff")]
    page = to_page([card(Judgement("fencing", "broken", "because", "story", "T"), *asked)])
    assert "Not judged: the 2 other guarantees, because --fail-fast ended" in page
    assert NOT_JUDGED not in page
    assert ("queueproof replay q.sql fencing<" in page, "q.sql T<" in page) == (True, True)


def test_a_story_stands_beside_its_remedy_and_its_command() -> None:
    """The remedy, the harm, the evidence, and the command that runs it again."""
    text = Reader(to_page([card(broken(race()), queue="my queue.sql")])).text
    for what in ("How to fix it", "FOR UPDATE SKIP LOCKED in the claim", "In all runs: 7 runs."):
        assert what in text
    assert "queueproof replay 'my queue.sql' TOKEN" in text
    assert "Workers form a convoy" in text
    own = replace(broken(race()), remedy="Take deliveries one by one.")
    assert "Take deliveries one by one." in Reader(to_page([card(own)])).text


@pytest.mark.parametrize(
    ("verdict", "told"), [("holds", True), ("accepted", False), ("broken", False)]
)
def test_a_pass_says_how_much_it_is_worth(verdict: Verdict, *, told: bool) -> None:
    """A pass is no proof, and at quick the smallest check; an accepted break is no pass."""
    card = Card("q.sql", "p", 0, 1.0, [Judgement("order", verdict, "r")], profile="quick")
    page = to_page([card])
    assert "profile quick, seed 0" in page
    assert f"<title>{verdict}: q.sql</title>" in page
    assert ("no proof. Profile quick is the smallest check." in page) == told


def test_many_queues_are_a_table() -> None:
    """Each queue by each guarantee, each story behind its mark; a matrix has a row a queue."""
    page = to_page([card(broken(race())), card(Judgement("order", "holds", "r"), queue="b.sql")])
    found = Reader(page)
    index = page[: page.index("</table>")]
    assert '<a href="#non-blocking-1">✗</a>' in index
    assert '<td class="holds" title="order: holds">✓</td>' in index
    assert {"card-1", "card-2", "non-blocking-1"} <= {tag.facts.get("id") for tag in found.tags}
    matrix = read_matrix({"a<b>": {"fencing": "broken", "order": "holds"}})
    shown = to_page([], matrices=[("m.json", matrix)])
    assert "a&lt;b&gt;" in shown
    assert shown.count('title="fencing: broken">✗<') == 1
    assert shown.count('title="order: holds">✓<') == 1


def test_a_card_that_somebody_has_saved_is_shown(tmp_path: Path) -> None:
    """It needs no more of a story than its text, and may have an editor's mark before it."""
    found = json.loads(card(broken(race())).to_json())
    del found["guarantees"][0]["told"]
    page = to_page([read_card(json.dumps(found))])
    assert "<svg" not in page
    assert "complete job 1 (its first claim" in page
    assert "How to fix it" in page
    path = tmp_path / "card.json"
    path.write_text(card(broken(race())).to_json(), encoding="utf-8-sig")
    assert run(["report", str(path), "--html", str(tmp_path / "card.html")]) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "perhaps"},
        {"evidence": {"runs": "many"}},
        {"told": {"is": "poem"}},
        {"told": to_data(race()) | {"guarantee": "x"}},
        {"place": {"file": "q.sql"}},
        {"story": 5},
        {"more": 5},
        {"reason": "\ud800"},
    ],
)
def test_a_card_that_no_page_can_be_made_of_is_refused(change: dict[str, object]) -> None:
    """Whatever is wrong in a card.json is found as it is read."""
    found = json.loads(card(broken(race())).to_json())
    found["guarantees"][0] |= change
    with pytest.raises(QueueproofError, match="this is no card of queueproof") as refused:
        read_card(json.dumps(found))
    assert "Error(" not in str(refused.value)


def test_what_is_wrong_with_a_card_is_not_told_in_python() -> None:
    """A card of another tool, or that somebody has shortened."""
    found = json.loads(card(broken(race())).to_json())
    other = {**found, "guarantees": {"single-claim": "pass"}}
    short = {name: found[name] for name in found.keys() - {"seed", "seconds"}}
    wrong = ((other, "unexpected"), ([found], "of another type"), (short, "it lacks seed, seconds"))
    for one, told in wrong:
        with pytest.raises(QueueproofError, match=f"no card of queueproof: .*{told}"):
            read_card(json.dumps(one))


@pytest.mark.parametrize(
    "content", [[], {}, {"q": {}}, {"q": 1}, {"q": {"fencng": "holds"}}, {"q": {"order": "good"}}]
)
def test_what_is_no_matrix_is_seen(content: object) -> None:
    """A guarantee or a verdict that nobody knows is not shown as if it were one."""
    with pytest.raises(ValueError, match=r"unexpected|nobody knows"):
        read_matrix(content)


def test_sql_is_marked_and_stays_what_it_is() -> None:
    """Keywords, strings, parameters and comments are marked, and no character is lost."""
    sql = "\n  UPDATE jobs SET s = 'a' -- <why>\nWHERE id = :id AND n = $1 FOR UPDATE SKIP LOCKED\n"
    shown = painted(sql)
    assert Reader(str(shown)).text == sql
    for mark in ('k">SKIP<', "s\">'a'<", 'v">:id<', 'v">$1<', 'c">-- &lt;why&gt;'):
        assert mark.replace("'", "&#39;") in shown


@pytest.mark.parametrize(
    ("what", "times"), [("clock", 1), ("wait", 1), ("open", 1), ("cross", 2), ("breach", 1)]
)
def test_a_drawing_shows_what_happens(what: str, times: int) -> None:
    """The clock, a wait, what is begun and not ended, a crash and an error, and the breach."""
    assert draw(race()).count(f'class="{what}"') == times


def test_a_drawing_has_a_column_per_actor() -> None:
    """A line for each worker, with an arrow to who blocks; a letter leads to its SQL, if any."""
    drawn = draw(race())
    assert re.findall(r'class="who">(\w+)<', drawn) == ["w1", "w2", "w3"]
    assert "the clock moves on by 33.4 s" in drawn
    (arrow,) = re.findall('<line ([^>]*) class="arrow"', drawn)
    x1, y1, x2, y2 = map(float, re.findall(r'[xy][12]="([\d.]+)"', arrow))
    assert x1 < x2
    assert y1 == y2
    assert '<a href="#fencing-1-b"><text' in draw(race(), "fencing-1-")
    assert "<a " not in draw(race())


def at_line(reason: str = "w2 got job 1", story: str = "a story", line: int = 7) -> Judgement:
    """A break at a line of q.sql."""
    place = Place("db/q.sql", line)
    return Judgement("single-claim", "broken", reason, story, "TOKEN", place=place)


def test_each_story_is_an_error_at_its_line(tmp_path: Path) -> None:
    """Each where its last statement stands, in a file that is named from the checkout's root."""
    further = Break("w3 too", "another", None, place=Place("db/q.sql", 9))
    assert list(commands(card(replace(at_line(), more=(further,))))) == [
        "::error file=db/q.sql,line=7,title=queueproof%3A single-claim::w2 got job 1",
        "::error file=db/q.sql,line=9,title=queueproof%3A single-claim::w3 too",
    ]
    found = replace(at_line(), place=Place(str(tmp_path / "db" / "q.sql"), 3))
    (line,) = commands(card(found), str(tmp_path))
    assert line.startswith("::error file=db/q.sql,line=3,")


def test_an_annotation_is_of_what_is_broken_or_open() -> None:
    """Accepted breaks are notices, open questions warnings; each is one line and one command."""
    rest: tuple[Verdict, ...] = ("holds", "not-offered", "inconclusive")
    accepted = Judgement("fencing", "accepted", "late", "a story", None)
    found = commands(card(accepted, *(Judgement("order", one, "no run") for one in rest)))
    assert [line.partition(" ")[0] for line in found] == ["::notice", "::warning"]
    (line,) = commands(card(at_line("100%\n::error::x")))
    assert line.endswith("::100%25%0A::error::x")
    (line,) = commands(card(replace(at_line(), place=Place("a,b:c.sql", 1))))
    assert "file=a%2Cb%3Ac.sql,line=1," in line


def test_the_summary_has_a_row_per_guarantee_and_each_story_with_its_command() -> None:
    """A table, and what is broken to be run again: all of it text, and below GitHub's limit."""
    both = card(at_line(), Judgement("order", "holds", "12 runs"))
    told = to_summary(both, "queueproof replay q.sql")
    assert "| `single-claim` | ❌ broken | w2 got job 1 |" in told
    assert "| `order` | ✅ holds | 12 runs |" in told
    assert told.count("<details>") == 1
    assert "queueproof replay q.sql TOKEN" in told
    told = to_summary(card(at_line("a | b <img>", "```\n</details>\n````")), "")
    assert r"a \| b \<img\>" in told
    assert "`````\n```\n</details>\n````\n`````" in told
    told = to_summary(card(at_line(), at_line(story="x" * SUMMARY_BYTES)), "")
    assert told.count("<details>") == 1
    assert told.endswith("Further stories stand in the reports.\n")


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (("holds", "holds", "accepted", "not-offered"), "2 hold, 1 accepted"),
        (("holds", "broken", "inconclusive"), "1 broken, 1 inconclusive, 1 holds"),
        (("accepted", "inconclusive"), "1 inconclusive, 1 accepted"),
        (("not-offered",), "nothing judged"),
    ],
)
def test_a_badge_counts_each_verdict(verdicts: tuple[Verdict, ...], told: str) -> None:
    """An accepted break is counted beside what holds; the badge is XML and leads nowhere."""
    judgements = [Judgement(f"g{n}", verdict, "") for n, verdict in enumerate(verdicts)]
    badge = to_badge(card(*judgements, queue='<a href="x">&.sql'))
    root = ET.fromstring(badge)  # noqa: S314 - our own
    texts = [text for text in root.itertext() if text.strip()]
    assert texts == [f'<a href="x">&.sql: {told}', "queueproof", told]
    assert badge.count("http") == 1  # the namespace
