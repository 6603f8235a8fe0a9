"""Histories as people tell them: `w1 claims 1; +31; recover 1`, in tables of what they break.

And tables of texts.
"""

import re
from ast import literal_eval
from typing import Any, NamedTuple, get_args

import pytest

from queueproof.history.calls import Answer, Call, CallKind, History, LockWait, Ref

LEASE = 30.0
TICK = 0.01  # seconds of real time between two events

VERBS: dict[str, CallKind] = {
    f"{kind}s": kind for kinds in get_args(CallKind) for kind in get_args(kinds)
}
VERBS |= {"batches": "complete_many", "beats": "heartbeat", "crashes": "crash"}
OTHERS: dict[str, tuple[str, CallKind]] = {
    "enqueue": ("producer", "enqueue"),
    "recover": ("reaper", "recover"),
    "sweep": ("drainer", "sweep"),
    "cleanup": ("janitor", "cleanup"),
    "jobs": ("janitor", "jobs"),
    "advance": ("clock", "advance"),
    "terminate": ("nemesis", "terminate"),
    "restart": ("nemesis", "restart"),
}
"""Who does what no worker does."""
NUMBERS = {"bound": int, "priority": int, "limit": int, "token": int, "delay": float}


class Told:
    """Writes a history down, call by call."""

    def __init__(self, story: str = "") -> None:
        self.history = History()
        self.moment = 0
        self.now = 0.0
        self.open: dict[str, Call] = {}  # by actor
        self.claims: dict[tuple[str, str], Call] = {}  # a worker's last claim of a job
        self.tell(story)

    def tell(self, story: str) -> History:
        """Write down what happens, event by event.

        `enqueue 1 2 bound=3`, `w1 claims 1`, `w1 completes 1 -> rejected`: a call and its answer,
        of a worker as it knows the job by its last claim. `w1 runs 1 2` claims and completes each.
        `begin w1 claims waits=w2` and `end w1 1`: other events stand between a call and its answer.
        `end all`: in the order of beginning. `-> error: 23505`: the answer has a message.
        `+31`: seconds pass, and a lease has 30. `left 1=failed`: what `jobs` reports at the end.
        `all completed`: it reports this of every job.
        """
        for event in filter(None, story.split("; ")):
            self._tell(event)
        return self.history

    def _tell(self, event: str) -> None:
        asked, _, told = event.partition(" -> ")
        words = [word for word in asked.split() if "=" not in word]
        facts: dict[str, Any] = {
            name: NUMBERS.get(name, str)(value) for name, value in re.findall(r"(\w+)=(\S+)", asked)
        }
        known: dict[str, Answer] = {one: one for one in get_args(Answer)}
        word, _, error = told.partition(": ")
        answer = known.get(word, "accepted")
        assert not told or word in known or "batches" in words, event
        match words:
            case ["left"]:
                self.history.final = facts
            case ["all", "completed"]:
                ids = (job for call in self.history.calls for job in call.ids)
                self.history.final = dict.fromkeys(ids, "completed")
            case [span] if span.startswith("+"):
                self.wait(float(span))
            case ["begin", *what]:
                call = self._asked(what, facts)
                self.open[call.actor] = call
                call.answer = answer if told else call.answer
            case ["end", "all"]:
                self.tell("; ".join(f"end {actor}" for actor in self.open))
            case ["end", actor, *ids]:
                self.end(self.open.pop(actor), *ids, answer=answer)
            case ["enqueue", first, *others]:
                for job in (first, *others):
                    self.end(self._asked(["enqueue"], facts), job)
            case [worker, "runs", *jobs]:
                for job in jobs:
                    self.tell(f"{worker} claims {job}; {worker} completes {job}")
            case ["recover", *ids] | [_, "claims" | "recovers", *ids]:
                self.end(self._asked(words, facts), *ids, answer=answer)
            case ["jobs"]:
                self.end(self._asked(words, facts), *facts)
            case _:
                call = self._asked(words, facts)
                call.error = error
                self.end(call, *([] if word in known else told.split()), answer=answer)

    def _asked(self, words: list[str], facts: dict[str, Any]) -> Call:
        """The invocation of an operation, with what is said of it."""
        if blocker := facts.pop("waits", ""):
            held = self.open.get(blocker)
            facts["waits"] = (LockWait(blocker, held.index if held else None),)
        if words[0] in OTHERS:
            actor, kind = OTHERS[words[0]]
            return self.begin(kind, actor, **({"states": facts} if kind == "jobs" else facts))
        actor, verb, *jobs = words
        if verb in {"completes", "batches", "fails", "beats"}:
            facts["refs"] = tuple(Ref(self.claims[actor, job].index, job) for job in jobs)
        return self.begin(VERBS[verb], actor, **facts)

    def begin(self, kind: CallKind, actor: str = "w1", **facts: Any) -> Call:  # noqa: ANN401
        """Invoke an operation."""
        self._tick()
        calls = self.history.calls
        call = Call(len(calls), kind, actor, self.moment, self.now, **facts)
        if kind == "claim" and not call.limit:
            call.limit = 1
        calls.append(call)
        return call

    def end(self, call: Call, *ids: str, answer: Answer = "accepted") -> Call:
        """Answer an operation."""
        self._tick()
        call.answer = answer
        call.ids = tuple(dict.fromkeys(ids))
        call.repeated = tuple(job for n, job in enumerate(ids) if job in ids[:n])
        call.end(self.moment, self.now)
        if call.kind == "claim":
            self.claims |= {(call.actor, job): call for job in ids}
        return call

    def do(self, kind: CallKind, actor: str = "w1", *ids: str, **facts: Any) -> Call:  # noqa: ANN401
        """Invoke an operation, and answer it before anything else happens."""
        answer = facts.pop("answer", "accepted")
        return self.end(self.begin(kind, actor, **facts), *ids, answer=answer)

    def completing_and_claiming(self, claim: Call, *ids: str, blocker: Call | None = None) -> Call:
        """Complete the job of a claim and claim others in one operation."""
        refs = tuple(Ref(claim.index, job) for job in claim.ids)
        done = self.begin("complete_many", claim.actor, refs=refs, limit=1)
        taken = self.begin("claim", claim.actor, limit=1)
        taken.invoked, taken.began = done.invoked, done.began
        if blocker is not None:
            for call in (done, taken):
                call.waits += (LockWait(blocker.actor, blocker.index),)
        self.end(done, *claim.ids)
        return self.end(taken, *ids)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def sweep(self, began: float) -> Call:
        """A drainer found nothing more to claim."""
        call = self.begin("sweep", "drainer")
        call.began = began
        return self.end(call)

    def _tick(self) -> None:
        self.moment += 1
        self.now += TICK


class Case(NamedTuple):
    """A history, what it breaks, and what is declared beside the usual."""

    story: str
    breaks: list[str]
    facts: dict[str, Any]


def pairs(table: str) -> list[tuple[str, ...]]:
    """The rows of a table of texts, `one => the other`: lines that are indented go on with one."""
    rows = re.findall(r"^\S.*(?:\n +.*)*", table, re.MULTILINE)
    return [tuple(" ".join(row.split()).split(" => ")) for row in rows]


def cases(table: str, around: str = "{}") -> pytest.MarkDecorator:
    """The rows of a table: what one shows, and below it a history => what that breaks.

    `holds` breaks nothing. What is declared beside the usual follows: `where cap=2 order="fifo"`.
    What all histories have in common stands in `around`, and `# …` above those that share a rule.
    """
    rows = []
    for title, text in re.findall(r"^ {4}(\S.*)\n((?: {8}.*\n)+)", table, re.MULTILINE):
        story, _, verdict = " ".join(text.split()).partition(" => ")
        found, _, told = verdict.partition(" where ")
        named = re.findall(r'(\w+)=(".*?"|\S+)', told)
        facts = {name: literal_eval(value) for name, value in named}
        breaks = [] if found == "holds" else [found]
        rows.append(pytest.param(Case(around.format(story), breaks, facts), id=title))
    assert len(rows) == len(re.findall(r"^ {4}[^\s#]", table, re.MULTILINE))
    return pytest.mark.parametrize("case", rows)


def each(table: str) -> pytest.MarkDecorator:
    """A test of each row of a table, whose first line names the columns: `one => other`.

    A row is a line; or what stands indented below a title, which is then its id.
    """
    (names, _), *rows = re.findall(r"^ {4}(\S.*)\n((?: {8}.*\n)*)", table, re.MULTILINE)
    params = [
        pytest.param(*map(str.strip, " ".join((below or first).split()).split("=>")), id=first)
        for first, below in rows
    ]
    return pytest.mark.parametrize(names.split(" => "), params)
