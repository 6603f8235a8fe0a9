"""Queues with one planted defect each, named in their first line."""
