"""The conformance matrix: every queue of strategies/ by every guarantee, each break with its story.

`python -m workshop.conformance [QUEUE…]`, which is `make results`: every queue, or those that are
named (`QUEUES='broken/order_lifo'`), while what is recorded of the others stays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from queueproof.errors import Exit, QueueError, QueueproofError
from queueproof.examine.check import judge
from queueproof.examine.processes import MOST, processes
from queueproof.guarantees.catalogue import CATALOGUE
from queueproof.postgres import Server, open_server
from queueproof.postgres.pooler import MISSING, find_pgbouncer, version
from queueproof.queues.sqlfile import load
from queueproof.report.card import Card, Judgement, Verdict
from queueproof.report.data import from_data, to_data
from queueproof.report.forms import filled_in
from queueproof.report.page import read_card
from queueproof.report.story import Story
from queueproof.report.terminal import summary
from queueproof.report.text import Legend, letter, to_text
from scenarios import matrix
from scenarios.matrix import PROFILE, PROGRAMS, REMARKS, SEED, Peer, Remark, StoryLine

PAGE_WIDTH = 100  # characters of a line: three workers then stand one below the other
SQL_LINES = 30  # of one statement
CARDS = ".cards"  # beside the page, and not in git
_DEFECT = re.compile(r"-- breaks: ([\w-]+)\n")


@dataclass(frozen=True)
class Row:
    """One queue of the matrix."""

    name: str  # its path in strategies/, without `.sql`
    card: Card  # what was found
    defect: str = ""  # the guarantee that was broken in it on purpose; empty in most
    peer: Peer | None = None  # what it says of itself, where it is somebody else's
    # Guarantee id to the place of its first story, from the matrix
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Its file's name."""
        return self.name.rpartition("/")[2]

    @property
    def title(self) -> str:
        """The name that a reader knows it by."""
        return matrix.NAMES.get(self.stem, self.stem) if self.peer else self.stem

    @property
    def link(self) -> str:
        """Its file, from the matrix."""
        if self.name in PROGRAMS:
            return f"../strategies/peers/{PROGRAMS[self.name].file}"
        return f"../strategies/{self.name}.sql"

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Guarantee id to verdict."""
        return {judgement.id: judgement.verdict for judgement in self.card.guarantees}

    @property
    def lines(self) -> list[StoryLine]:
        """All of its stories."""
        return [
            StoryLine(self.name, found.id, one.reason, one.replay, to_data(one.told))
            for found in self.card.guarantees
            for one in found.stories
        ]

    @property
    def broken(self) -> list[str]:
        """The guarantees that it breaks, but for what its own file declares."""
        return [id_ for id_, verdict in self.verdicts.items() if verdict == "broken"]

    def mark(self, guarantee: str) -> str:
        """The cell of a guarantee; empty where it was not asked for."""
        if guarantee not in self.verdicts:
            return ""
        verdict, remark = self.verdicts[guarantee], self.remark(guarantee)
        if verdict == "broken" and remark is not None and remark.documented == "by design":
            verdict = "accepted"  # known, as what our file for it declares
        mark = matrix.MARKS[verdict]
        if remark is not None and remark.documented == "model only":
            mark += "\\*"
        return self._linked(mark, guarantee)

    def _linked(self, words: str, guarantee: str) -> str:
        """Words that lead to a story, if there is one.

        Only stories of real libraries stand on a page of the repository; others on the site alone.
        """
        link = self.links.get(guarantee)
        if link and self.name in PROGRAMS:
            return f"[{words}]({link})"
        return f"<!--[-->{words}<!--]({link})-->" if link else words

    def kept(self) -> str:
        """The answer whether the promise holds, and what it breaks by."""
        rests_on = self.peer.rests_on if self.peer else ()
        found = {guarantee: self.verdicts[guarantee] for guarantee in rests_on}
        lost = [id_ for id_, verdict in found.items() if verdict in {"broken", "accepted"}]
        if lost:
            return "no: " + ", ".join(f"`{id_}` {self.mark(id_)}" for id_ in lost)
        asked = ", ".join(f"`{id_}`" for id_ in rests_on)
        return f"{'yes' if set(found.values()) == {'holds'} else '?'}: {asked}"

    def remarked(self) -> list[tuple[str, Remark | None]]:
        """Each guarantee that needs a word, or has one."""
        known = ((id_, self.remark(id_), verdict) for id_, verdict in self.verdicts.items())
        wanted = matrix.UNEXPLAINED
        return [(id_, remark) for id_, remark, verdict in known if remark or verdict in wanted]

    def steps(self, guarantee: str) -> str:
        """A link to a story beside the guarantee, if there is one."""
        return f"\u00a0·\u00a0{self._linked('steps', guarantee)}" if guarantee in self.links else ""

    def story(self, guarantee: str) -> str:
        """A link to a story, in its own words."""
        reason = next(j.reason for j in self.card.guarantees if j.id == guarantee)
        if guarantee in self.links:
            return self._linked(reason.replace("|", "\\|"), guarantee)
        return f"{matrix.MARKS[self.verdicts[guarantee]]} {reason}"

    def rest(self) -> str:
        """The verdicts on the other guarantees."""
        return summary(j for j in self.card.guarantees if j.id != self.defect)

    def remark(self, guarantee: str) -> Remark | None:
        """The remark on a guarantee, if there is one."""
        return self.peer.remarks.get(guarantee) if self.peer else None


class Failure(NamedTuple):
    """A queue that could not be judged: its name, and the error's message."""

    name: str
    message: str


def examine(
    names: Sequence[str], directory: Path, postgres: str | None = None, kept: Path | None = None
) -> Iterator[Row | Failure]:
    """Check queues by every guarantee, each in the order of its end.

    Names are paths in `directory`, which is strategies/, without `.sql`, or keys of `PROGRAMS`.
    A card in `kept` that was made from the very same is not made again: so what was interrupted
    goes on where it ended. QueueproofError: the remarks on somebody else's queue are missing,
    cannot be read, or are about another version than the one that is installed.
    """
    said = _said(names, directory)
    state = _state(directory, postgres) if kept else ""
    todo = []
    for name in sorted(names, key=lambda name: name not in PROGRAMS):  # the slow ones first
        place = _place(kept, state, name, directory) if kept else None
        if place and place.exists():
            card = read_card(place.read_text(encoding="utf-8"))
            yield Row(name, card, _defect(name, directory), said.get(name))
        else:
            todo.append(name)
    if not todo:
        return
    with open_server(postgres) as server:
        for found in _examine_all(todo, partial(_examine, directory=directory), server):
            if isinstance(found, Row) and kept:
                _put(kept, state, found, directory)
            yield replace(found, peer=said.get(found.name)) if isinstance(found, Row) else found


def _examine_all(
    names: Sequence[str], check: Callable[[str], Row | Failure], server: Server | None
) -> Iterator[Row | Failure]:
    """Check queues in processes; one that takes its process with it takes no other queue along."""
    todo = list(names)
    while todo:
        suspects = []
        with processes(server) as pool:
            futures = {pool.submit(check, name): name for name in todo}
            for future in as_completed(futures):
                try:
                    found = future.result()
                except BrokenProcessPool:
                    continue
                todo.remove(found.name)
                yield found
            suspects = todo[: MOST + 1]  # one of those that were under way, or about to be
        for name in suspects:
            with processes(server) as pool:
                try:
                    yield pool.submit(check, name).result()
                except BrokenProcessPool as error:
                    yield Failure(name, f"its process ended: {error}")
            todo.remove(name)


def _said(names: Sequence[str], directory: Path) -> dict[str, Peer]:
    """The promises of somebody else's queues, with the versions that are judged."""
    remarks, said = matrix.read_remarks(directory / REMARKS), {}
    for name in names:
        if not name.startswith("peers/"):
            continue
        stem = name.removeprefix("peers/")
        if stem not in remarks:
            raise QueueproofError(f"{directory / REMARKS}: add [{stem}]: what it promises")
        peer = remarks[stem]
        if name in PROGRAMS:
            judged, *drivers = PROGRAMS[name].versions(directory)
            installed = judged.rpartition(" ")[2]
            if peer.version.partition(",")[0] != installed:
                raise QueueproofError(
                    f"{directory / REMARKS}: [{stem}] is about {peer.version}, and {installed} is"
                    " installed: see whether what it says is still so"
                )
            peer = replace(peer, version=", ".join([peer.version, *drivers]))
        said[name] = peer
    return said


def _examine(name: str, *, directory: Path) -> Row | Failure:
    try:
        asked = (name in PROGRAMS and PROGRAMS[name].only) or None
        card = judge(matrix.strategy(name, directory), asked, seed=SEED, profile=PROFILE)
    except QueueproofError as error:
        return Failure(name, str(error))
    except Exception as error:  # noqa: BLE001 - one queue's trouble is not the others'
        told = "".join(traceback.format_exception(error))
        return Failure(name, f"internal error: {told}")
    return Row(name, card, _defect(name, directory))


def _defect(name: str, directory: Path) -> str:
    """The guarantee that a queue's first line says it breaks; empty in most."""
    match = None if name in PROGRAMS else _DEFECT.match(_whole(name, directory))
    return match[1] if match else ""


def _whole(name: str, directory: Path) -> str:
    """A file with what it extends; one that is no good is told by its own judge."""
    path = directory / f"{name}.sql"
    try:
        return load(path).whole
    except QueueError:
        return path.read_text(encoding="utf-8")


def _state(directory: Path, postgres: str | None) -> str:
    """A hash of all that cards are made from, beside the queue: code, what is installed, server."""
    hashed = hashlib.sha256(f"{SEED} {PROFILE} {postgres}".encode())
    with as_file(files("queueproof")) as package:
        sources = sorted(path for path in package.rglob("*") if path.suffix in {".py", ".sql"})
        sources += sorted(path for path in (directory / "peers").iterdir() if path.is_file())
        sources += [Path(__file__), Path(matrix.__file__)]
        for path in sources:
            hashed.update(path.read_bytes())
    for found in sorted(f"{one.name} {one.version}" for one in metadata.distributions()):
        hashed.update(found.encode())
    pgbouncer = find_pgbouncer()
    hashed.update((version(pgbouncer) if pgbouncer else "").encode())
    return hashed.hexdigest()


def _place(kept: Path, state: str, name: str, directory: Path) -> Path:
    """The file in which the card of a queue is kept: a change of anything is another file."""
    text = "" if name in PROGRAMS else _whole(name, directory)
    digest = hashlib.sha256(f"{state} {text}".encode()).hexdigest()
    return kept / f"{name.replace('/', '.')}.{digest[:16]}.json"


def _put(kept: Path, state: str, row: Row, directory: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    place = _place(kept, state, row.name, directory)
    for older in kept.glob(f"{row.name.replace('/', '.')}.*.json"):
        older.unlink()
    half = place.with_suffix(".half")
    half.write_text(row.card.to_json(), encoding="utf-8")
    half.replace(place)


def render(
    rows: Iterable[Row],
    failures: Iterable[Failure] = (),
    pooler: str = "",
    page: str = "conformance",
    lines: Iterable[StoryLine] = (),
) -> str:
    """A page of verdicts as Markdown.

    It is `conformance`, `controls` for the queues that the checks are tested by, or `stories` for
    how real libraries break. `pooler-safe` was asked with the pooler, where it was there.
    """
    rows = list(rows)
    others = [row for row in rows if row.peer is not None]
    planted = [row for row in rows if row.defect]
    real = [row for row in others if row.name in PROGRAMS]
    breaks = [
        (id_, row, row.remark(id_))
        for id_ in CATALOGUE
        for row in real
        if row.verdicts.get(id_) in {"broken", "accepted"}
    ]
    unknown = [one for one in breaks if one[2] and one[2].documented == "no"]
    breaks = [*unknown, *(one for one in breaks if one not in unknown)]
    return filled_in(
        f"{page}.md.j2",
        "workshop",
        seed=SEED,
        pooler=pooler,
        failures=list(failures),
        postgres=rows[0].card.postgres,
        real=real,
        breaks=breaks,
        stories=[_finding(*one, list(lines)) for one in breaks],
        unknown=len(unknown),
        models=[row for row in others if row.name not in PROGRAMS],
        strategies=[row for row in rows if "/" not in row.name],
        sound=[row for row in rows if row.name.startswith("sound/")],
        guarantees=list(CATALOGUE),
        planted=planted,
        found=sum(row.verdicts[row.defect] in {"broken", "accepted"} for row in planted),
    )


def _finding(
    guarantee: str, row: Row, remark: Remark | None, lines: list[StoryLine]
) -> dict[str, object]:
    """A break of a real library, with its version and its stories, for the page of stories."""
    version = row.peer.version.partition(",")[0] if row.peer else ""
    library, comma, how = row.title.partition(",")
    return {
        "title": f"{library} {version}{comma}{how}",
        "guarantee": guarantee,
        "anchor": f"{row.stem}.{guarantee}",
        "means": remark.means if remark else "Not examined yet.",
        "told": [_steps(o) for o in lines if (o.queue, o.guarantee) == (row.name, guarantee)],
    }


def _steps(line: StoryLine) -> dict[str, object]:
    """A story with its statements, each by its letter; no command where it cannot be repeated."""
    told = from_data(line.told)
    new = Legend().lettered(told)[1] if isinstance(told, Story) else []
    again = shlex.join(["queueproof", "replay", matrix.typed(line.queue, Path("strategies"))])
    return {
        "steps": to_text(told, PAGE_WIDTH, sql=False),
        "sql": [(letter(number), _clipped(one)) for number, one in new],
        "command": f"{again} {line.replay}" if line.replay else "",
    }


def _clipped(sql: str) -> str:
    """A statement without the lines that a page has no room for."""
    lines = [line for line in sql.splitlines() if line.strip()]
    left = len(lines) - SQL_LINES
    return "\n".join(lines if left <= 1 else [*lines[:SQL_LINES], f"-- … {left} more lines"])


def _known(results: Path) -> tuple[dict[str, Any], dict[str, dict[str, Verdict]]]:
    """The server on which all queues were judged, and their verdicts, as `write` wrote them."""
    verdicts = json.loads((results / "conformance.json").read_text(encoding="utf-8"))
    where = json.loads((results / matrix.STORIES).read_text(encoding="utf-8").partition("\n")[0])
    return where, verdicts


def redrawn(results: Path, directory: Path) -> tuple[list[Row], str]:
    """All queues as they are recorded, and the pooler: for pages that only say it otherwise."""
    where, judged = _known(results)
    remarks = matrix.read_remarks(directory / REMARKS)
    everything = [*matrix.names(directory), *matrix.peers(directory), *PROGRAMS]
    verdicts = {name: judged[name] for name in everything if name in judged}
    said = {
        name: replace(peer, version=where["versions"].get(name, peer.version))
        for name in verdicts
        if name.startswith("peers/") and (peer := remarks.get(name.removeprefix("peers/")))
    }
    return _rows(verdicts, results, directory, where["postgres"], said), where["pooler"]


def recorded(
    names: Sequence[str], results: Path, directory: Path, postgres: str, pooler: str
) -> list[Row]:
    """Queues as an earlier run has found them: their verdicts, and a sentence for each story.

    QueueproofError: one has no verdicts there, or they are of another server or PgBouncer than the
    other queues of the page.
    """
    try:
        where, judged = _known(results)
    except OSError as error:
        raise QueueproofError(f"{error.filename}: {error.strerror}: judge all queues") from error
    if missing := [name for name in names if name not in judged]:
        raise QueueproofError(f"never judged: {', '.join(missing)}; name them, too")
    if (where["postgres"], where["pooler"]) != (postgres, pooler):
        raise QueueproofError(
            f"{results} is of {where['postgres']} and {where['pooler'] or 'no PgBouncer'}, and this"
            f" machine has {postgres} and {pooler or 'no PgBouncer'}: judge all queues"
        )
    verdicts = {name: judged[name] for name in names}
    return _rows(verdicts, results, directory, postgres, _said(names, directory))


def _rows(
    verdicts: Mapping[str, Mapping[str, Verdict]],
    results: Path,
    directory: Path,
    postgres: str,
    said: Mapping[str, Peer],
) -> list[Row]:
    rows = []
    reasons = {(one.queue, one.guarantee): one.reason for one in reversed(matrix.stories(results))}
    for name, found in verdicts.items():
        judgements = tuple(
            Judgement(id_, verdict, reasons.get((name, id_), "")) for id_, verdict in found.items()
        )
        card = Card(name, postgres, SEED, 0.0, judgements)
        rows.append(Row(name, card, _defect(name, directory), said.get(name)))
    return rows


def write(
    rows: Sequence[Row],
    results: Path,
    failures: Sequence[Failure] = (),
    pooler: str = "",
    beside: Collection[str] = (),
) -> None:
    """Write the matrix, its data and the stories; stories of what no longer breaks go.

    What stands there of a queue that could not be judged stays, and the page says so. Rows are in
    the order of the page; stories of those `beside`, which an earlier run has judged, stay.
    """
    results.mkdir(parents=True, exist_ok=True)
    failed = [one.name for one in failures]
    stay = {*beside, *failed}
    lines = [one for one in matrix.stories(results) if one.queue in stay]
    lines += [one for row in rows if row.name not in stay for one in row.lines]
    order = [*(row.name for row in rows), *failed]
    lines.sort(key=lambda one: order.index(one.queue))
    versions = {row.name: row.peer.version for row in rows if row.peer and row.name in PROGRAMS}
    where = {"postgres": rows[0].card.postgres, "pooler": pooler, "versions": versions}
    written = [json.dumps(one) for one in (where, *(line._asdict() for line in lines))]
    (results / matrix.STORIES).write_text("\n".join([*written, ""]), encoding="utf-8")
    path = results / "conformance.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    data = {row.name: row.verdicts for row in rows}
    data |= {name: known[name] for name in failed if name in known}
    written = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in data.items()]
    path.write_text("{\n" + ",\n".join(written) + "\n}\n", encoding="utf-8")
    links: dict[str, dict[str, str]] = {}
    for one in lines:  # not by the line's number: a new story would change all links behind it
        stem = one.queue.rpartition("/")[2]
        page = "stories.md" if one.queue in PROGRAMS else matrix.STORIES
        links.setdefault(one.queue, {})[one.guarantee] = f"{page}#{stem}.{one.guarantee}"
    rows = [replace(row, links=links.get(row.name, {})) for row in rows]
    for page in ("conformance", "controls", "stories"):
        text = render(rows, failures, pooler, page, lines)
        (results / f"{page}.md").write_text(text, encoding="utf-8")


def _chosen(asked: Sequence[str], everything: Sequence[str]) -> list[str]:
    """The queues that are named, in the order of the page; all where none is."""
    if unknown := sorted({*asked} - {*everything}):
        raise QueueproofError(f"no queue of strategies/: {', '.join(unknown)}")
    return [name for name in everything if name in (asked or everything)]


def main(arguments: list[str] | None = None) -> int:
    """Check every queue, or those that are named, and write the matrix; the exit code."""
    parser = argparse.ArgumentParser("python -m workshop.conformance", description=__doc__)
    parser.add_argument("queues", nargs="*", help="such as broken/order_lifo; else all")
    parser.add_argument("--postgres", help="as `queueproof check` takes it")
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory")
    parser.add_argument("--anew", action="store_true", help="keep no card of an earlier run")
    parser.add_argument(
        "--redraw", action="store_true", help="judge nothing: pages of what is known"
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True, highlight=False)
    if options.redraw:
        with as_file(files("queueproof.strategies")) as directory:
            known, through = redrawn(options.results, directory)
        write(known, options.results, (), through, [row.name for row in known])
        return Exit.HOLDS
    pgbouncer = find_pgbouncer()
    if pgbouncer is None:
        console.print(f"real queues are not asked for pooler-safe: {MISSING}", markup=False)
    pooler = version(pgbouncer) if pgbouncer else ""
    rows: list[Row] = []
    failures: list[Failure] = []
    beside: list[str] = []
    kept = options.results / CARDS
    if options.anew:
        shutil.rmtree(kept, ignore_errors=True)
    try:
        with as_file(files("queueproof.strategies")) as directory:
            everything = [*matrix.names(directory), *matrix.peers(directory), *PROGRAMS]
            todo = _chosen(options.queues, everything)
            beside = [name for name in everything if name not in todo]
            if beside:
                with open_server(options.postgres) as server:
                    there = server.label, pooler
                rows += recorded(beside, options.results, directory, *there)
            for found in examine(todo, directory, options.postgres, kept):
                if isinstance(found, Failure):
                    failures.append(found)
                    told = f"not judged: {found.message}"
                else:
                    rows.append(found)
                    told = f"{summary(found.card.guarantees)}; {found.card.seconds:.0f} s"
                done = f"{len(rows) - len(beside) + len(failures)}/{len(todo)}"
                console.print(f"{done} {found.name}: {told}", markup=False)
    except QueueproofError as error:
        console.print(str(error), markup=False)
        return Exit.UNUSABLE
    rows.sort(key=lambda row: everything.index(row.name))
    if len(rows) > len(beside):
        write(rows, options.results, failures, pooler, beside)
    counts = Counter(verdict for row in rows for verdict in row.verdicts.values())
    told = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    console.print(f"{len(rows)} queues: {told}; see {options.results / 'conformance.md'}")
    for failure in failures:
        console.print(f"not judged, its old verdicts stay: {failure.name}", markup=False)
    return Exit.UNUSABLE if failures else Exit.HOLDS


if __name__ == "__main__":
    sys.exit(main())
