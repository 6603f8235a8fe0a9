"""Pages of the documentation that come from elsewhere: the catalogue, the code and results/.

MkDocs calls this as a hook (`make docs`). Nothing that it makes is committed, so no page can say
other than what it is made of.
"""

from __future__ import annotations

import html
import itertools
import json
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from queueproof.cli.app import app
from queueproof.explain import defects, facts
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.guarantees.guarantee import Guarantee
from queueproof.report import page, text
from queueproof.report.data import from_data
from queueproof.report.draw import STYLE, draw
from queueproof.report.story import Story, Told
from scenarios.matrix import MARKS, NAMES, REMARKS, STORIES, StoryLine, read_remarks, stories, typed

ROOT = Path(__file__).parents[2]
PAGES: Mapping[str, str] = {
    "CHANGELOG.md": "about/changes.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "SECURITY.md": "about/security.md",
    "harness/queueproof/queues/templates/README.md": "reference/worker.md",
    "results/conformance.md": "results/conformance.md",
    "results/controls.md": "results/controls.md",
    "results/old-snapshot.md": "results/old-snapshot.md",
    "results/throughput.md": "results/throughput.md",
    "results/throughput-figures.md": "results/throughput-figures.md",
    "strategies/README.md": "reference/file-format.md",
    "strategies/RULES.md": "reference/rules.md",
}
"""Pages that are read where the code is, too, by their place there."""
PLACES: Mapping[str, str] = {
    "harness/queueproof/cli/app.py": "reference/command-line.md",
    "harness/queueproof/report/card.schema.json": "reference/card.md",
    "strategies": "queues/index.md",
    "strategies/broken": "stories/all.md",
    "strategies/deploy": "queues/index.md#deploy",
    "strategies/peers": "queues/index.md#peers",
    "strategies/sound": "queues/index.md#sound",
}
"""The other places that they link to."""
FOLDERS: Mapping[str, str] = {
    "": "`skip_locked`, and queues that differ from it in one idea.",
    "sound": "Sound designs that have little in common: a false alarm would show.",
    "deploy": "New versions of `skip_locked`, to be rolled out beside it.",
    "peers": "Designs of real queues, and workers that drive real libraries.",
}
LANGUAGES: Mapping[str, str] = {".sql": "postgresql", ".py": "python", ".mjs": "javascript"}

CLAUSE = 40  # characters from which on a remedy's SQL is a block
SEARCH: dict[str, float] = {
    "index": 3,
    "guarantees/index": 1,  # each guarantee has a page of its own
    "guarantees/": 4,
    "howto/cluster": 0.5,  # it has a word of everything
    "howto/": 2,
    "tutorial": 3,
    "about/faq": 4,
    "about/contributing": 0.5,
    "results/conformance": 4,
    "results/controls": 0.5,
    "reference/": 0.7,
    "queues/": 0,
    "stories/all": 2,  # by the name of a library
    "stories/": 0,
}
"""The weight of a hit on a page in the search, by how its place begins; 0: it is left out."""

REPOSITORIES: Mapping[str, str] = {
    "dbos-transact-py": "dbos-inc",
    "delayed_job_active_record": "collectiveidea",
    "eliza": "elizaOS",
    "good_job": "bensheldon",
    "oban": "oban-bg",
    "odd-jobs": "saurabhnanda",
    "pg-boss": "timgit",
    "pgmq": "pgmq",
    "pgqueuer": "janbjorge",
    "procrastinate": "procrastinate-org",
    "river": "riverqueue",
    "solid_queue": "rails",
}
"""Whose projects are, that the heads of broken queues name with an issue: `river#1302`."""

_ISSUE = re.compile(r"(?P<name>[\w-]+)#(?P<number>\d+)")
PICTURE = "assets/story.svg"
_PICTURE = re.compile(rf"!\[[^]]*\]\({re.escape(PICTURE)}\)")
_CHART = re.compile(r"!\[[^]]*\]\((\S+\.svg)\)")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> None:
    """Put the page of each guarantee into the navigation."""
    nav: Any = config.nav
    sections = itertools.chain(*(part for entry in nav for part in entry.values()))
    section = next(one for one in sections if isinstance(one, dict) and "Guarantees" in one)
    section["Guarantees"] += [{name: f"guarantees/{name}.md"} for name in CATALOGUE]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what is made to the pages that were written by hand."""
    for place, content in _made():
        files.append(File.generated(config, place, content=content))


def _made() -> Iterator[tuple[str, str]]:
    for source, place in PAGES.items():
        content = _with_links(_CHART.sub(_panels, _source(source)), source, place)
        # The matrix takes the room of the table of contents.
        yield place, _wide(content) if 'class="matrix"' in content else content
    yield "guarantees/index.md", _guarantees()
    for guarantee in CATALOGUE.values():
        yield f"guarantees/{guarantee.id}.md", _wide(_guarantee(guarantee))
    yield from _stories()
    yield from _queues()
    command = typer.main.get_command(app)
    told = get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="queueproof", title="Command line"
    )
    yield "reference/command-line.md", told
    yield "reference/card.md", _card()
    yield "assets/story.css", STYLE


def _panels(found: re.Match[str]) -> str:
    """A chart's panels, which flow and have the page's colours, in place of its file."""
    panels = re.findall(r"^<svg x=.*</svg>$", _source(f"results/{found[1]}"), re.MULTILINE)
    return f'<div class="panels" data-search-exclude>{"".join(panels)}</div>'


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A page of docs/ links files of the repository, so that it can be read there as well."""
    name = page.file.src_uri
    weight = next((one for place, one in SEARCH.items() if name.startswith(place)), 1)
    page.meta["search"] = {"boost": weight} if weight else {"exclude": True}
    if page.file.generated_by:
        return markdown
    return _with_links(_PICTURE.sub(_inline, markdown), f"docs/{name}", name)


def _inline(_: re.Match[str]) -> str:
    """The drawn story within the page, so that it has the page's colours, and no ground."""
    drawn = re.sub(r"<style>.*?</style>", "", _source(f"docs/{PICTURE}"), flags=re.DOTALL)
    return f'<div class="figure" data-search-exclude>{drawn.strip()}</div>'


# The label of a section that is a page too is empty; its title stands inside.
_SECTION = re.compile(
    r'aria-labelledby="(__nav_\d+)_label"(?=.*?for="\1">.*?</span>\s*([^<]+?)\s*</label>)',
    re.DOTALL,
)
_SIGN = re.compile(rf"(?<=>)({'|'.join(map(re.escape, MARKS.values()))})\*?(?=<)")


def on_post_page(output: str, **_: object) -> str:
    """The page with what the theme lacks: names of parts, and wide ones that keys can scroll."""
    named = _SIGN.sub(_coloured, output) if 'class="matrix"' in output else output
    named = named.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    named = _SECTION.sub(r'aria-label="\2"', named)
    named = named.replace("<table>", '<table tabindex="0">')
    return named.replace("<pre><span></span><code>", '<pre><span></span><code tabindex="0">')


def _coloured(found: re.Match[str]) -> str:
    """A sign of the matrix in the colour of its verdict."""
    verdict = next(name for name, mark in MARKS.items() if mark == found[1])
    return f'<span class="{verdict}">{found[0]}</span>'


def _with_links(markdown: str, source: str, place: str) -> str:
    """A page of the repository, with its links as they are on the site."""

    def on_site(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        there = _place(target, found[2] or "")
        if there is None:
            raise PluginError(f"{source}: the site has no place for its link to {target}")
        there, _, anchor = there.partition("#")
        way = posixpath.relpath(there, posixpath.dirname(place))
        return way + (f"#{anchor}" if anchor else found[2] or "")

    # What is only for the site is a comment elsewhere.
    return _LINK.sub(on_site, re.sub(r"<!--(.*?)-->", r"\1", markdown, flags=re.DOTALL))


def _source(name: str) -> str:
    """The text of a file of the repository, without which there is no site."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        writes = "`make results` writes it" if name.startswith("results/") else "it is in git"
        raise PluginError(f"{name} is missing: {writes}") from None


@cache
def _recorded() -> list[StoryLine]:
    """The stories that `make results` has written."""
    try:
        return stories(ROOT / "results")
    except (ValueError, TypeError) as error:
        raise PluginError(f"results/{STORIES}: {error}; `make results` writes it anew") from None


def _told(line: StoryLine) -> Told:
    try:
        return from_data(line.told)
    except ValueError as error:
        where = f"results/{STORIES}, {line.queue}, {line.guarantee}"
        raise PluginError(f"{where}: {error}; `make results` writes it anew") from None


def _place(target: str, fragment: str = "") -> str | None:
    """The place on the site of a file of the repository; with an anchor if it is part of a page."""
    if target in {f"results/{STORIES}", "results/stories.md"}:
        queue, _, guarantee = fragment.removeprefix("#").partition(".")
        return f"stories/{guarantee}.md#{queue}" if guarantee else "stories/all.md"
    if target == "harness/queueproof/guarantees":
        return f"guarantees/{fragment.removeprefix('#') or 'index'}.md"
    path = Path(target)
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if path.parts[:2] == ("strategies", "broken") and path.suffix == ".sql":
        head = (ROOT / path).read_text(encoding="utf-8").partition("\n")[0]
        return f"stories/{head.removeprefix('-- breaks: ')}.md#{path.stem}"
    if path.parts[0] == "strategies" and path.suffix in {*LANGUAGES, ".toml"}:
        return f"queues/{path.relative_to('strategies').as_posix()}.md"
    return PAGES.get(target) or PLACES.get(target)


def _queues() -> Iterator[tuple[str, str]]:
    """The queues that are not broken on purpose, each whole, and their index."""
    index = ["# Queues"]
    for folder, what in FOLDERS.items():
        heading = f"## {folder.title() or 'Strategies'} {{ #{folder or 'strategies'} }}"
        index += ["", heading, what, "", "| file | |\n|---|---|"]
        for path in sorted((ROOT / "strategies" / folder).iterdir()):
            if path.suffix not in {*LANGUAGES, ".toml"} or path.stem == "__init__":
                continue
            place = posixpath.join(folder, f"{path.name}.md")
            language = LANGUAGES.get(path.suffix, "toml")
            whole = _fenced(language, path.read_text("utf-8"))
            yield f"queues/{place}", f"# {path.name}\n\n{whole}"
            if path.suffix in LANGUAGES:
                index.append(f"| [{path.name}]({place}) | {_plain(_first_sentence(path))} |")
    yield "queues/index.md", "\n".join(index)


def _first_sentence(path: Path) -> str:
    """The first sentence of a file on itself, past what it breaks and what it stands beside."""
    told = re.sub(r"^-- \w+: \S+\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    comment = itertools.takewhile(lambda line: line.strip("-/ "), told.splitlines())
    words = " ".join(line.removeprefix('"""').strip("-/ ") for line in comment)
    return re.split(r"(?<=[^.]\.) (?=[A-Z])", words, maxsplit=1)[0].removesuffix(":")


def _guarantees() -> str:
    told = (f"| [`{one.id}`]({one.id}.md) | {_plain(one.sentence)} |" for one in CATALOGUE.values())
    return (
        "# Guarantees\n\nWhat a queue is judged by. Each page has what `queueproof explain` prints,"
        " and a story.\n\n| id | what it says |\n|---|---|\n" + "\n".join([*told, ""])
    )


def _guarantee(guarantee: Guarantee) -> str:
    shown, *others = defects(guarantee.id)
    name = posixpath.basename(shown.name.removesuffix(".sql"))
    of = f"broken/{name}", guarantee.id
    recorded = [one for one in _recorded() if (one.queue, one.guarantee) == of]
    if not recorded:
        raise PluginError(f"no story is recorded of {shown.name}: `make results` does that")
    known = facts(guarantee)
    del known["Why it matters"]
    parts = [
        f"# {guarantee.id}",
        f"**{_plain(guarantee.sentence)}** Otherwise {_plain(guarantee.why)}.",
        # A heading counts as much as a title in the search: no page that lacks a word comes first.
        f"## Also called: {_plain(known.pop('Also called').rstrip('.'))} {{ .also }}",
        "## An example { data-search-exclude }",
        _prose(shown.why),
        _drawn(_told(recorded[0])),
        (
            f"[The command that replays it](../stories/{guarantee.id}.md#{name})"
            f"{', and other ways in which queues break this' if others else ''}."
        ),
        "## How to fix it",
        _mended(known.pop("How to fix it")),
        "## The example, fixed { data-search-exclude }",
        _fenced("diff", shown.diff),
    ]
    for heading, words in known.items():
        # A page that only links a library must not come before the verdicts on it.
        parts += [f"## {heading}{' { data-search-exclude }' * (heading == 'See')}", _prose(words)]
        if heading == "See":
            parts += _seen(one.why for one in (shown, *others))
    return "\n\n".join(parts)


def _mended(remedy: str) -> str:
    """A remedy, with each whole clause of its SQL set as a block."""
    parts, words = [], ""
    for number, part in enumerate(re.split("`([^`]+)`", remedy)):
        if number % 2 == 0:
            words += part
        elif len(part) < CLAUSE:
            words += f"`{part}`"
        else:
            parts += [_prose(words.lstrip(".,:; ")), _fenced("postgresql", part)]
            words = ""
    return "\n\n".join(filter(None, [*parts, _prose(words.lstrip(".,:; "))]))


def _prose(words: str) -> str:
    """Words that are no Markdown, but for the code between backticks."""
    return "".join(
        part if number % 2 else _plain(part)
        for number, part in enumerate(re.split("(`[^`]+`)", words))
    )


def _seen(reasons: Iterable[str]) -> Iterator[str]:
    """The public issues that broken queues name, as one line; nothing where they name none."""
    found = {issue[0]: issue for why in reasons for issue in _ISSUE.finditer(why)}
    if found:
        yield "Seen in " + ", ".join(_issue(found[name]) for name in sorted(found)) + "."


def _issue(found: re.Match[str]) -> str:
    """A link to an issue."""
    name = found["name"]
    if name not in REPOSITORIES:
        raise PluginError(f"a broken queue names {found[0]}: add whose {name} is to REPOSITORIES")
    owner = REPOSITORIES[name]
    return f"[{found[0]}](https://github.com/{owner}/{name}/issues/{found['number']})"


def _drawn(told: Told) -> str:
    """A story with its figure and its SQL."""
    if isinstance(told, Story):
        return "\n\n".join([_figure(told), _folded("The SQL", "\n\n".join(_statements(told)))])
    return "\n\n".join(
        _plain(part.text)
        if part.kind == "prose"
        else f"{part.head}\n\n{_fenced({'sql': 'postgresql'}.get(part.kind, 'text'), part.text)}"
        for part in told.parts
    )


def _figure(told: Story) -> str:
    """A story as a figure and, for a narrow screen, as a list."""
    steps = "".join(
        f'<li><span class="n">{one.number}</span>'
        f"<div>{html.escape(chr(10).join(text.lines_of(one)))}</div></li>"
        for one in text.passages(told)
    )
    notes = [told.cast, text.before(told), told.conditions.told(), *text.roles(told)]
    parts = [
        f"**Broken: {_plain(told.broken)}.**",
        *(_plain(note) for note in notes if note),
        (
            f'<div class="figure" data-search-exclude>{draw(told)}</div>'
            f'<ol class="steps" data-search-exclude>{steps}</ol>'
        ),
        *(_plain(note) for note in text.remarks(told)),
    ]
    return "\n\n".join(parts)


def _statements(story: Story) -> Iterator[str]:
    for letter, used, sql in page.statements(story):
        yield f"`[{letter}]` {used}\n\n{_fenced('postgresql', sql)}"


def _stories() -> Iterator[tuple[str, str]]:
    """The stories of results/, those of a guarantee on one page."""
    by: dict[str, dict[str, list[StoryLine]]] = defaultdict(lambda: defaultdict(list))
    for line in _recorded():
        by[line.guarantee][line.queue].append(line)
    index = [
        "# Stories",
        "Each is the shortest run that shows the break, with its SQL and a token that replays it.",
        "| guarantee | stories | broken by |\n|---|--:|---|",
    ]
    rows, library = [], defaultdict(list)
    for name in CATALOGUE:
        planted = {posixpath.basename(one.name)[:-4]: one for one in defects(name)}
        parts = [
            f"# Stories of {name}",
            f"{_plain(CATALOGUE[name].sentence)} [What it means](../guarantees/{name}.md).",
        ]
        queues = []
        for path, told in sorted(by[name].items(), key=lambda one: posixpath.basename(one[0])):
            queue = posixpath.basename(path)
            queues.append(f"[{queue}]({name}.md#{queue})")
            if path.startswith("peers/"):
                library[queue].append(name)
            parts.append(f"## {queue} {{ #{queue} }}")
            if queue in planted:
                parts += [
                    _plain(planted[queue].why),
                    _folded("What fixes it", _fenced("diff", planted[queue].diff)),
                ]
            for line in told:
                story = _told(line)
                again = shlex.join(["queueproof", "replay", typed(path, Path("strategies"))])
                once_more = f"Once more:\n\n{_fenced('console', f'$ {again} {line.replay}')}"
                if isinstance(story, Story):
                    sql = "\n\n".join([*_statements(story), once_more])
                    parts += [_figure(story), _folded("The SQL, and how to replay it", sql)]
                else:
                    whole = f"{_fenced('text', text.to_text(story))}\n\n{once_more}"
                    parts.append(_folded(line.reason, whole))
        rows.append(f"| [{name}]({name}.md) | {len(queues)} | {', '.join(queues)} |")
        yield f"stories/{name}.md", "\n\n".join(parts)
    table = "\n".join([index[-1], *rows])
    index[-1] = f"<div data-search-exclude markdown>\n\n{table}\n\n</div>"
    remarks = read_remarks(ROOT / "strategies" / REMARKS)
    for queue, names in sorted(library.items()):  # the search finds them by the library's name
        index.append(f"## {NAMES[queue]} {remarks[queue].version.partition(',')[0]}")
        known = ((name, remarks[queue].remarks.get(name)) for name in names)
        broken = (
            f"- [{name}]({name}.md#{queue}){f': {remark.means}' if remark else ''}"
            for name, remark in known
        )
        index.append("\n".join(broken))
    yield "stories/all.md", "\n\n".join(index)


def _card() -> str:
    """The keys of card.json, from its schema."""
    schema = json.loads(package_files("queueproof.report").joinpath("card.schema.json").read_text())
    parts = [
        "# JSON card",
        schema["description"].replace("`check", "`queueproof check"),
        "`queueproof schema` prints the JSON Schema that this page is made of.",
        _keys(schema),
    ]
    for name, part in schema["$defs"].items():
        parts.append(f"## {name}")
        if "description" in part:
            parts.append(part["description"])
        if "properties" in part:
            parts.append(_keys(part))
    return "\n\n".join(parts)


def _keys(schema: Mapping[str, Any]) -> str:
    rows = ["| key | value | |\n|---|---|---|"]
    for key, part in schema["properties"].items():
        absent = "" if key in schema.get("required", ()) else "May be absent. "
        rows.append(f"| `{key}` | {_kind(part)} | {absent}{part.get('description', '')} |")
    return "\n".join(rows)


def _kind(part: Mapping[str, Any]) -> str:
    """The kind of a value, in words."""
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    if kinds == ["array"]:
        return f"list of {_kind(part['items'])}"
    return " or ".join(kinds)


def _plain(words: str) -> str:
    """Words that are no Markdown, but for addresses, which become links."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(words, quote=False))
    return re.sub(r"https://[^\s)]+", lambda found: f"<{found[0]}>".replace("\\", ""), escaped)


def _wide(content: str) -> str:
    """A page without its table of contents, so that no line of code is cut."""
    return f"---\nhide: [toc]\n---\n{content}"


def _fenced(language: str, code: str) -> str:
    return f"````{language}\n{code.strip(chr(10))}\n````"


def _folded(summary: str, content: str) -> str:
    body = "\n".join(f"    {line}" if line else "" for line in content.splitlines())
    return f'??? note "{summary.replace(chr(34), chr(39))}"\n\n{body}'
