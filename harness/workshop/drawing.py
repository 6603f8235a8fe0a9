"""The picture of README.md: what a check finds in the tutorial's queue, drawn.

`python -m workshop.drawing` runs the check and writes docs/assets/story.svg.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from queueproof import check
from queueproof.report.draw import STYLE, draw
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
    (sql,) = re.findall(
        r'^```sql title="jobs.sql"\n(.*?)^```$', tutorial, re.MULTILINE | re.DOTALL
    )[:1]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.sql"
        path.write_text(sql, encoding="utf-8")
        (found,) = check(path, only=["single-claim"], profile="quick").guarantees
    assert isinstance(found.told, Story), found.reason
    drawn = ET.fromstring(draw(found.told))  # noqa: S314 - our own
    width, height = (float(size) for size in drawn.attrib["viewBox"].split()[2:])
    drawn.attrib |= {
        "viewBox": f"{-PAD} {-PAD} {width + 2 * PAD:g} {height + 2 * PAD:g}",
        "width": f"{width + 2 * PAD:g}",
        "height": f"{height + 2 * PAD:g}",
        "xmlns": "http://www.w3.org/2000/svg",
    }
    style = ET.Element("style")
    style.text = _LIGHT + STYLE + _DARK
    drawn.insert(0, style)
    return ET.tostring(drawn, encoding="unicode") + "\n"


def main() -> int:
    """Write the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
