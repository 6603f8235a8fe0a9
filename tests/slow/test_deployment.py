"""Two versions of a queue at work on one schema, as a rolling deploy has them."""

import re
from functools import cache
from pathlib import Path

import pytest

from queueproof.errors import QueueproofError
from queueproof.postgres import Server
from queueproof.queues.deployment import Deployment, deployment
from queueproof.queues.model import Queue
from queueproof.queues.sqlfile import load_text
from queueproof.report.card import Card, Judgement, Verdict, together
from queueproof.run.open import open_lab
from tests.fix_commands import Command
from tests.fix_labs import judged
from tests.fix_places import REFERENCE, SKIP_LOCKED, STRATEGIES, reference

HEAD = re.compile(
    r"-- (breaks: (?P<guarantee>[\w-]+)|keeps: everything)\n-- beside: (?P<old>\S+)\n-- \S"
)
NEW = {path.stem: path for path in sorted(STRATEGIES.glob("deploy/*.sql"))}
HEADS = {name: HEAD.match(path.read_text()) for name, path in NEW.items()}
BROKEN = {name: found for name, found in HEADS.items() if found and found["guarantee"]}
SOUND = sorted(NEW.keys() - BROKEN.keys())


def verdicts(queue: Queue, server: Server, *asked: str, profile: str) -> dict[str, Judgement]:
    """What some guarantees say of a queue by their own programs."""
    with open_lab(queue, server) as lab:
        return judged(lab, *asked, profile=profile)


@cache
def broken_by(name: str, server: Server) -> Judgement:
    """What breaks in the first way round that breaks the guarantee a file names."""
    asked = BROKEN[name]["guarantee"]
    ways = deployment(str(REFERENCE), str(NEW[name])).ways
    judgements = (verdicts(way, server, asked, profile="quick")[asked] for way in ways)
    found = next((one for one in judgements if one.verdict == "broken"), None)
    assert found, f"{name}: broken in neither way round"
    return found


def test_each_says_what_it_is() -> None:
    """What it breaks or that it keeps everything, and beside which version it runs."""
    assert None not in HEADS.values()


@pytest.mark.parametrize("name", BROKEN)
def test_a_deployment_breaks_what_its_first_line_says(name: str, server: Server) -> None:
    """Two versions, each sound by itself, break the guarantee where both run."""
    assert name.startswith(BROKEN[name]["guarantee"].replace("-", "_"))
    found = broken_by(name, server)
    assert found.place is not None
    assert re.search(r"w1\sand\sw3\srun\s\S+\.sql,\sw2\sand\sw4\srun\s\S+\.sql;", found.story or "")


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_deployment_is_not_accused(name: str, server: Server) -> None:
    """Neither way round breaks what two versions can do to one another's jobs."""
    asked = [*(one["guarantee"] for one in BROKEN.values()), "stale-recovery", "no-lost-job"]
    for way in deployment(str(REFERENCE), str(NEW[name])).ways:
        found = verdicts(way, server, *asked, profile="glance")
        assert {one.verdict for one in found.values()} == {"holds"}


@pytest.mark.parametrize("name", ["no_deadlock_other_order", "single_claim_another_lock"])
def test_the_new_version_alone_is_sound(name: str, server: Server) -> None:
    """What breaks is the deploy, and not what is deployed."""
    new = load_text(NEW[name].read_text(), NEW[name])
    (found,) = verdicts(new, server, BROKEN[name]["guarantee"], profile="glance").values()
    assert found.verdict == "holds"


def test_the_story_of_a_deployment_is_told_again(server: Server, command: Command) -> None:
    """Its token finds the way round in which it was told, and replays with both files."""
    path = NEW["live_lease_moved_heartbeat"]
    ran = command("replay", REFERENCE, broken_by(path.stem, server).replay, "--with", path)
    assert (ran.code, "It happens again: live-lease is broken." in ran.out) == (1, True)


def card(*verdicts: Verdict) -> Card:
    """A card of some verdicts."""
    named = [Judgement(f"g{n}", v, v, seconds=1.0) for n, v in enumerate(verdicts)]
    return Card("q", "PostgreSQL", 0, 2.0, named)


@pytest.mark.sample
def test_of_two_ways_the_worse_verdict_counts() -> None:
    """Broken beats inconclusive beats accepted beats holds; the times are added."""
    one = card("holds", "broken", "inconclusive", "not-offered")
    both = together([one, card("broken", "inconclusive", "accepted", "holds")])
    assert [one.verdict for one in both.guarantees] == ["broken", "broken", "inconclusive", "holds"]
    assert (both.seconds, both.guarantees[0].seconds) == (4.0, 2.0)


def beside(new: str) -> Deployment:
    """Two versions: the reference, and another one."""
    return Deployment(load_text(SKIP_LOCKED, "old.sql"), load_text(new, "new.sql"))


def test_two_versions_keep_and_do_what_both_can() -> None:
    """The weaker promise counts, others must be the same, and a worker does what both can."""
    both = beside(reference('"5 seconds"', '"1 second"', '"priority, fifo"', '"fifo"'))
    assert both.order == "none"
    assert both.backoff is not None
    assert both.backoff.total_seconds() == 1
    with pytest.raises(QueueproofError, match=r"lease is 0:00:30 in old.sql and 0:01:00 in new"):
        beside(SKIP_LOCKED.replace("30 seconds", "60 seconds", 1))
    # Upkeep is done by whichever version has it.
    more = "\n-- name: promote\nUPDATE jobs SET run_at = now();\n-- name: start\nSELECT :worker;\n"
    assert {"promote", "start"} <= beside(SKIP_LOCKED + more).offers
    before, _, beat = SKIP_LOCKED.partition("-- name: heartbeat")
    less = before + beat[beat.index("-- name: recover") :]
    assert "heartbeat" not in beside(less).offers
    older = load_text(SKIP_LOCKED.partition("-- name: cleanup")[0], "old.sql")
    assert not Deployment(older, older).takes("cleanup")  # `init` writes none: it ended in exit 70


def test_the_two_ways_round_have_tokens_of_their_own() -> None:
    """A digest names both versions and who runs which."""
    one, other = beside(SKIP_LOCKED).ways
    assert one.digest != other.digest
    assert one.cast != other.cast
    assert one.name == other.name == "old.sql with new.sql"


def test_a_new_version_that_does_not_work_is_tried_first(tmp_path: Path, command: Command) -> None:
    """It took the check of one way round, and the search for a remedy, before it was tried."""
    new = tmp_path / "new.sql"
    new.write_text(SKIP_LOCKED.replace("RETURNING id, attempts", "RETURNING idd, attempts"))
    ran = command("check", REFERENCE, "--with", new, "--only", "single-claim")
    assert (ran.code, "column" in ran.err, "seed 0" in ran.out) == (4, True, False)
