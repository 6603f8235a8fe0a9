"""The picture of README.md: what a check finds in the tutorial's queue, drawn.

`python -m workshop.drawing` runs the check and writes docs/assets/story.svg.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from queueproof import check
from queueproof.report.draw import LINE, STYLE, draw
from queueproof.report.page import statements
from queueproof.report.story import Story

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "story.svg"
PAD = 12  # pixels
_LIGHT = "svg { background: #ffffff; }"
_DARK = """
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --ground: #151b23;
        --accent: #4493f8; --accepted: #d29922; --broken: #f85149; }
}
"""


def picture() -> str:
    """The story of a double claim in the queue that the tutorial begins with, as a file's text."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    sql, *_ = re.findall(r'(?ms)^```sql title="jobs.sql"\n(.*?)^```$', tutorial)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.sql"
        path.write_text(sql, encoding="utf-8")
        told = next(one.told for one in check(path, profile="quick").guarantees if one.told)
    assert isinstance(told, Story), told
    drawn = ET.fromstring(draw(told))  # noqa: S314 - our own
    width, height = (float(size) for size in drawn.attrib["viewBox"].split()[2:])
    lines: list[tuple[str, str, float]] = [(f"{told.guarantee}: {told.broken}", "who", -LINE)]
    for letter, _, sql in statements(told):
        for n, line in enumerate(sql.splitlines()):
            height += LINE
            lines.append((f"{'    ' if n else f'[{letter}] '}{line}", "sent", height))
    for text, kind, y in lines:
        ET.SubElement(drawn, "text", {"x": "2", "y": f"{y:g}", "class": kind}).text = text
    top, across, high = -PAD - 2 * LINE, width + 2 * PAD, height + 2 * PAD + 2 * LINE
    drawn.attrib |= {
        "viewBox": f"{-PAD} {top} {across:g} {high:g}",
        "width": f"{across:g}",
        "height": f"{high:g}",
        "xmlns": "http://www.w3.org/2000/svg",
    }
    style = ET.Element("style")
    style.text = _LIGHT + STYLE + _DARK
    drawn.insert(0, style)
    return ET.tostring(drawn, encoding="unicode") + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
