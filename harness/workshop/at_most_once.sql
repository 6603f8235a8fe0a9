-- The limit: a claim takes jobs out for good, in one statement and one commit. A worker that
-- crashes has lost them, so that no queue which keeps its jobs can be faster than this.

-- name: schema#
CREATE TABLE jobs (
  id       bigserial   NOT NULL,
  queue    text        NOT NULL DEFAULT 'default',
  payload  jsonb       NOT NULL DEFAULT '{}',
  priority int         NOT NULL DEFAULT 0,
  run_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX jobs_order_idx ON jobs (queue, priority DESC, run_at, id);

-- name: enqueue(payload, priority, delay, queue)
INSERT INTO jobs (queue, payload, priority, run_at)
VALUES (:queue, :payload, :priority, now() + :delay)
RETURNING id;

-- name: claim(limit, queue)
DELETE FROM jobs
WHERE ctid = ANY (ARRAY(
  SELECT ctid
  FROM jobs
  WHERE queue = :queue
    AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, payload;

-- name: jobs
SELECT id, 'queued' AS state
FROM jobs;
