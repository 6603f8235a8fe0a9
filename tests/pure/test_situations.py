"""Situations of a job's life, and crowds: what is derived, drawn, and has a queue's own values."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from queueproof.examine.profiles import PROFILES
from queueproof.guarantees.surroundings import FAULTY
from queueproof.judge.checker import declare
from queueproof.judge.spec import Phase
from queueproof.queues.offer import Offer
from queueproof.queues.sqlfile import load, load_text
from queueproof.schedule.moments import DAY, HOUR
from queueproof.schedule.programs import HEARTBEATS, MAINTENANCE, Do, Program, advance, claim
from queueproof.space.constants import Constants, constants_in
from queueproof.space.crowds import numbered
from queueproof.space.pieces import NEW, Pieces
from queueproof.space.situations import BATCH, OFTEN, Known, Space, ordered, spaces
from queueproof.space.suites import ALONE, MEETINGS, Suite
from tests.fix_places import ROOT, SKIP_LOCKED, STRATEGIES, reference

FIRST, ALL = PROFILES["quick"].meetings, 400
PAUSE = 3600.0  # seconds; what settles is shorter, and a wait longer


def test_somebody_dies_more_often_between_statements() -> None:
    """And in a promotion after a failure, too: what is new may need none."""
    offer = offered("sound/promotes_one_by_one.sql")

    def dies(offer: Offer, kind: str) -> list[Program]:
        first = Suite(offer).first("lose", PROFILES["quick"].situations // FAULTY)
        return [one for one in first if races(one)[0][1] == [kind]]

    several = replace(offer, several=frozenset({"promote"}))
    assert len(dies(several, "promote")) > len(dies(offer, "promote"))
    failed = {"fail" in {do.kind for do in acts(one)} for one in dies(offer, "promote")}
    assert failed == {True, False}


LEADER = "sound/leader_promotes.sql"


def acts(program: Program) -> list[Do]:
    """All that happens in a program."""
    return [do for stage in program.stages for _, dos in stage for do in dos]


def lives(name: str) -> Iterator[Sequence[str]]:
    """What happens in each life that a queue's jobs may have alone, act by act."""
    for space in spaces_of(name):
        yield from ([do.kind for do in acts(one.make())] for one in space.alone())


def offered(name: str) -> Offer:
    """What a queue of strategies/ brings."""
    return Offer(load(STRATEGIES / name), held=name == "hold_open.sql", retries=True)


def spaces_of(name: str) -> list[Space]:
    """The situations of a queue's jobs."""
    offer = offered(name)
    return spaces(Pieces(offer), declare(offer))


def all_meetings(name: str) -> list[Known]:
    """Whatever its jobs' lives have to do with one another."""
    return [one for space in spaces_of(name) for one in space.meetings()]


@cache
def meetings(name: str) -> list[Program]:
    """The first meetings of a queue's jobs."""
    return Suite(offered(name)).first(MEETINGS, FIRST)


def races(program: Program) -> list[tuple[str, list[str]]]:
    """Who does what at once."""
    (stage,) = (stage for stage in program.stages if len(stage) > 1)
    return [(actor, [do.kind for do in dos]) for actor, dos in stage]


def test_a_seed_draws_the_same_programs_and_crowds() -> None:
    """Another seed has others; each number has its own crowd, read back as it was written."""
    offer = offered("skip_locked.sql")
    one, again, another = (Suite(offer, seed=seed).first(MEETINGS, 20) for seed in (0, 0, 1))
    assert one == again != another
    assert drawn(pieces_of()) == drawn(pieces_of())
    assert numbered(pieces_of(), 0, 7).program == drawn(pieces_of())[7]
    assert not set(drawn(pieces_of(), 1)) & set(drawn(pieces_of()))
    for crowd in drawn(pieces_of()):
        assert Program.from_data(crowd.to_data()) == crowd


@pytest.mark.parametrize("name", ["skip_locked.sql", "lease_table.sql", "hold_open.sql", LEADER])
def test_all_that_a_queue_offers_is_tried(name: str) -> None:
    """Each operation is somebody's act, alone and while the job's life goes on."""
    offer = offered(name)
    wanted = {*offer.queue.offers, "enqueue", "claim"} - {"install", "jobs", "start"}
    assert wanted <= {do.kind for one in Suite(offer).first(ALONE, ALL) for do in acts(one)}
    assert wanted <= {kind for one in meetings(name) for _, kinds in races(one) for kind in kinds}


@pytest.mark.parametrize("told", ["-- max_attempts = 3\n", ""])
def test_a_late_worker_meets_its_jobs_next_life(told: str) -> None:
    """A completion takes long: its lease is over, the job is taken back, and somebody has it."""
    # So where no attempts are promised, and a recovery might end the job as well.
    queue = load_text(reference("-- max_attempts = 3\n", told), "q.sql")
    suite = Suite(Offer(queue, held=False))
    met = [zip(*races(one), strict=True) for one in suite.first(MEETINGS, FIRST)]
    late = [actors for actors, acts in met if acts == (["complete"], ["recover", "claim"])]
    assert late
    assert all(one != other for one, other in late)


def test_of_two_promoters_the_slower_one_meets_the_next_attempt() -> None:
    """The wait after a failure is over, and nobody has promoted yet when both of them look."""
    both = ("promote", frozenset({"promote", "claim"}))
    every = all_meetings("sound/promotes_one_by_one.sql")
    slow = [acts(one.make()) for one in every if one.what == both]
    assert [True] in [[do.whole for do in dos if do.seconds > PAUSE] for dos in slow]


@pytest.mark.parametrize("ends", ["complete", "fail"])
def test_a_worker_beats_while_it_ends_its_job(ends: str) -> None:
    """It is all one which of them comes first, but one that waits for the other may not see it."""
    for one in meetings("skip_locked.sql"):
        (actor, kinds), (other, others) = races(one)
        at = [len(stage) > 1 for stage in one.stages].index(True)
        way = {do.kind for stage in one.stages[:at] for _, dos in stage for do in dos}
        if kinds == [ends] and others == ["heartbeat"] and other == actor + HEARTBEATS:
            assert way - {"enqueue", "align"} == {"advance", "claim"}  # nobody else has had the job
            return
    pytest.fail("they do not meet")


def test_tokens_of_two_claims_are_of_a_batch_that_was_lost_and_got_again() -> None:
    """Each claim is of the whole batch: no job of it has had an attempt before, or fails alone."""
    mixed = Do("complete_many", part="one of each")
    first = map(acts, Suite(offered("skip_locked.sql")).first(ALONE, FIRST))
    kinds = next([do.kind for do in dos[: dos.index(mixed)]] for dos in first if mixed in dos)
    assert kinds == ["advance", "claim", "advance", "recover", "claim"]


def test_a_batch_is_ended_while_others_act() -> None:
    """By whoever has that job now; and while its worker beats, on a thread of its own."""
    late = [races(one) for one in meetings("skip_locked.sql")]
    met = {frozenset(kinds[0] for _, kinds in two) for two in late if len(two) > 1}
    assert {"complete_many", "complete"} in met
    assert {"complete_many", "fail"} in met
    # The heartbeats may lock all that the worker holds.
    found = (races(one) for one in meetings("skip_locked.sql"))
    assert [("w1", ["complete_many"]), (f"w1{HEARTBEATS}", ["heartbeat"])] in found


def test_two_workers_do_the_same_to_jobs_that_have_come_the_same_way() -> None:
    """Fresh ones, and ones that have failed: what only such jobs share, only they wait for."""
    past = {
        tuple(do.kind for stage in one.stages[: one.stages.index(both)] for do in stage[0][1])
        for one in meetings("skip_locked.sql")
        for both in one.stages
        if len(both) > 1 and [dos[0].kind for _, dos in both] == ["claim", "claim"]
    }
    assert any(kinds.count("fail") == 2 for kinds in past)
    assert any(kinds.count("claim") == 2 * kinds.count("recover") > 0 for kinds in past)


def test_what_is_all_one_comes_later() -> None:
    """Two claims of one job are among the first."""
    every = all_meetings("skip_locked.sql")
    first = ordered(every, 0)[:100]
    assert not any(one.apart for one in first)
    assert sum(one.apart for one in every) > len(every) / 2
    kinds = {frozenset(kind for _, kinds in races(one.make()) for kind in kinds) for one in first}
    assert frozenset({"claim"}) in kinds


def test_claims_of_several_meet_without_an_end_of_several() -> None:
    """A queue that ends its jobs one by one claims several of them at once all the same."""
    name = "sound/append_only.sql"
    assert "complete_many" not in offered(name).queue.offers
    first = [
        [dos[0] for stage in one.stages if len(stage) > 1 for _, dos in stage]
        for one in meetings(name)
    ]
    assert any(one.limit == other.limit == BATCH for one, other in first)


@pytest.mark.parametrize("name", ["skip_locked.sql", "lease_table.sql", LEADER])
def test_nothing_meets_that_the_rules_exclude(name: str) -> None:
    """A worker beats on one thread beside another, and a leader is one at a time."""
    leads = offered(name).queue.leader
    for one in meetings(name):
        (mine, what), (theirs, meanwhile) = races(one)
        maintenance = [not MAINTENANCE.isdisjoint(kinds) for kinds in (what, meanwhile)]
        assert not (leads and all(maintenance)), one
        worker = mine.removesuffix(HEARTBEATS)
        if worker == theirs.removesuffix(HEARTBEATS):
            beats = ["heartbeat" in kinds for kinds in (what, meanwhile)]
            assert sorted(beats) == [False, True], one
            assert "claim" not in (*what, *meanwhile)


@pytest.mark.parametrize(
    ("name", "between"), [("broken/fencing_token_seconds.sql", {0, 1}), ("skip_locked.sql", {1})]
)
def test_a_failed_job_that_need_not_wait_is_claimed_at_once(name: str, between: set[int]) -> None:
    """A token made of the time, for one, is the same then; else time passes in between."""
    moves = set()
    for way in lives(name):
        for n in range(len(way) - 2):
            if way[n] == "fail" and "claim" in way[n + 1 : n + 3]:
                moves.add(way[n + 1 : n + 3].index("claim"))
    assert moves >= between
    assert (0 in moves) == (0 in between)


@pytest.mark.parametrize("waits", [None, 1.0])
def test_a_job_that_rests_after_it_was_taken_back_is_claimed_later(waits: float | None) -> None:
    """Rule 14: real time would decide whether its wait, which may be drawn by lot, is over."""
    offer = replace(offered("skip_locked.sql"), waits=waits)
    rested = {
        ("clock", (advance(DAY),)) in one.way
        for space in spaces(Pieces(offer), declare(offer))
        for one in space.situations
        if one.ends == ("recover",) and len(one.claims) > 1
    }
    assert rested == ({True} if waits else {False})


def test_the_last_attempt_of_a_bound_that_no_enqueue_can_lower_is_met() -> None:
    """All before it come to nothing, by time or by failures; then each act is tried."""
    ways = set()
    for way in lives("broken/retry_bound_twelve.sql"):
        if (claims := way.count("claim")) >= 12:
            ways.add(way.count("fail") >= 11)
            assert claims < 20
    assert ways == {True, False}


def test_maintenance_that_comes_to_nothing_is_done_often() -> None:
    """One that counts how often it has looked shows it, and so does a worker that beats."""
    ways = [" ".join(way) for way in lives("skip_locked.sql")]
    for kind in ("recover", "heartbeat"):
        assert any(f" {' '.join([kind] * OFTEN)}" in way for way in ways), kind
    assert not any("claim claim claim claim" in way for way in ways)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("LIMIT 50", Constants((50,), (50.0,))),
        (
            "interval '2 days' + make_interval(mins => 5)",
            Constants((2, 5), (2.0, 5.0, 300.0, 172800.0)),
        ),
        ("'00:01:30'", Constants((0, 1, 30), (30.0, 90.0))),
        ("<> 'bulk-mail' -- 17 'no'", Constants((), (), ("bulk-mail",))),
        ("x1 /* 9\n8 */ $2 1.5", Constants()),
    ],
)
def test_the_values_of_some_sql_are_found(sql: str, found: Constants) -> None:
    """Numbers, spans of any spelling and names; nothing of comments, names or parameters."""
    assert constants_in(sql) == found


def pieces_of(*, sql: str = "") -> Pieces:
    """What a queue offers in whose SQL something stands."""
    return Pieces(Offer(load_text(SKIP_LOCKED + sql, "q.sql"), held=False))


def drawn(pieces: Pieces, seed: int = 0, many: int = 40) -> list[Program]:
    """Some crowds."""
    return [numbered(pieces, seed, number).program for number in range(many)]


def test_a_crowd_has_the_values_of_the_queue() -> None:
    """A number is a priority, a batch and a population; a word a queue's name, where any may be."""
    page = pieces_of(sql="SELECT 71, 'urgent-mail';")
    crowds = drawn(page, many=400)  # half are duels, and each crowd has few of the SQL's words
    jobs = [job for crowd in crowds for job in crowd.jobs]
    assert {71, 72, -71} <= {job.priority for job in jobs}
    assert "urgent-mail" in {job.queue for job in jobs}
    assert 72 in {len(crowd.jobs) for crowd in crowds} | {len(crowd.jobs) - 1 for crowd in crowds}
    # A literal of an adapter was taken for one, and the library's error for a break.
    pieces = pieces_of(sql="\n-- 'later'\nSELECT 'bulk-mail';")
    assert "bulk-mail" in {name for one in drawn(pieces) for name in one.queues}
    pieces.offer.queue.takes_any_queue = False
    assert {name for one in drawn(pieces) for name in one.queues} == {"default", "other"}


def test_a_job_that_had_to_wait_was_looked_for_and_meets_younger_ones() -> None:
    """A client may remember when a job is due; a due time may put those first that have none."""
    found = [one for one in put_off() if one.stages[0][0][0] != "clock"]
    assert found
    for program in found:
        came = next(n for n, stage in enumerate(program.stages) if NEW in stage)
        looks, rest = program.stages[:came], program.stages[came:]
        claims = {who for stage in rest for who, dos in stage if "claim" in {do.kind for do in dos}}
        assert claims <= {who for stage in looks for who, dos in stage if dos == (claim(),)}
    found = [one for one in put_off() if one.stages[0][0][0] == "clock"]
    assert found
    assert {one.stages[1] for one in found} == {(NEW,)}
    assert {one.reserve[0].delay for one in found} == {0.0}


def put_off() -> list[Program]:
    """The programs whose first jobs were enqueued with a delay."""
    known = meetings("skip_locked.sql")
    return [one for one in known if {job.delay for job in one.jobs} == {HOUR}]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_job_may_be_taken_for_another_that_it_is_like(*, keyed: bool) -> None:
    """A job like another comes beside each end of that one, and after it, where that may be."""
    offer = replace(offered("skip_locked.sql"), keyed=keyed)
    met = {
        kinds[0]
        for program in Suite(offer).first(MEETINGS, FIRST)
        for actor, kinds in races(program)
        if ("producer", ["enqueue"]) in races(program)
        and {"same"} == {job.payload for job in program.specs}
        if actor.startswith("w")
    }
    assert keyed == ({"complete", "fail", "heartbeat"} <= met)
    # A cleanup is watched wherever a job stands: enqueued again is one more place.
    watched = {
        what[1:]
        for one in Suite(offer)._every(ALONE)[:FIRST]
        if (what := one.what)[:1] == ("cleanup",)
    }
    phases = {Phase.QUEUED, Phase.RUNNING, Phase.COMPLETED, Phase.FAILED}
    assert {phase for _, phase, again in watched if not again} == phases
    assert (0.0, Phase.QUEUED, True) in watched if keyed else not any(a for *_, a in watched)


def test_the_last_holder_is_late_beside_whoever_looks_for_jobs() -> None:
    """Its lease is over and no attempt is left: nobody takes the job, and may wait for it."""
    known = Suite(offered("sound/visibility_timeout.sql"))._every(MEETINGS)[:FIRST]
    lives = [
        (program.jobs[0].bound, [do.kind for do in acts(program)][:3])
        for program in (one.make() for one in known)
        if {actor: kinds[0] for actor, kinds in races(program)} == {"w1": "complete", "w2": "claim"}
    ]
    assert (1, ["advance", "claim", "advance"]) in lives


def test_a_last_fail_and_a_recovery_of_two_meet_what_others_do() -> None:
    """It ends the job, beside what others do; a recovery of two, beside what a holder does."""
    first = Suite(offered("skip_locked.sql"))._every(MEETINGS)[:FIRST]
    known = {one.what for one in first}
    for ends in (Phase.QUEUED, Phase.FAILED):
        assert ("fail", ends, "slow", "recover", 2) in known
        assert ("fail", "in pairs", "complete", frozenset((ends, Phase.COMPLETED))) in known
    # It decides on one job while another worker keeps, or ends, its own.
    beside = {what[2] for one in first if (what := one.what)[:2] == ("recover", "in pairs")}
    assert beside == {"complete", "complete_many", "fail", "heartbeat"}


def test_what_an_end_leaves_behind_is_looked_at_once_a_lease_is_over() -> None:
    """A lease that a heartbeat puts back, for one, of which nobody hears before."""
    found = [one for one in meetings("skip_locked.sql") if one.stages[-1] == (("w6", (claim(),)),)]
    met = {frozenset(kind for _, kinds in races(one) for kind in kinds) for one in found}
    assert {"complete", "heartbeat"} in met


def test_a_lease_that_is_over_and_a_job_given_back_are_two_ways_to_be_late() -> None:
    """A heartbeat comes between a claim's statements after each, early where there are several."""
    offer = replace(offered("skip_locked.sql"), several=frozenset({"claim"}))
    what = "claim", frozenset({"heartbeat"})
    first = [one for one in Suite(offer)._every(MEETINGS)[:FIRST] if one.what == what]
    lives = [[do.kind for do in acts(one.make())][1:3] for one in first]
    assert {("claim", "advance"), ("claim", "fail")} <= set(map(tuple, lives))


def test_the_page_on_limits_says_how_much_is_tried() -> None:
    """The page has what there is of the reference, and what each profile takes of it."""
    page = (ROOT / "docs" / "about" / "limits.md").read_text(encoding="utf-8")
    suite = Suite(offered("skip_locked.sql"))
    taken = {ALONE: [one.situations for one in PROFILES.values()]}
    taken[MEETINGS] = [one.meetings for one in PROFILES.values()]
    for what, counts in taken.items():
        there = suite.known(what)
        row = ["all" if count >= there else f"{count:,}" for count in counts]
        assert " | ".join([what, f"{there:,}", *row]) in page
