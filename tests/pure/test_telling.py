"""A story as it is read: what is told in which words, where it stands, and what is left out."""

import json
import re
from dataclasses import replace
from typing import Literal

import pytest

from queueproof.history.calls import Call, History
from queueproof.judge.violations import Violation
from queueproof.probes.backoff import RetryWait, RetryWaits
from queueproof.queues.model import Step
from queueproof.queues.sqlfile import load_text
from queueproof.report.card import Break, Card, Judgement
from queueproof.report.data import from_data, to_data
from queueproof.report.mermaid import to_mermaid
from queueproof.report.page import read_card
from queueproof.report.story import (
    Account,
    Answered,
    Asked,
    Claimed,
    Enqueued,
    Event,
    Fact,
    Part,
    Passed,
    Sent,
    Story,
    Turn,
    of_queue,
    tell,
    tell_found,
)
from queueproof.report.text import counted, ordinal, passages, remedy, to_text
from queueproof.run import answers
from queueproof.run.record import Beat, Run
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import FaultKind
from tests.fix_queues import queue_file

SQL = Sent(0, "UPDATE jobs", ())
ACCOUNT = Account("steady-cost", (Part("prose", "Broken: x."), Part("plan", "Scan", "Its plan:")))


def story(*turns: Turn, **facts: object) -> Story:
    """A story of one statement."""
    known: dict[str, object] = {
        "guarantee": "fencing",
        "broken": "w1 was allowed to complete",
        "before": (Enqueued("1", 0, 0.0, 3),),
        "conditions": Conditions(planner="no index"),
        "allowed": (),
        "statements": ("UPDATE jobs",),
        **facts,
    }
    return Story(turns=turns, **known)  # type: ignore[arg-type]  # by name, as they come


def claim(job: str, *, limit: int = 1) -> tuple[Fact, ...]:
    """A claim that nobody gets into."""
    return (Asked("claim", limit, (), 0.0), SQL, Answered("answer", job))


def does(kind: str, limit: int = 0, queue: str = "") -> tuple[Fact, ...]:
    """An operation that sends nothing, and answers that."""
    return (Asked(kind, limit, (), 0.0, queue=queue), Answered("answer", "nothing"))


def complete(
    answer: str, *claims: Claimed, kind: Literal["answer", "error", "lost"] = "answer"
) -> tuple[Fact, ...]:
    """A completion of job 1."""
    return (Asked("complete", 0, ("1",), 0.0, claims), SQL, Answered(kind, answer))


AGAIN = story(
    Turn("w1", claim("job 1 (attempt 1)")),
    Turn("clock", (Passed(33.401),)),
    Turn("reaper", (Asked("recover", 0, (), 0.0), SQL, Answered("answer", "job 1"))),
    Turn("w1", claim("job 1 (attempt 2)") + complete("accepted", Claimed(1, "attempt 1"))),
    cause="complete",
    alone=True,
)
RACE = story(
    Turn("w2", (Asked("claim", 1, (), 0.0), SQL, Event("uncommitted"))),
    Turn("w1", (Asked("claim", 1, (), 0.0), SQL, Event("waits", "w2"))),
    Turn("clock", (Passed(90_061.7),)),
    Turn("w2", (Event("commit"), Answered("answer", "job 1"))),
    guarantee="non-blocking",
)


def steps(told: Story, width: int = 80) -> str:
    """The part of a text in which the steps stand: before the first statement."""
    before = re.split(r"\n\n(?:\[a\]\n|Why it matters)", to_text(told, width))[0]
    return before.rpartition("\n\n")[2]


def line(told: Story) -> str:
    """A text as one line."""
    return " ".join(to_text(told).split())


def test_operations_in_turn_are_a_line_each() -> None:
    """Where nobody acts in the midst of another's operation, no columns are needed at any width."""
    assert steps(AGAIN, 200).splitlines() == [
        "1  w1: claim [a] => job 1 (attempt 1)",
        "2  the clock moves on by 33.4 s",
        "3  reaper: recover [a] => job 1",
        "4  w1: claim [a] => job 1 (attempt 2)",
        "5  w1: complete job 1 (its first claim, attempt 1) [a] => accepted",
    ]


def test_operations_that_meet_stand_in_columns_where_they_fit() -> None:
    """A column per worker, the clock across them; below their width a list says the same."""
    columns = steps(RACE, 80).splitlines()
    assert columns[0] == "    w1                                w2"
    assert columns[4] == "                                      (not committed yet)"
    assert columns[7:9] == ["    waits for w2", " 3  -- the clock moves on by 25 hours"]
    assert steps(RACE, 60).splitlines() == [
        "1  w2: claim [a] (not committed yet)",
        "2  w1: claim [a]; waits for w2",
        "3  the clock moves on by 25 hours",
        "4  w2, going on: COMMIT => job 1",
    ]


def test_lines_keep_the_width() -> None:
    """No step of a story is wider than was asked for, whatever an answer says."""
    long = story(Turn("w1", complete("57P01: " + "terminating connection " * 9, kind="error")))
    for width in (1, 40, 60, 80):
        for told in (long, AGAIN, RACE):
            assert max(map(len, steps(told, width).splitlines())) <= max(width, 30)


def test_workers_that_do_the_same_are_told_once() -> None:
    """Who acts in the same way shares a line, the last aside, but not where workers come again."""
    many = [Turn(f"w{n}", claim(f"job {n}")) for n in range(3, 9)]
    assert steps(story(*many)).splitlines() == [
        "1-5  w3 to w7, one after the other: claim [a] => job 3; …; job 7",
        "  6  w8: claim [a] => job 8",
    ]
    turns = [Turn(f"w{n % 2 + 1}", claim(f"job {n}")) for n in range(6)]
    assert len(steps(story(*turns)).splitlines()) == 6


@pytest.mark.parametrize(("kind", "shown"), [("answer", "rejected"), ("error", "ERROR rejected")])
def test_a_worker_refused_often_is_told_once(kind: Literal["answer", "error"], shown: str) -> None:
    """Ten refusals in a row are one line with their number, errors too."""
    refused = complete("rejected", kind=kind) * 11
    assert steps(story(Turn("w1", refused))).splitlines() == [
        f"1-10  w1, 10 times: complete job 1 [a] => {shown}",
        f"  11  w1: complete job 1 [a] => {shown}",
    ]


def test_rounds_with_the_clock_are_told_once() -> None:
    """A round of several steps that comes again is told with all its jumps, however long."""
    rounds: list[Turn] = []
    for n, seconds in ((2, 5.0), (3, 5.0), (4, 3607.3), (5, 5.0)):
        rounds.append(Turn(f"w{n}", (*claim("job 1"), Event("crash"))))
        rounds.append(Turn("clock", (Passed(seconds),)))
    assert steps(story(*rounds, Turn("w6", claim("job 1")))).splitlines() == [
        "1-12  4 times, by w2 to w5, one after the other:",
        "        the worker: claim [a] => job 1",
        "        the worker: crashes",
        "        the clock moves on by 5 s, then 3,607.3 s",
        "  13  w6: claim [a] => job 1",
    ]
    kinds = ("claim", "heartbeat", "fail", "recover", "promote", "jobs", "cleanup", "start")
    turns = [Turn("w1" if n % 2 else "reaper", does(kind, 1)) for n, kind in enumerate(kinds)]
    found = list(passages(story(*turns * 5, Turn("w2", claim("job 1")))))
    assert [(one.times, len(one.columns())) for one in found] == [(5, 8), (1, 1)]


@pytest.mark.parametrize(
    ("sent", "events", "fault", "shown"),
    [
        ("A", ("sql",), "lose", "after [a] was committed, before anything else was sent"),
        ("A", ("sql", "lost"), "lose", "after [a] was committed, before anything else was sent"),
        ("A", ("sql", "done", "commit"), "lose", "after [a] was committed, before anything"),
        ("A", ("sql", "done"), "lose", "before [a] was committed: it has no effect"),
        ("A", ("sql", "stops"), "lose", "before [a] was committed: it has no effect"),
        ("BEGIN;A;B", ("sql", "lost"), "lose", "before [b] was committed: it has no effect"),
        ("BEGIN;A;COMMIT", ("sql",), "lose", "after [a] was committed, before anything"),
        ("A", ("sql", "answer"), "lose", ""),
        ("BEGIN", ("sql",), "lose", ""),
        ("A", ("sql", "lost"), "terminate", ""),
    ],
)
def test_a_crash_says_what_it_cuts_short(
    sent: str, events: tuple[Literal["sql"], ...], fault: FaultKind, shown: str
) -> None:
    """The last statement of an operation that has no answer, and whether it takes effect."""
    claimed, gone = Call(0, "claim", "w1", 0, 0.0, limit=1), Call(1, "crash", "w1", 1, 0.0)
    *before, last = sent.split(";")
    trace = [
        Beat("w1", 0, "start"),
        *(Beat("w1", 0, "sql", one) for one in before),
        *(Beat("w1", 0, event, last if event == "sql" else "row") for event in events),
        Beat("w1", 1, "crash"),
    ]
    run = Run(History([claimed, gone, Call(2, fault, "nemesis", 2, 0.0)]), trace)
    told = tell(run, Violation("crash-safe", "it is a test", None, -2))
    assert f"w1: crashes {shown}".strip() in steps(told).splitlines()[-1]
    assert shown or steps(told).endswith("crashes")


def test_the_drainer_is_explained_where_it_acts() -> None:
    """Who is no worker of the program is introduced, before the steps; its sweep is one line."""
    swept = (*does("recover"), *claim("job 1", limit=10))
    told = story(Turn("w1", claim("job 1")), Turn("drainer", swept))
    assert "\n\ndrainer: at the end it recovers, claims" in to_text(told)
    assert steps(told).endswith("2  drainer: recover => nothing; claim, at most 10 [a] => job 1")
    assert "drainer" not in to_text(AGAIN)


def test_a_statement_that_is_empty_is_not_told() -> None:
    """A driver asks by it whether its connection is alive: it has no letter and no place."""
    asks = replace(SQL, statement=1, beginning="")
    told = story(
        Turn("w1", (*claim("job 1")[:1], asks, *claim("job 1")[1:])),
        Turn("w2", (asks,)),
        statements=("UPDATE jobs", " "),
    )
    assert steps(told) == "1  w1: claim [a] => job 1"
    assert "[b]" not in to_text(told)


def test_what_the_drainer_repeats_is_told_once() -> None:
    """It asks twice, as a claim may do maintenance: the same answers are told with how often."""
    empty = does("recover") + does("claim", 10)
    again = "recover => nothing; claim, at most 10 => nothing"
    first = Turn("w1", claim("job 1"))
    assert steps(story(first, Turn("drainer", empty * 2))).endswith(f"2  drainer, twice: {again}")
    then = story(first, Turn("drainer", claim("job 2") + empty * 3))
    assert f"2  drainer: claim [a] => job 2; 3 times: {again}" in steps(then, 200)
    midway = story(first, Turn("drainer", does("claim", 10) * 4 + claim("job 2")))
    often = "4 times (claim, at most 10 => nothing); claim [a] => job 2"
    assert steps(midway, 200).endswith(f"2  drainer: {often}")
    sweep = does("recover") + does("claim", 10) * 4
    often = "recover => nothing; 4 times: claim, at most 10 => nothing"
    told = steps(story(first, Turn("drainer", sweep * 2)), 200)
    assert told.endswith(f"2  drainer, twice: {often}")
    assert steps(story(first, Turn("drainer", empty))).endswith(f"2  drainer: {again}")


def test_workers_and_jobs_are_introduced() -> None:
    """Of twelve workers one may be left, beside the last; and eleven jobs are no paragraph."""
    told = to_text(story(Turn("w12", claim("job 1")), Turn("late", claim("nothing"))))
    assert "w12: a worker; those whose numbers are missing were not needed." in told
    assert "late: a worker, which asks last." in told
    assert "w3: " not in to_text(story(Turn("w3", claim("job 1")))).partition("1  w3")[0]
    jobs = tuple(Enqueued(str(n), 0, 0.0, 3) for n in range(1, 12))
    told = line(story(before=(*jobs, Enqueued("12", 9, 1.5, None))))
    assert "Before: jobs 1 to 11 were enqueued (max_attempts 3); job 12 was enqueued" in told
    assert "job 12 was enqueued (priority 9, due in 1.5 s)." in told


def test_queues_and_payloads_of_several_are_told() -> None:
    """Where jobs are, who claims where, and whose payload is not its own is told."""
    claims, enqueues = Turn("w1", does("claim", 1, queue="mail")), does("enqueue", 0, queue="mail")
    told = story(claims, Turn("w2", enqueues), before=(Enqueued("1", 0, 0.0, 3, "high"),))
    assert "Before: job 1 was enqueued (queue 'high', max_attempts 3)." in to_text(told)
    assert "w1: claim from 'mail' => nothing" in to_text(told)
    assert "w2: enqueue into 'mail' => nothing" in to_text(told)
    same = Enqueued("1", 0, 0.0, 3, payload="same")
    large = Enqueued("2", 0, 0.0, 3, payload="large")
    asked = Asked("enqueue", 0, (), 2.0, payload="same")
    read = line(story(Turn("w1", (asked, Answered("answer", "job 3"))), before=(same, large)))
    assert "job 1 was enqueued (max_attempts 3, a payload that others have as well)" in read
    keys = "a payload of 10,000 characters, with keys like attempts"
    assert f"job 2 was enqueued (max_attempts 3, {keys})" in read
    assert "enqueue, due in 2 s, a payload that others have as well => job 3" in read


def test_waits_that_are_alike_are_told_once() -> None:
    """Each wait with when the job came back; and the SQL of what should have made it wait."""
    waits = [
        RetryWait(1, 0.0, 5.0, worked=18.0),
        RetryWait(2, 9.6, 10.9),
        *(RetryWait(n, 3388.0, 10163.0, worked=18.0 * (n % 2)) for n in range(3, 42) if n != 5),
        RetryWait(42, 3.2e8, float("inf")),
    ]
    sent = ["BEGIN", "\n  UPDATE jobs\n    SET run_at = 'infinity'", "COMMIT"]
    text = to_text(tell_found(RetryWaits(waits, "it had not come back", sent=sent), "backoff"))
    figures = text.partition("again and again.\n\n")[2].partition("\n\nWhy")[0]
    assert [line.strip() for line in figures.splitlines()] == [
        "attempt 1 failed after 18 s of work; the job came back within 5 s",
        "attempt 2 failed; the job came back after 10 to 11 s",
        "attempts 3 to 4 failed; each time the job came back after 3,388 to 10,163 s",
        "attempt 5 ended with its lease",
        "attempts 6 to 41 failed; each time the job came back after 3,388 to 10,163 s",
        "attempt 42 failed; the job came back after more than 320,000,000 s",
        "",
        "Its fail:",
        "UPDATE jobs",
        "SET run_at = 'infinity'",
    ]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"cause": "complete"}, "marks somebody else's attempt as done"),
        ({"cause": "complete", "alone": True}, "the answer of an attempt that was given up"),
        ({"cause": "fail"}, "ends somebody else's attempt as failed"),
        ({"cause": "heartbeat", "alone": True}, "keeps alive what is no longer its own"),
        ({"guarantee": "non-blocking", "cause": "claim"}, "workers form a convoy"),
        ({"guarantee": "non-blocking", "cause": "recover"}, "as long as one worker is slow"),
    ],
)
def test_why_it_matters_fits_the_operation(facts: dict[str, object], why: str) -> None:
    """What a breach does depends on the operation that breaks it, and on whom it hurts."""
    assert why.lower() in to_text(story(**facts)).rpartition("\n\nWhy it matters: ")[2].lower()


def test_a_worker_that_fails_what_it_has_completed_is_explained() -> None:
    """A completion's lost answer is named, and the remedy says which operation broke it."""
    then = Turn("drainer", claim("job 1 (attempt 2)"))
    ended = claim("job 1") + complete("accepted")
    fails, refused = (
        (Asked("fail", 0, ("1",), 0.0), SQL, Answered("answer", answer))
        for answer in ("accepted", "rejected")
    )
    told = story(Turn("w1", ended + fails), then, guarantee="final-state")
    assert "its answer was lost, and the error path calls fail." in line(told)
    assert remedy("final-state", told).startswith("Here fail put back a job that had ended. com")
    late = story(Turn("w1", ended), Turn("w2", fails), then, guarantee="final-state")
    assert "error path" not in to_text(late)
    assert remedy("final-state", late).startswith("Here fail put back")
    told = story(Turn("w1", ended + refused), then, guarantee="final-state")
    assert remedy("final-state", told).startswith("complete, fail and recover")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (counted(1, "distinct plans"), "1 distinct plan"),
        (counted(1, "operations that overlapped it"), "1 operation that overlapped it"),
        (counted(1024, "waits measured"), "1,024 waits measured"),
        *(
            (answers.told(Call(0, "promote", "promoter", 0, 0.0, moved=n), n), said)
            for n, said in enumerate(("done", "1 job", "2 jobs"))
        ),
        *((ordinal(n), f"{n}th") for n in (6, 11, 13)),
        *((ordinal(n), f"{n}{end}") for n, end in ((21, "st"), (22, "nd"), (103, "rd"))),
    ],
)
def test_numbers_are_written_as_people_do(told: str, expected: str) -> None:
    """Evidence is named in the plural, and one is none; the 21st claim is no 21th."""
    assert told == expected


def test_a_snapshot_and_a_lease_are_explained_where_they_matter() -> None:
    """An old snapshot is explained where it matters, and a lease's length where time passes."""
    level = Conditions(isolation="repeatable read")
    several = {"statements": ("BEGIN", "UPDATE jobs"), "conditions": level}
    told = "At REPEATABLE READ every statement of a transaction sees what its first one saw"
    assert told in to_text(story(**several))
    assert told not in to_text(story(conditions=level))
    assert told not in to_text(story(statements=("BEGIN", "UPDATE jobs")))
    own = ("BEGIN ISOLATION LEVEL READ COMMITTED", "UPDATE jobs")
    assert told not in to_text(story(statements=own, conditions=level))
    # A reader of "the clock moves on by 33 s" asks why; where no time passes nobody does.
    late = line(story(Turn("clock", (Passed(33.4),)), lease=30.0))
    assert "Before: job 1 was enqueued (max_attempts 3). A lease lasts 30 s." in late
    assert "lease lasts" not in line(story(Turn("w1", claim("job 1")), lease=30.0))


def test_a_remedy_is_for_this_queue() -> None:
    """The reference's index is not advised as this claim's, nor a recovery where there is one."""
    told = Account("steady-cost", (Part("prose", "The claim joins states by OR."),))
    assert remedy("steady-cost", told) == "The claim joins states by OR."
    assert remedy("steady-cost", None).startswith("`CREATE INDEX ON jobs")
    assert "add a recover block" in remedy("retry-bound", None, {"claim", "fail"})
    assert "add a recover block" not in remedy("retry-bound", None, {"claim", "recover"})
    assert "add a recover block" not in remedy("retry-bound", None)


def test_a_diagram_names_everybody_and_the_clock() -> None:
    """The source of a Mermaid diagram has the actors, and the clock beside them."""
    drawn = to_mermaid(AGAIN).splitlines()
    assert drawn[1:4] == [f"    participant {who}" for who in ("w1", "reaper", "PostgreSQL")]
    assert "    Note over w1,PostgreSQL: the clock moves on by 33.4 s" in drawn


@pytest.mark.parametrize("told", [AGAIN, RACE, ACCOUNT])
def test_a_story_is_read_back_as_it_was(told: Story | Account) -> None:
    """JSON holds all of a story."""
    assert from_data(json.loads(json.dumps(to_data(told)))) == told


def test_a_card_holds_its_stories_as_data() -> None:
    """A card.json is read back whole, whatever its stories are."""
    more = (Break("b", to_text(ACCOUNT), None, ACCOUNT),)
    found = Judgement("fencing", "broken", "a", to_text(AGAIN), "T", {}, more, AGAIN)
    card = Card("q.sql", "PostgreSQL", 0, 1.0, (found,))
    assert read_card(card.to_json()) == card


@pytest.mark.parametrize(
    "change",
    [
        {"turns": 5},
        {"turns": [{"is": "turn", "actor": "w1", "facts": [{"is": "sung"}]}]},
        {"turns": [{"is": "turn", "actor": 1, "facts": []}]},
        {"conditions": {"gate": "door"}},
        {"is": "poem"},
        {"before": [{"job": "1"}]},
        {"statements": ["a", None]},
        {"statements": "UPDATE jobs"},
    ],
)
def test_what_is_no_story_is_refused(change: dict[str, object]) -> None:
    """Data that a page could not be made from is a ValueError, which `read_card` tells."""
    with pytest.raises(ValueError, match=r"unexpected|missing"):
        from_data({**to_data(AGAIN), **change})


def test_a_call_is_told_with_what_it_stands_for() -> None:
    """The body of each function that a statement calls follows it, and of those that this calls."""
    made = [
        "-- one job\nCREATE OR REPLACE FUNCTION app.take(n int) RETURNS int AS 'SELECT due(n)'",
        "CREATE FUNCTION due(n int) RETURNS int LANGUAGE sql AS 'SELECT n'",
        "CREATE FUNCTION never() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ]
    schema = [*map(Step, made), Step("CREATE TABLE jobs (id int)")]
    queue = load_text(queue_file(), "queue.sql")
    told = of_queue(story(statements=("SELECT * FROM app.take(:limit)",)), queue, schema)
    assert made[:2] == list(told.functions)
    assert f"What is called there:\n    {made[1]}" in to_text(told)
