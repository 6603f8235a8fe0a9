"""What a claim costs as the table grows: pages touched, never time."""

from __future__ import annotations

from queueproof.guarantees import cost

from .family import scenarios

globals().update(scenarios(cost.GUARANTEES))
