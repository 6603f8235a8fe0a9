"""What is around the workers: clocks, isolation levels, poolers, and what breaks down."""

from __future__ import annotations

from queueproof.guarantees import surroundings

from .family import scenarios

globals().update(scenarios(surroundings.GUARANTEES))
