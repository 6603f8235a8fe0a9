"""What becomes of a job whose worker crashes, pauses or takes long."""

from __future__ import annotations

from queueproof.guarantees import leases

from .family import scenarios

globals().update(scenarios(leases.GUARANTEES))
