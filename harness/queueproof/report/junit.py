"""The card as JUnit XML, which CI servers show: one test case per guarantee."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.report.card import Break, Card, Judgement

_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2
_TAGS = {"broken": "failure", "inconclusive": "error", "not-offered": "skipped"}


def to_junit(card: Card) -> str:
    """The card in the dialect that Jenkins, GitLab and GitHub's reporters read."""
    verdicts = [judgement.verdict for judgement in card.guarantees]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count("broken")),
        "errors": str(verdicts.count("inconclusive")),
        "skipped": str(verdicts.count("not-offered")),
        "time": f"{card.seconds:.2f}",
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": _legal(card.queue), **counts})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("postgres", card.postgres), ("seed", str(card.seed))):
        ET.SubElement(properties, "property", {"name": name, "value": _legal(value)})
    for judgement in card.guarantees:
        _case(suite, card.queue, judgement)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, queue: str, judgement: Judgement) -> None:
    place = {"file": _legal(queue)} if queue.endswith(".sql") else {}
    if judgement.place is not None:
        place = {"file": _legal(judgement.place.file), "line": str(judgement.place.line)}
    named = {"classname": _legal(queue), "name": judgement.id}
    time = {"time": f"{judgement.seconds:.2f}"}
    case = ET.SubElement(suite, "testcase", named | time | place)
    said = f"{judgement.verdict}: {judgement.reason}\n"
    text = f"{CATALOGUE[judgement.id].sentence}\n{said}"
    if judgement.stories:
        accepted = [said] if judgement.verdict == "accepted" else []  # with why it is
        text = "\n".join([*accepted, *map(_told, judgement.stories)])
    text = _legal(text)
    if tag := _TAGS.get(judgement.verdict):
        outcome = ET.SubElement(case, tag, {"message": _legal(judgement.reason)})
        outcome.text = text if judgement.verdict != "not-offered" else None
    else:
        ET.SubElement(case, "system-out").text = text


def _told(found: Break) -> str:
    token = f"\nReplay token: {found.replay}\n" if found.replay else ""
    return f"{found.story}\n{token}"


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
