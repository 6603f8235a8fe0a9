"""Advice on a queue's SQL: a file for somebody's tables, what mends a queue, what tests its check.

What a table's columns are for (`roles.py`) is found in a schema (`propose.py`) or in a queue's own
blocks (`reading.py`). From that one maker writes safe SQL in the user's names (`maker.py`). `init
--from-schema` puts it into a file (`file.py`; what cannot be known is marked with TODO, and no
column is invented). `mend` puts pieces of it into the user's blocks, by operators on clauses
(`clauses.py`), until the stories are gone (`forms.py`, `search.py`). `mutate` turns the operators
round: a mutant is the queue with a clause less or a comparison turned. Each that no guarantee kills
is either equivalent, or a defect that a check of this queue would not have found
(https://en.wikipedia.org/wiki/Mutation_testing).
"""
