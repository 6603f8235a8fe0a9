"""What is around the workers: their clocks, and the database's isolation level."""

from __future__ import annotations

from queueproof.guarantees import surroundings

from .family import scenarios

globals().update(scenarios(surroundings.GUARANTEES))
