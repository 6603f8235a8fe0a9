"""Queues that somebody else made: what is found in them is recorded, good or bad."""
