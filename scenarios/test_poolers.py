"""What a pooler between the workers and the server changes: nothing, for a queue that is safe."""

from __future__ import annotations

from queueproof.guarantees import poolers

from .family import scenarios

globals().update(scenarios(poolers.GUARANTEES))
