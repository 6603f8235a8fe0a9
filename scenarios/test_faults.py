"""What survives when a connection, a backend or the server dies."""

from __future__ import annotations

from queueproof.guarantees import faults

from .family import scenarios

globals().update(scenarios(faults.GUARANTEES))
