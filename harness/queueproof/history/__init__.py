"""The calls of a run: what workers asked and were told."""
