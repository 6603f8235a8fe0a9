"""How often a job is tried, how long it waits in between, and how it ends."""

from __future__ import annotations

from queueproof.guarantees import retries

from .family import scenarios

globals().update(scenarios(retries.GUARANTEES))
