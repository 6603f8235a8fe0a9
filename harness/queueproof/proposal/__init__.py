"""From somebody's tables to a queue file: `queueproof init --from-schema`.

The schema is installed on a real server and read from its catalogue, whoever wrote it in whatever
dialect. What a column is for is told by its name, its type and the values that it may have; what
cannot be known is marked with TODO, and no column is invented.
"""
