"""The pages, opened in headless Chromium: on a desk and on a phone, without a network."""

import html
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from tests.fix_places import ROOT, text_of
from tests.fix_programs import finished

pytestmark = pytest.mark.browser

DESK, PHONE = 1280, 390  # pixels
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# What a page does is asked from outside it, so that a page without scripts can be asked as well.
AROUND = """<!doctype html><title>not loaded</title>
<iframe style="width: {width}px; height: 900px; border: 0" src="{name}"></iframe>
<script>
document.querySelector("iframe").onload = event => {{
  const page = event.target.contentDocument
  const drawn = [...page.querySelectorAll("svg")].filter(svg => svg.checkVisibility())
  document.title = JSON.stringify({{
    title: page.title,
    width: page.documentElement.scrollWidth,
    drawings: drawn.length,
    empty: drawn.filter(svg => !svg.getBoundingClientRect().height).length,
    foreign: event.target.contentWindow.performance.getEntriesByType("resource")
      .map(entry => entry.name).filter(name => !name.startsWith(location.origin)),
    text: page.body.textContent,
  }})
}}
</script>
"""
ASK = """<script>
axe.run().then(found => {
  document.title = JSON.stringify(found.violations.map(one => `${one.id}: ${one.nodes[0].html}`))
})
</script>
"""
POLICY = re.compile("<meta http-equiv=.Content-Security-Policy.[^>]*>")  # it forbids scripts
CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)")
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
EVIL = "</script><script>document.title = 'evil'</script><img src=x onerror=alert(1)>"


class Opened(NamedTuple):
    """What was seen of a page."""

    said: list[str]  # the console's lines, of which a sound page has none
    title: str
    width: int  # pixels that it takes; more than the window's: a reader has to scroll sideways
    drawings: int  # visible SVG elements
    empty: int  # those of them without a height
    foreign: list[str]  # addresses elsewhere that it loads from, or tries to
    text: str  # all that is in it, opened or not


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base class's
        """Say nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; where."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def shown(page: Path, text: str, folder: Path | None, width: int = DESK) -> tuple[Any, list[str]]:
    """Show what is told about a page, from beside it: its title, which is JSON, and the console.

    The page's own folder is served where no other is named.
    """
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert chromium, "there is no Chromium here: apt-get install chromium"
    folder = folder or page.parent
    beside = page.with_name(f"beside-{page.name}")
    beside.write_text(text, encoding="utf-8")
    with serving(folder) as address:
        done = finished(
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width + 20},900",
            f"{address}/{beside.relative_to(folder).as_posix()}",
            check=True,
        )
    told = TITLE.search(done.stdout)
    assert told, done.stdout
    said = [line for line in CONSOLE.findall(done.stderr) if "favicon.ico" not in line]
    return json.loads(html.unescape(told[1])), said


def opened(page: Path, width: int, folder: Path | None = None) -> Opened:
    """Open a page in a window so many pixels wide."""
    found, said = shown(page, AROUND.format(width=width, name=page.name), folder, width)
    return Opened(said, **found)


def barriers(page: Path, folder: Path | None = None) -> list[str]:
    """The barriers that axe finds for people who read by ear or go by keys."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    script = f"<title>not asked</title><script>{axe}</script>{ASK}"
    found, _ = shown(page, POLICY.sub("", page.read_text("utf-8")) + script, folder)
    return [str(one) for one in found]


def command(*arguments: str, exits: int = 0) -> None:
    """Run queueproof."""
    done = finished(sys.executable, "-m", "queueproof", *arguments)
    assert done.returncode == exits, done.stderr


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The card of a queue that breaks a guarantee, and whose SQL would like to be a page."""
    folder = tmp_path_factory.mktemp("card")
    text = text_of("broken/retry_given_fail_ends")
    assert text.count("left(:error,") == 1
    queue = folder / "q.sql"
    queue.write_text(text.replace("left(:error", f"left(:error || $${EVIL}$$"), encoding="utf-8")
    page = folder / "card.html"
    asked = ("--only", "retry-given", "--profile", "quick", "--fail-fast", "--html", str(page))
    command("check", str(queue), *asked, exits=1)
    return page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that is recorded in results/."""
    page = tmp_path_factory.mktemp("report") / "report.html"
    recorded = [str(ROOT / "results" / name) for name in ("throughput.json", "conformance.json")]
    command("report", *recorded, "--html", str(page))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation."""
    folder = tmp_path_factory.mktemp("site")
    build = ("build", "--quiet", "--site-dir", folder)
    finished(sys.executable, "-m", "mkdocs", *build, cwd=ROOT, check=True)  # as `make docs`
    return folder


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_card_opens(card: Path, width: int) -> None:
    """The story is drawn, or listed where that has no room; what the queue's SQL says is text."""
    found = opened(card, width)
    assert not found.said + found.foreign
    assert "evil" not in found.title
    assert found.width <= width
    assert found.drawings == (width == DESK)
    assert not found.empty
    assert EVIL in found.text


def test_nothing_keeps_readers_out(card: Path, report: Path, site: Path) -> None:
    """All pages keep axe's rules, and one that breaks some is seen."""
    pages = ["index", "guarantees/fencing", "results/conformance", "results/throughput"]
    assert not barriers(card) + barriers(report)
    assert not [one for name in pages for one in barriers(site / f"{name}.html", site)]
    broken = card.with_name("broken.html")
    broken.write_text("<!doctype html><title>one</title><svg role=img></svg>", encoding="utf-8")
    assert {one.partition(":")[0] for one in barriers(broken)} >= {"html-has-lang", "svg-img-alt"}


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_report_opens(report: Path, width: int) -> None:
    """Its charts are drawn, and it fits."""
    found = opened(report, width)
    assert not found.said + found.foreign
    assert found.width <= width
    assert found.drawings
    assert not found.empty
    assert "lease_table" in found.text


@pytest.mark.parametrize(
    "name", ["index", "tutorial", "guarantees/fencing", "howto/bench", "results/conformance"]
)
def test_the_site_opens(site: Path, name: str) -> None:
    """Its pages load what they need from their own folder, and fit."""
    found = opened(site / f"{name}.html", PHONE, site)
    assert not found.said + found.foreign
    assert found.width <= PHONE
    assert "queueproof" in found.title


def test_a_page_that_fails_is_seen(tmp_path: Path) -> None:
    """What is asked here can be answered otherwise."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><title>one</title><script>undefined.one</script>"
        "<img src=https://example.org/a.png><svg height=0></svg>"
        "<body><div style='width: 2000px'>two</div>"
        "<style onload=\"document.title = 'evil'\"></style>",
        encoding="utf-8",
    )
    found = opened(page, PHONE)
    assert ["TypeError" in line for line in found.said] == [True]
    assert found.foreign == ["https://example.org/a.png"]
    assert (found.title, found.drawings, found.empty, found.text) == ("evil", 1, 1, "two")
    assert found.width > PHONE
