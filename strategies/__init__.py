"""Queues under test: the reference, and what it is compared with."""
