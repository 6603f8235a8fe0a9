"""A check's units on the workers of a dask cluster, each with a server of its own."""
