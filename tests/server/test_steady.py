"""What a claim costs as the queue fills, and the multiplication of jobs that fills it."""

from itertools import chain

import pytest

from queueproof.probes.backlog import JOBS
from queueproof.probes.buffers import FEW, KINDS, ONE_BY_ONE, SLACK, Content, Cost, Slope, measure
from queueproof.probes.filling import Filling, NotMultipliedError
from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.probes.serving import ServingIndex
from queueproof.report.story import tell_found
from queueproof.report.text import to_text
from queueproof.run.lab import Lab
from queueproof.run.session import drive
from tests.fix_histories import each
from tests.fix_labs import LabOf, offered
from tests.fix_loads import BOTH
from tests.fix_places import BROKEN, SKIP_LOCKED, reference, text_of
from tests.fix_queues import CLAIM_MANY, COMPLETE, queue_file

MANY = 6_400  # jobs: a hundred times what the operations make; of half as many a scan is cheap
CHURNED = 2_000  # jobs: of half as many an old snapshot costs an updated table next to nothing

TABLE = """
CREATE TABLE jobs (
  id {key},
  payload jsonb NOT NULL,
  status text NOT NULL DEFAULT 'queued',
  enqueued_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON jobs (enqueued_at) WHERE status = 'queued';
"""
GONE = "DELETE FROM jobs WHERE id = :id AND status = 'running';"
INSERT = "INSERT INTO jobs (payload) VALUES (:payload) RETURNING id;"
CLAIM = CLAIM_MANY.replace("ORDER BY id", "ORDER BY enqueued_at")
NO_COPIES = "CREATE UNIQUE INDEX ON jobs ((id % 50_000)); DROP INDEX jobs_enqueued_at_idx;"
MOST = JOBS[0]
KEYS = {
    "a serial": "bigserial PRIMARY KEY",
    "one that goes down": "bigint GENERATED ALWAYS AS IDENTITY (INCREMENT BY -1) PRIMARY KEY",
    "an identity that is always generated": "int GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "a positive integer": "bigserial PRIMARY KEY CHECK (id > 0)",
    "a UUID": "uuid PRIMARY KEY DEFAULT gen_random_uuid()",
    "a text": "text PRIMARY KEY DEFAULT 'job-' || gen_random_uuid()",
}
DEDUPLICATED = {
    "its payload": "CREATE UNIQUE INDEX ON jobs (payload) WHERE status <> 'completed';",
    "its payload's digest": "ALTER TABLE jobs ADD key bytea UNIQUE"
    " GENERATED ALWAYS AS (decode(md5(payload::text), 'hex')) STORED;",
    "a digest that a trigger makes": """
    ALTER TABLE jobs ADD key bytea UNIQUE;
    CREATE FUNCTION digest() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      NEW.key := decode(md5(NEW.payload::text), 'hex');
      RETURN NEW;
    END $$;
    CREATE TRIGGER digested BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION digest();
    """,
}
OR_CLAIM = CLAIM.replace(
    "status = 'queued'",
    "{}((status = 'queued' AND enqueued_at <= now())"
    " OR (status = 'waiting' AND enqueued_at < now()))",
)


def queue(
    *,
    key: str = "bigserial PRIMARY KEY",
    more: str = "",
    claim: str = CLAIM,
    complete: str = COMPLETE,
) -> str:
    """A queue file: one table whose jobs have this key, and what is added to its schema."""
    return queue_file(
        table=TABLE.format(key=key),
        more=more,
        enqueue=f"(payload)\n{INSERT}",
        claim=f"(limit)\n{claim}",
        complete=complete and f"(id)!\n{complete}",
    )


def slope(lab: Lab, kind: str, *jobs: int) -> Slope:
    """What a claim costs at some contents of one kind."""
    return measure(lab, offered(lab), [[Content(kind, n) for n in jobs]])


def filled(lab: Lab) -> None:
    """Fill a lab with many jobs, of which a few were enqueued, claimed and completed."""
    session = lab.session("w1")

    def finish(count: int) -> list[str]:
        ids = []
        for _ in range(count):
            drive(session, lab.start("enqueue", **lab.defaults()))
            (claim,) = drive(session, lab.start("claim", worker="w1", limit=1))
            drive(session, lab.start("complete", worker="w1", job=claim))
            ids.append(claim.id)
        return ids

    Filling(lab, finish, MANY).grow(MANY)


def states(lab: Lab) -> dict[str, int]:
    """How many jobs are in each state."""
    rows = lab.execute("SELECT status, count(*) FROM public.jobs GROUP BY status")
    return {str(status): int(str(count)) for status, count in rows}


def test_how_far_it_is_is_told_within_what_is_done_one_by_one(lab_of: LabOf) -> None:
    """A worker process takes milliseconds for each job, and minutes for all of them."""
    told: list[float] = []
    lab = lab_of(queue())
    measure(lab, offered(lab), [[Content("churned", 3 * FEW)]], tell=told.append)
    assert told == pytest.approx([0, 0, 1 / 2, 1 / 2, 2 / 3, 5 / 6])


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_finished_jobs_are_multiplied_whatever_their_key(lab_of: LabOf, key: str) -> None:
    """As many finished jobs as asked for have keys of their own, and none of them runs again."""
    lab = lab_of(queue(key=key))
    filled(lab)
    assert states(lab) == {"completed": MANY}
    session = lab.session("w1")
    assert drive(session, lab.start("claim", worker="w1", limit=1)) == []
    (added,) = drive(session, lab.start("enqueue", **lab.defaults()))
    (claim,) = drive(session, lab.start("claim", worker="w1", limit=1))
    assert claim.id == added


def test_rows_of_other_tables_follow_the_jobs_that_they_name(lab_of: LabOf) -> None:
    """Rows of other tables are multiplied with their jobs; others, and triggers, are left alone."""
    more = """
    CREATE TABLE runs (id serial PRIMARY KEY, job bigint NOT NULL REFERENCES jobs);
    CREATE TABLE log (job text, line text);
    """
    complete = """
    WITH run AS (INSERT INTO runs (job) SELECT :id), line AS (
      INSERT INTO log VALUES (:id::bigint::text, 'done'), (:id::bigint::text, 'and over')
    )
    UPDATE jobs SET status = 'completed' WHERE id = :id AND status = 'running';
    """
    lab = lab_of(queue(more=more, complete=complete))
    filled(lab)
    for table, rows in {"runs": MANY, "log": MANY * 2}.items():
        counted = f"SELECT count(*), count(DISTINCT job) FROM public.{table}"
        assert lab.execute(counted) == [(rows, MANY)]
        found = f"SELECT count(*) FROM public.{table} JOIN public.jobs ON jobs.id = job::bigint"
        assert lab.execute(found) == [(rows,)]
    more = """
    CREATE TABLE counter (id int PRIMARY KEY, ended int);
    INSERT INTO counter VALUES (1, 0);
    CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      UPDATE counter SET ended = ended + 1;
      RETURN NULL;
    END $$;
    CREATE TRIGGER counted AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION count_it();
    """
    lab = lab_of(queue(more=more))
    filled(lab)
    assert lab.execute("SELECT * FROM public.counter") == [(1, 64)]


def test_copies_of_a_partitioned_table_go_where_they_belong(lab_of: LabOf) -> None:
    """Every partition gets its share, once; a queue that reports other numbers says so."""
    partitions = "".join(
        f"CREATE TABLE jobs_{n} PARTITION OF jobs FOR VALUES WITH (MODULUS 4, REMAINDER {n});"
        for n in range(4)
    )
    hashed = f") PARTITION BY HASH (id);{partitions}\nCREATE INDEX"
    lab = lab_of(queue().replace(");\nCREATE INDEX", hashed))
    filled(lab)
    assert states(lab) == {"completed": MANY}
    shares = lab.execute("SELECT count(*) FROM public.jobs GROUP BY tableoid")
    assert min(int(str(share)) for (share,) in shares) > MANY // 8
    with pytest.raises(NotMultipliedError, match="the queue reports"):
        filled(lab_of(queue().replace("FROM jobs;\n", "FROM jobs LIMIT 70;\n")))


def test_a_partial_index_keeps_a_claim_cheap(lab_of: LabOf) -> None:
    """Neither finished nor waiting jobs make the claim of a sound queue dearer."""
    lab = lab_of(queue())
    for kind in ("finished", "waiting"):
        found = slope(lab, kind, 640, MANY)
        assert not found.broken
        assert [cost.content.jobs for cost in found.costs] == [0, 200, 640, MANY]
        assert 0 < found.costs[-1].buffers < 50
        # The planner knows nothing, the tables are empty, and the sequences restarted.
        known = "SELECT count(*) FROM pg_stats WHERE schemaname = 'queue' AND tablename = 'jobs'"
        assert lab.execute(known) == [(0,)]
        size = "pg_relation_size('public.jobs'), reltuples FROM pg_class WHERE relname = 'jobs'"
        assert lab.execute(f"SELECT {size}") == [(0, -1.0)]
        assert drive(lab.session("w1"), lab.start("enqueue", **lab.defaults())) == ["1"]
        lab.reset()


def test_what_a_function_touches_counts(lab_of: LabOf) -> None:
    """A scan in a trigger's body, which no plan shows, is seen as the claim's."""
    more = """
    CREATE FUNCTION scan() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      PERFORM count(*) FROM jobs WHERE payload = '[]';
      RETURN NULL;
    END $$;
    CREATE TRIGGER scanned AFTER UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION scan();
    """
    found = slope(lab_of(queue(more=more)), "finished", MANY)
    assert found.grown
    pages = 40
    assert found.costs[-1].buffers - found.small.buffers > pages


@pytest.mark.parametrize(
    ("header", "both"), [("", True), ("jobs_per_worker = 1", False)], ids=["several jobs", "one"]
)
def test_a_slope_tells_of_the_operations_that_it_measured(
    lab_of: LabOf, header: str, *, both: bool
) -> None:
    """A worker that has one job at a time completes it before it claims the next one."""
    lab = lab_of(queue_file(header=header, claim=f"(limit)\n{CLAIM_MANY}", complete_and_claim=BOTH))
    found = slope(lab, "churned", FEW)
    assert len(found.small.statements) == 1 + both
    assert found.told.startswith(f"buffers per claim{' and complete_and_claim' * both}: ")


def test_a_claim_in_several_transactions_is_measured_whole(lab_of: LabOf) -> None:
    """Statements that commit on their own, and those between BEGIN and COMMIT, add up."""
    scan = "SELECT count(*) AS n FROM jobs WHERE payload <> '[]';"
    once = slope(lab_of(queue(claim=scan + CLAIM)), "finished", MANY).costs[-1]
    several = scan + "BEGIN ISOLATION LEVEL READ COMMITTED; SET TRANSACTION READ WRITE;" + scan
    twice = slope(lab_of(queue(claim=several + CLAIM + "COMMIT;")), "finished", MANY).costs[-1]
    scans = [buffers for sql, buffers in twice.statements if "count" in sql]
    assert len(scans) == 2
    assert twice.buffers > once.buffers
    assert min(scans) > 40


def test_the_index_that_lacks_is_that_of_the_largest_table(lab_of: LabOf) -> None:
    """Nobody needs an index of three slots."""
    slots = "DROP INDEX jobs_enqueued_at_idx; CREATE TABLE slots AS SELECT generate_series(1, 3) n;"
    free = "WITH slot AS MATERIALIZED (SELECT n FROM slots WHERE n < 9 ORDER BY n LIMIT 1)\nUPDATE"
    found = slope(
        lab_of(queue(more=slots, claim=CLAIM.replace("UPDATE", free, 1))), "waiting", MANY
    )
    assert found.index is not None
    assert found.index.sql.startswith("CREATE INDEX ON jobs ")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["waiting", "finished"])
def test_what_cannot_be_multiplied_is_filled_by_its_operations(lab_of: LabOf, kind: str) -> None:
    """The slope says why, and how many jobs there were; that shows a missing index, too."""
    found = slope(lab_of(queue(more=NO_COPIES)), kind, 1_000_000)
    assert "duplicate key" in found.short
    assert found.evidence[f"{kind} jobs"] == ONE_BY_ONE[0]
    assert found.short in found.told
    assert str(ONE_BY_ONE[0] // 1_000) in found.broken


def test_jobs_that_nobody_may_claim_are_told_and_judged_where_promised(lab_of: LabOf) -> None:
    """Jobs not due and another queue's are told, and judged where a queue promises to bear them."""
    lab = lab_of(BROKEN / "steady_cost_due_tomorrow.sql")
    found = measure(lab, offered(lab), [], beside=[[Content("ahead", MANY)]])
    assert not found.broken
    assert f"with {MANY:,} jobs due tomorrow" in found.told
    assert found.evidence["jobs due tomorrow"] == MANY
    assert "due tomorrow" in slope(lab, "ahead", MANY).broken
    # An index of all queues in one order makes a claim walk over another one's backlog.
    costs = []
    for text in (SKIP_LOCKED, reference("jobs_runnable_idx ON jobs (queue, ", "one ON jobs (")):
        lab = lab_of(text)
        measured = measure(lab, offered(lab), [], beside=[[Content("elsewhere", MANY)]])
        assert not measured.broken
        assert f"with {MANY:,} waiting jobs of another queue" in measured.told
        costs.append(measured.beside[-1].buffers)
    assert costs[1] > 4 * costs[0]


LOOKING = queue().replace(
    "-- name: claim(limit)\n",
    """-- name: claim(limit)
SELECT count(payload) AS seen FROM jobs WHERE id = ANY (ARRAY(
  SELECT id FROM jobs WHERE status = 'queued' ORDER BY enqueued_at LIMIT {}
));
""",
)


@pytest.mark.parametrize(("page", "broken"), [(40, False), (1_000_000, True)])
def test_a_higher_cost_that_stays_does_not_grow(lab_of: LabOf, page: int, *, broken: bool) -> None:
    """A claim that looks at a page of jobs, and never at more, costs the same at any depth."""
    found = slope(lab_of(LOOKING.replace("{}", str(page))), "waiting", MANY)
    few, many, more = (cost.buffers for cost in [found.small, *found.costs[-2:]])
    assert many > few * 1.5
    assert many > few + 32
    assert bool(found.broken) == broken
    assert (more > 2 * many) == broken
    assert f"{4 * MANY:,} waiting jobs" in found.told


@pytest.mark.parametrize("more", DEDUPLICATED.values(), ids=DEDUPLICATED)
def test_a_deduplicating_queue_is_filled_with_distinct_jobs(lab_of: LabOf, more: str) -> None:
    """No two jobs are the same, whatever a queue tells them apart by."""
    found = slope(lab_of(queue(more=more)), "waiting", MANY)
    assert not found.unable
    assert not found.short
    assert found.evidence["waiting jobs"] == MANY


@pytest.mark.parametrize(
    ("text", "jobs"),
    [(text_of("sound/delete_on_complete"), [0, 200, MANY]), (queue(complete=GONE), [0, 200])],
    ids=["those that failed, which may be few", "nothing: none are made up"],
)
def test_what_a_queue_keeps_is_multiplied(lab_of: LabOf, text: str, jobs: list[int]) -> None:
    """A queue that keeps nothing of them stays as small as it is."""
    found = slope(lab_of(text), "finished", MANY)
    assert [cost.content.jobs for cost in found.costs] == jobs
    assert (found.short, found.broken) == ("", "")


def test_what_is_not_there_cannot_be_measured(lab_of: LabOf) -> None:
    """A claim that finds nothing is no evidence; finished jobs are, where a queue ends them."""
    claim = CLAIM.replace("status = 'queued' ORDER", "status = 'queued' AND random() < 0 ORDER")
    assert "came back empty" in slope(lab_of(queue(claim=claim)), "finished", MANY).unable
    lab = lab_of(queue(complete=""))
    evidence = {"finished jobs": 0, "waiting jobs": MANY, "claims measured": 6}
    assert slope(lab, "waiting", MANY).evidence == evidence
    assert "no job is finished" in slope(lab, "snapshot", CHURNED).unable


@pytest.mark.parametrize("kind", ["finished", "waiting", "snapshot"])
def test_the_story_shows_the_plan_and_the_remedy(lab_of: LabOf, kind: str) -> None:
    """A claim that got dear is told with its buffers, its statement, its plan and what to do."""
    text = queue() if kind == "snapshot" else queue().replace("CREATE INDEX", "-- CREATE INDEX")
    found = slope(lab_of(text), kind, CHURNED if kind == "snapshot" else MANY)
    guarantee = "old-snapshot" if kind == "snapshot" else "steady-cost"
    story = " ".join(to_text(tell_found(found, guarantee)).split())
    assert found.broken in story
    assert "Update on jobs" in story
    remedy = "idle_in_transaction_session_timeout" if kind == "snapshot" else "CREATE INDEX"
    assert remedy in story


@each("""
    claim => plan => advised => else_
    a function that hides what it reads: an index may be there already
        SELECT id FROM take() => Function Scan on take  (rows=1)
        => inside take; => CREATE INDEX
    an order by the time of the claim, which no index has
        SELECT => Sort Key: (EXTRACT(epoch FROM (now() - made))) DESC
        => a column that does not change as time passes => an index that holds only
    an order that an index has
        SELECT => Sort Key: priority DESC, made
        => an index that holds only what it looks for => as time passes
""")
def test_a_remedy_is_for_what_a_plan_shows(claim: str, plan: str, advised: str, else_: str) -> None:
    """An index is no advice where it may be there already, or has no such order."""
    dear = Cost(Content("waiting", MANY), [(claim, 251)])
    remedy = Slope([dear], guilty=(claim, plan)).remedy
    assert (advised in remedy, else_ in remedy) == (True, False)


def test_a_claim_that_joins_states_by_or_is_cheap_once_done_as_told(lab_of: LabOf) -> None:
    """The remedy names a condition and an index, and with both the claim stays cheap."""
    found = slope(lab_of(queue(claim=OR_CLAIM.format(""))), "finished", MANY)
    assert found.grown
    assert "`WHERE status IN ('queued', 'waiting') AND (…)`" in found.remedy
    assert found.index is not None
    assert found.index.sql in found.remedy
    claim = OR_CLAIM.format("status IN ('queued', 'waiting') AND ")
    done = slope(lab_of(queue(more=f"{found.index.sql};", claim=claim)), "finished", MANY)
    assert not done.grown, done.told


def test_an_index_is_advised_as_what_it_is(lab_of: LabOf) -> None:
    """Rows of a temporary table are to be named as an array; an index of all jobs is called so."""
    claim = """
    BEGIN;
    CREATE TEMPORARY TABLE picked ON COMMIT DROP AS
    SELECT id FROM jobs WHERE status = 'queued' ORDER BY enqueued_at LIMIT :limit
    FOR UPDATE SKIP LOCKED;
    UPDATE jobs SET status = 'running' FROM picked WHERE jobs.id = picked.id RETURNING jobs.id;
    COMMIT;
    """
    found = slope(lab_of(queue(claim=claim)), "finished", MANY)
    assert found.grown
    assert "`WHERE jobs.id = ANY (ARRAY(SELECT id FROM picked))`" in found.remedy
    assert "CREATE INDEX" not in found.remedy
    dear = Cost(Content("finished", MANY), [("SELECT", 251)])
    found = Slope([dear], index=ServingIndex("CREATE INDEX ON d (due)"))
    assert "only jobs that can run" not in found.remedy
    assert "holds finished jobs as well" in found.remedy


@pytest.mark.parametrize("jobs", sorted({*ONE_BY_ONE, *chain(*KINDS["snapshot"].jobs)}))
def test_bare_ids_fill_as_many_pages_as_a_claim_may_read_more(jobs: int) -> None:
    """A table of what waits holds no more of a job than its id, and what is dead stays in it."""
    line_pointer, header, uuid, page = 4, 24, 16, 8192
    assert jobs * (line_pointer + header + uuid) > SLACK * page


@each("""
    guarantee => told
    order => took the 1st of {} ready jobs of priority 0, while one of priority 1 was ready
    no-starvation => behind {} jobs that are due tomorrow: 4 claims answered nothing
""")
def test_what_hides_behind_a_crowd_is_seen(lab_of: LabOf, guarantee: str, told: str) -> None:
    """A page of a hundred hides a job; seen again by its token, and not in the sound parent."""
    probe, name = PROBES[guarantee], guarantee.replace("-", "_")
    lab, sound = lab_of(BROKEN / f"{name}_page_of_hundred.sql"), lab_of(SKIP_LOCKED)
    seen = probe.watch(lab, offered(lab), 0, untold)
    assert told.format(MOST) in seen.broken
    assert seen.found is not None
    assert "LIMIT 100" in to_text(tell_found(seen.found, guarantee))
    assert probe.replay(lab, offered(lab), seen.data) is not None
    assert probe.replay(sound, offered(sound), seen.data) is None


def test_a_number_of_the_sql_says_how_many_jobs_are_before_another(lab_of: LabOf) -> None:
    """A priority that is worth 200 places is worth none behind 201 jobs."""
    lab = lab_of(reference("ORDER BY priority DESC, run_at, id", "ORDER BY id - priority * 200"))
    seen = PROBES["order"].watch(lab, offered(lab), 0, untold)
    assert "took the 1st of 201 ready jobs of priority 0" in seen.broken


def test_whole_seconds_leave_no_plan_untried(lab_of: LabOf) -> None:
    """A job that is due at the next full second is free in each cell of the grid, not by luck."""
    later = "date_trunc('second', now() + :delay) + interval '1 second'"
    labs = map(lab_of, (SKIP_LOCKED, reference("now() + :delay", later)))
    at_once, rounded = (PROBES["claim-limit"].watch(lab, offered(lab), 0, untold) for lab in labs)
    tried = "claims while more jobs were free than a claim may take"
    assert rounded.evidence[tried] == at_once.evidence[tried] > 0


def test_behind_whom_a_job_was_claimed_is_counted(lab_of: LabOf) -> None:
    """Each backlog that a queue can have counts once, as told before it; half a one not at all."""
    lab = lab_of(SKIP_LOCKED)
    told: list[float] = []
    counted = {
        name: dict(PROBES[name].watch(lab, offered(lab), 0, told.append).evidence)
        for name in ("order", "no-starvation")
    }
    assert told == [0, 0, 1 / 2]
    assert counted == {
        "order": {f"claims behind {MOST} ready jobs of priority 0": 1},
        "no-starvation": {
            f"claims behind {MOST} jobs that are due tomorrow": 1,
            f"claims behind {MOST} jobs of another queue": 1,
        },
    }
    fifo = lab_of(reference('order = "priority, fifo"', 'order = "none"'))
    assert not PROBES["order"].watch(fifo, offered(fifo), 0, untold).evidence
    # What an error of an enqueue breaks is judged elsewhere.
    lab = lab_of(reference("CREATE TABLE jobs (", "CREATE TABLE jobs (\n  CHECK (id < 20),"))
    seen = PROBES["order"].watch(lab, offered(lab), 0, untold)
    assert (seen.broken, any(seen.evidence.values())) == ("", False)
