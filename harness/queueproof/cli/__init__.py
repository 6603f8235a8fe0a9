"""What people type: a module for each command, and what they have in common."""

from queueproof.cli.app import main, run

__all__ = ["main", "run"]
