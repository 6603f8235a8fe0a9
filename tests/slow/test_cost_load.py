"""Benchmarks from the queue to the report: each drives loads for a second and more."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from queueproof.bench import chart, endure, render
from queueproof.bench.bench import Setting, groups, keeping_whole_rounds, measure
from queueproof.bench.cell import Ground
from queueproof.bench.compare import Budget, compare
from queueproof.bench.endure import PHASES
from queueproof.bench.figures import BenchError, BenchReport
from queueproof.bench.gate import Condition
from queueproof.bench.measured import Pace, Shape
from queueproof.bench.pool import Pool
from queueproof.errors import QueueError
from queueproof.machine import processors
from queueproof.postgres import Server
from tests.fix_loads import (
    BRIEF,
    CLAIM,
    RETRIED,
    all_done,
    every_second_call,
    measured,
    queue,
    registered,
    scripted,
    strategy,
)
from tests.fix_programs import PATIENCE
from workshop.__main__ import HOLD

SEVERAL = 2 * processors() + 1  # workers, of which some process has three


def test_who_has_started_and_is_promoted_to_endures(dsn: str) -> None:
    """Workers that start, and jobs that are promoted, through all phases."""
    setting = Setting(pace=Pace(backlog=30), postgres=dsn)
    (entry,) = measure(groups([registered()], [1], [1]), setting, endure=BRIEF).entries
    assert len(entry.endured) == len(PHASES) * endure.POINTS


def test_an_open_loop_is_reported(dsn: str) -> None:
    """Percentiles of all rounds, the greatest, what was late and what was skipped."""
    pytest.importorskip("hdrh")
    setting = Setting(0.2, Pace(rate=50, backlog=10), dsn)
    found = measure(groups([queue()], [1], [2]), setting, rounds=2)
    text = render.markdown(found)
    order = ["## Latency under a given rate", "p99.9, ms", "50 jobs/s in all", "10 further jobs"]
    assert order == sorted(order, key=text.index)
    assert "## Claim latency" not in text
    assert render.markdown(BenchReport.from_json(found.to_json())) == text


@pytest.fixture(scope="module")
def endured() -> BenchReport:
    """The reference, and a queue that deletes nothing, a tenth of a second a phase."""
    found = [strategy("skip_locked"), strategy("sound/append_only")]
    return measure(groups(found, [1], [1]), Setting(pace=Pace(backlog=300)), endure=0.1)


def test_an_old_snapshot_makes_claims_dearer_where_rows_are_updated(endured: BenchReport) -> None:
    """Buffers grow with the claims since then; a queue that only inserts stays as it is."""
    status, appended = endured.entries
    clean, held, after = ([p for p in status.endured if p.phase == name] for name in PHASES)
    assert endure.POINTS == len(clean) == len(held) == len(after)
    assert endure.slope(held, lambda p: p.buffers) > 10
    assert held[-1].buffers > 1.5 * clean[0].buffers
    assert after[-1].buffers < held[-1].buffers
    assert max(p.buffers for p in appended.endured) < 1.5 * appended.endured[0].buffers + 32
    assert not any(p.dead for p in appended.endured)


def test_endurance_is_told_and_read_back(endured: BenchReport) -> None:
    """Its points are in the file; the table and the chart are made of them."""
    again = BenchReport.from_json(endured.to_json())
    assert endured.entries == again.entries
    text = render.markdown(again)
    assert "Three phases of 0.1 s" in text
    assert "0 round" not in text
    assert text.count("| old snapshot |") == 2
    assert [len(c.panels) for c in chart.charts(again) if c.title.startswith("Endurance")] == [3]


def test_an_interrupted_endurance_keeps_the_phases_that_are_whole(endured: BenchReport) -> None:
    """The second phase was half done: the first is kept, told, drawn, and gates what it can."""
    status, appended = endured.entries
    half = replace(status, endured=status.endured[: endure.POINTS + 2], counted={})
    none = replace(appended, endured=[], counted={})
    found = BenchReport(dict(endured.method), [half, none])
    kept: list[BenchReport] = []
    with pytest.raises(KeyboardInterrupt), keeping_whole_rounds(found, kept.append):
        raise KeyboardInterrupt
    (whole,) = kept
    assert [len(entry.endured) for entry in whole.entries] == [endure.POINTS, 0]
    assert [list(entry.counted) for entry in whole.entries] == [["buffers_slope_clean"], []]
    assert "only whole phases count" in render.markdown(BenchReport.from_json(whole.to_json()))
    assert [len(c.panels) for c in chart.charts(whole) if c.title.startswith("Endurance")] == [3]


def test_a_build_fails_on_what_an_old_snapshot_costs(endured: BenchReport) -> None:
    """The slope of buffers under it is a counter; without endurance there is none."""
    # The one counts a hundred and more per 1,000 claims, the other, whose trees grow, up to ten.
    status, appended = endured.entries
    condition = Condition.of("buffers_slope_old_snapshot > 40")
    (told,) = condition.judge(endured.entries)
    assert told.startswith("skip_locked, batch 1: buffers_slope_old_snapshot is ")
    assert not condition.judge([appended])
    assert Condition.of("buffers_recovered < 999").judge([status])
    with pytest.raises(BenchError, match="was counted for no queue; it takes --endure"):
        condition.judge([replace(status, counted={"buffers_per_claim": 9.0})])


@pytest.fixture(scope="module")
def crowd(server: Server) -> Iterator[Ground]:
    """More workers than processors, so that each process has several."""
    with Ground(server, SEVERAL) as ground:
        yield ground


def test_a_process_drives_several_workers(crowd: Ground) -> None:
    """There are as many processes as processors, and each of all workers claims and completes."""
    assert isinstance(crowd._pool, Pool)
    assert len(crowd._pool._processes) == processors()
    for one in (queue(), strategy("lease_table"), strategy("hold_open")):
        prepared = crowd.prepare(one, Shape(1, SEVERAL, HOLD), 40 * SEVERAL)
        prepared.run(PATIENCE)
        found = prepared.verdict()
        assert all_done(found)
        assert len(prepared._tallies) == SEVERAL
        assert all(tally.accepted for tally in prepared._tallies)
        assert found.p50 >= HOLD or "hold_open" in one.name


def test_one_of_several_workers_fails_and_the_next_load_runs(crowd: Ground) -> None:
    """A retried error of one is not another's; a lost connection is told, with its statement."""
    failing = queue(header=RETRIED, claim=every_second_call("55P03"))
    found = measured(crowd, failing, Shape(1, SEVERAL), 200)
    assert all_done(found)
    assert found.retries > 0
    ends = CLAIM.replace("ORDER BY id", "AND pg_terminate_backend(pg_backend_pid()) ORDER BY id")
    assert ends != CLAIM
    lost = queue(claim=ends)
    with pytest.raises(QueueError, match=r"terminating connection|closed the connection"):
        measured(crowd, lost, Shape(1, SEVERAL))
    assert measured(crowd, queue(), Shape(1, SEVERAL)).exactly_once


def test_several_workers_of_a_process_keep_a_rate(crowd: Ground) -> None:
    """In an open loop each waits for its own time, and what is due is done."""
    crowd.pace = Pace(rate=200.0)
    try:
        found = measured(crowd, queue(), Shape(1, SEVERAL), 400, 1.0)
    finally:
        crowd.pace = Pace()
    assert found.exactly_once
    assert 0 < found.completed < found.jobs


def test_a_worker_program_stands_beside_a_queue_file(dsn: str) -> None:
    """In the same rounds, with what asking it costs where it can say; a hold it has not."""
    both = [strategy("skip_locked"), scripted(operations='"complete", "clock"')]
    report = measure(groups(both, [10], [2], [0.0, HOLD]), Setting(0.2, postgres=dsn), rounds=1)
    text = render.markdown(report)
    assert [len(entry.runs) for entry in report.entries] == [1, 1, 1, 0]
    assert [entry.queue for entry in report.entries] == ["skip_locked", "exec: it"] * 2
    assert "Through their own worker programs" in text
    assert "there is none to hold" in text
    assert BenchReport.from_json(report.to_json()).entries[1].runs[0].message > 0


def test_a_small_run_from_queue_to_report() -> None:
    """Of one that fails the reason is told beside the other's figures; alone it is an error."""
    told: list[str] = []
    failing = queue("failing.sql", claim=every_second_call("22012"))
    setting = Setting(0.05, progress=lambda what, _: told.append(what))
    found = measure(groups([queue(), failing], [1], [2]), setting, rounds=2)
    first, second = found.entries
    assert (first.queue, len(first.runs)) == ("q", 2)
    assert (second.queue, second.runs, second.failed) == ("failing", [], True)
    assert "22012" in second.reason
    assert "| failing | failed |" in render.markdown(found)
    assert "round 2/2: q, batch 1, workers 2" in told
    assert found.method["settings"]["fsync"] == "on"
    assert len(json.loads(found.to_json())["benchmarks"][0]["extra_info"]["runs"]) == 2
    plan = groups([queue(claim=every_second_call("22012"))], [1], [1])
    with pytest.raises(QueueError, match=r"q: .*22012"):
        measure(plan, Setting(0.05), rounds=1)


def test_a_queue_with_more_work_per_claim_is_slower(dsn: str) -> None:
    """Twelve rounds show it; the finding stands before the figures, and in the file."""
    work = "SELECT count(*) AS counted FROM generate_series(1, 100000);\nUPDATE"
    busy = queue("busy.sql", claim=CLAIM.replace("UPDATE", work, 1))
    # Some ten claims of the slow one: less says nothing on a busy machine.
    setting = Setting(0.15, postgres=dsn)
    found = compare(groups([queue(), busy], [10], [1])[0], setting, budget=Budget(None, 12))
    assert found.method["comparison"]["verdict"] == "slower"
    assert [len(entry.runs) for entry in found.entries] == [12, 12]
    text = render.markdown(found)
    assert "`complete_and_claim` and holds no transaction" in text
    order = ["**busy is slower than q**", "12 rounds, 1 look: sure", "## Jobs/s", "## Method"]
    assert order == sorted(order, key=text.index)
    assert render.markdown(BenchReport.from_json(found.to_json())) == text


def interrupted(dsn: str, times: int, run: Callable[[Setting], object]) -> list[BenchReport]:
    """The part that is kept of a run, interrupted when it has said so often how far it is."""
    kept: list[BenchReport] = []
    left = iter(range(times - 1))

    def progress(_what: str, _share: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Setting(0.02, postgres=dsn, progress=progress, keep=kept.append))
    return kept


def test_an_interrupted_run_keeps_the_rounds_that_are_whole(dsn: str) -> None:
    """Half rounds are dropped, and nothing is kept without a whole one; too few say nothing."""
    plan = groups([queue(), strategy("skip_locked")], [1], [1])
    (found,) = interrupted(dsn, 8, lambda setting: measure(plan, setting))
    assert [len(entry.runs) for entry in found.entries] == [1, 1]
    assert found.method["rounds"] == 1
    assert "it was interrupted" in render.markdown(found)
    plan = groups([queue()], [1], [1])
    assert not interrupted(dsn, 3, lambda setting: measure(plan, setting))
    (pair,) = groups([queue(), queue()], [10], [1])
    (found,) = interrupted(dsn, 12, lambda setting: compare(pair, setting))
    assert found.method["comparison"]["verdict"] == "no difference seen"
    assert "With fewer than 12 rounds nothing can be said" in render.markdown(found)
