"""Probes of what no single interleaving decides: plans, waits, poolers, buffers per claim."""
