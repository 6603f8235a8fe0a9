-- Nothing is ever updated or deleted: a claim is a row that is put in, and so is a job's end. No
-- dead rows, nothing to vacuum, and no snapshot, however old, in a claim's way. The price: one
-- order, the log's; one attempt per job, without a lease, and a crashed worker's job is a
-- person's to look after; claims go one by one, as does enqueue.

-- /// queue
-- order = "fifo"
-- promises = ["old-snapshot"]
-- stale = "stays"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id          bigserial   PRIMARY KEY,
  payload     jsonb       NOT NULL,
  enqueued_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE claims (
  id         bigint      PRIMARY KEY,  -- the job's
  worker     text        NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ends (
  id       bigint      PRIMARY KEY,  -- the job's
  outcome  text        NOT NULL CHECK (outcome IN ('completed', 'failed')),
  error    text,
  ended_at timestamptz NOT NULL DEFAULT now()
);

-- name: enqueue(payload)
BEGIN;
-- Held until the commit, so that jobs become visible in the order of their ids: a claim would
-- never come back to one that it has passed.
SELECT pg_advisory_xact_lock(hashtext('jobs'));
INSERT INTO jobs (payload)
VALUES (:payload)
RETURNING id;
COMMIT;

-- name: claim(worker, limit)
-- What the lock guards must be read after it was taken.
BEGIN ISOLATION LEVEL READ COMMITTED;
-- Two claims would read the same end of the log: one goes on, the other gets nothing this time.
SELECT 1 AS alone
WHERE pg_try_advisory_xact_lock(hashtext('claims'));
INSERT INTO claims (id, worker)
SELECT id, :worker
FROM jobs
WHERE id > COALESCE((SELECT max(id) FROM claims), 0)
ORDER BY id
LIMIT :limit
RETURNING id;
COMMIT;

-- name: complete(id, worker)!
INSERT INTO ends (id, outcome)
SELECT id, 'completed'
FROM claims
WHERE id = :id
  AND worker = :worker
-- A job ends once: the primary key decides who ended it.
ON CONFLICT DO NOTHING;

-- name: fail(id, worker, error)!
INSERT INTO ends (id, outcome, error)
SELECT id, 'failed', left(:error, 2000)
FROM claims
WHERE id = :id
  AND worker = :worker
ON CONFLICT DO NOTHING;

-- name: jobs
SELECT jobs.id,
       CASE
         WHEN ends.id IS NOT NULL THEN ends.outcome
         WHEN claims.id IS NOT NULL THEN 'running'
         ELSE 'queued'
       END AS state,
       CASE WHEN claims.id IS NULL THEN 0 ELSE 1 END AS attempts
FROM jobs
LEFT JOIN claims ON claims.id = jobs.id
LEFT JOIN ends ON ends.id = jobs.id;
