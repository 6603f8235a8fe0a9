"""Stories of probes, asked again: each measures for a second and more, and does so thrice."""

from __future__ import annotations

import pytest

from queueproof.probes.probe import untold
from queueproof.probes.probes import PROBES
from queueproof.queues.offer import Offer
from queueproof.report.story import tell_found
from queueproof.report.text import to_text
from queueproof.testing import must_hold
from tests.fix_labs import LabOf
from tests.fix_places import BROKEN, REFERENCE


def test_a_probe_tells_its_story_again(lab_of: LabOf) -> None:
    """What was seen to break breaks when it is replayed, and not in the sound parent."""
    probe = PROBES["steady-cost"]
    lab, sound = lab_of(BROKEN / "steady_cost_no_index.sql"), lab_of(REFERENCE)
    offer = Offer(lab.queue, held=False)
    seen = probe.watch(lab, offer, 0, untold)
    assert seen.broken
    again = probe.replay(lab, offer, seen.data)
    assert seen.found is not None
    assert again is not None
    story = to_text(tell_found(seen.found, "steady-cost"))
    assert to_text(tell_found(again, "steady-cost")) == story
    assert probe.replay(sound, Offer(sound.queue, held=False), seen.data) is None


def test_a_probes_story_is_asked_of_its_probe() -> None:
    """A wait that was too short once is measured again."""
    with pytest.raises(AssertionError, match="backoff: A failed job waits"):
        must_hold("backoff", BROKEN / "backoff_none.sql", probe=True)
    must_hold("backoff", REFERENCE, probe=True)
