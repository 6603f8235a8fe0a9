"""Who gets a job: one worker, within its limit, in order, and not before its time."""

from __future__ import annotations

from queueproof.guarantees import claims

from .family import scenarios

globals().update(scenarios(claims.GUARANTEES))
