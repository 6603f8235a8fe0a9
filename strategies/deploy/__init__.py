"""New versions of the reference queue: what a rolling deploy of each keeps or breaks."""
