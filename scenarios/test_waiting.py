"""What keeps a worker from its work: locks, deadlocks, jobs that cannot run."""

from __future__ import annotations

from queueproof.guarantees import waiting

from .family import scenarios

globals().update(scenarios(waiting.GUARANTEES))
