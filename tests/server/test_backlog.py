"""One job behind more than a page of others."""

from __future__ import annotations

import pytest

from queueproof.probes.backlog import JOBS
from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.report.story import tell_found
from queueproof.report.text import to_text
from tests.fix_labs import LabOf, offered
from tests.fix_places import BROKEN, SKIP_LOCKED, reference

MOST = JOBS[0]


@pytest.mark.parametrize(
    ("guarantee", "told"),
    [
        ("order", "took the 1st of {} ready jobs of priority 0, while one of priority 9 was ready"),
        ("no-starvation", "behind {} jobs that are due tomorrow: 4 claims answered nothing"),
    ],
)
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


def test_behind_whom_a_job_was_claimed_is_counted(lab_of: LabOf) -> None:
    """Each backlog that the queue can have counts once; one that it cannot have, not at all.

    Before each it is told how far it is.
    """
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


def test_an_error_of_an_enqueue_is_no_evidence(lab_of: LabOf) -> None:
    """What it breaks is judged elsewhere: behind half a backlog nothing is said."""
    lab = lab_of(reference("CREATE TABLE jobs (", "CREATE TABLE jobs (\n  CHECK (id < 20),"))
    seen = PROBES["order"].watch(lab, offered(lab), 0, untold)
    assert (seen.broken, any(seen.evidence.values())) == ("", False)
