"""The cost of a queue: jobs per second and the latency of a claim, by batch size and workers.

`queueproof.bench.bench.measure` measures some queues and returns a `BenchReport`. Nothing is
imported here, because every worker process of a benchmark imports this package.
"""
