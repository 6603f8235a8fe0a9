"""Mending: a small change of a queue's own SQL by which it keeps what it broke."""
