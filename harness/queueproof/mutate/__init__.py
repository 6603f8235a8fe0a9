"""Does green mean something? Defects planted one by one in a queue's own SQL.

A mutant is the queue with one change: a lock, a condition, an ordering, an assignment or a limit
less, a comparison turned. Each that no guarantee kills is either equivalent, or a defect that a
check of this queue would not have found (https://en.wikipedia.org/wiki/Mutation_testing).
"""
