-- breaks: old-snapshot
-- Jobs that were claimed are deleted from the table of ready ones, which stays small; but not its
-- index, from which nothing that the old snapshot may still see can be taken out.

-- /// queue
-- extends = "../sound/ready_and_claimed.sql"
-- promises = ["old-snapshot"]
-- ///
