"""The sources of a server: embedded, local, a container, or somebody's own by its DSN."""

from queueproof.postgres.server import Server
from queueproof.postgres.sources import open_server

__all__ = ["Server", "open_server"]
