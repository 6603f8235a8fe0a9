"""What no single interleaving decides: plans, waits, poolers, buffers per claim."""
