-- breaks: old-snapshot
-- Promises what a table that is updated in place cannot keep: while an old snapshot is held, each
-- claimed job keeps its entry in the index of runnable ones, and every claim walks over them all.

-- /// queue
-- extends = "../skip_locked.sql"
-- promises = ["old-snapshot"]
-- ///
