-- Models Inferable's job queue: control-plane/src/modules/jobs and data.ts of inferablehq/inferable
-- at commit c67acb8 (July 2025), which its article on SKIP LOCKED shows
-- (https://www.inferable.ai/blog/posts/postgres-skip-locked).
--
-- What it documents: a call that stalls is tried again `retryCountOnStall` times, by default never.
-- A function that answers with an error has answered (a rejection), so that `fail` ends the job.
-- No order is promised. What becomes of a result that comes late is not said.
--
-- Different here:
-- * A queue of the harness is a cluster with one service of the same name; a worker is a machine.
-- * Every job has the default timeout of 30 seconds, and the harness's number of attempts.
-- * Ids are ULIDs there and counted here: in both, they sort as they were made.
-- * `attempts_allowed` is there for `jobs` alone, which counts what is gone from
--   remaining_attempts; a recovery takes from that as well as a claim.
-- * Interruptions and approvals, the cache, events and runs are left out, and so is the poll that
--   waits until something is pending.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- ///

-- name: schema#
CREATE SEQUENCE job_numbers;
CREATE TABLE jobs (
  id                       text        NOT NULL UNIQUE
                           DEFAULT lpad(nextval('job_numbers')::text, 12, '0'),
  cluster_id               text        NOT NULL,
  service                  text        NOT NULL,
  target_fn                text        NOT NULL DEFAULT 'default',
  target_args              jsonb       NOT NULL,
  status                   text        NOT NULL DEFAULT 'pending' CHECK (status IN (
                             'pending', 'running', 'stalled', 'success', 'failure')),
  result_type              text CHECK (result_type IN ('resolution', 'rejection')),
  result                   text,
  executing_machine_id     text,
  remaining_attempts       int         NOT NULL DEFAULT 1,
  attempts_allowed         int         NOT NULL,
  timeout_interval_seconds int         NOT NULL DEFAULT 30,
  created_at               timestamptz NOT NULL DEFAULT now(),
  resulted_at              timestamptz,
  last_retrieved_at        timestamptz,
  PRIMARY KEY (cluster_id, id)
);
CREATE INDEX jobs_service_idx ON jobs (cluster_id, service, status);
CREATE INDEX jobs_service_fn_idx ON jobs (cluster_id, service, target_fn, status);

-- name: enqueue(payload, max_attempts, queue)
INSERT INTO jobs (cluster_id, service, target_args, remaining_attempts, attempts_allowed)
VALUES (:queue, :queue, :payload, :max_attempts, :max_attempts)
RETURNING id;

-- name: claim(worker, limit, queue)
UPDATE jobs
SET status               = 'running',
    remaining_attempts   = remaining_attempts - 1,
    last_retrieved_at    = now(),
    executing_machine_id = :worker
WHERE id IN (
  SELECT id
  FROM jobs
  WHERE status = 'pending'
    AND cluster_id = :queue
    AND service = :queue
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
)
  AND cluster_id = :queue
RETURNING id, cluster_id, target_fn, target_args;

-- name: complete(id, cluster_id, worker)!
UPDATE jobs
SET status      = 'success',
    result_type = 'resolution',
    resulted_at = now()
WHERE id = :id
  AND cluster_id = :cluster_id
  -- The machine, and not which of its attempts.
  AND executing_machine_id = :worker
  AND status = 'running'
  AND resulted_at IS NULL;

-- name: fail(id, cluster_id, worker, error)!
UPDATE jobs
SET status      = 'success',
    result_type = 'rejection',
    result      = :error,
    resulted_at = now()
WHERE id = :id
  AND cluster_id = :cluster_id
  AND executing_machine_id = :worker
  AND status = 'running'
  AND resulted_at IS NULL;

-- name: recover
-- Self-healing, every five seconds. Two statements, each in a transaction of its own.
UPDATE jobs
SET status = 'stalled'
WHERE status = 'running'
  AND last_retrieved_at < now() - interval '1 second' * timeout_interval_seconds
  AND timeout_interval_seconds IS NOT NULL;
UPDATE jobs
SET status             = CASE WHEN remaining_attempts > 0 THEN 'pending' ELSE 'failure' END,
    remaining_attempts = CASE WHEN remaining_attempts > 0 THEN remaining_attempts - 1
                              ELSE remaining_attempts END
WHERE status = 'stalled'
RETURNING id, status;

-- name: jobs
SELECT id,
       CASE status
         WHEN 'pending' THEN 'queued'
         WHEN 'running' THEN 'running'
         -- It has been taken from its machine already.
         WHEN 'stalled' THEN 'queued'
         WHEN 'failure' THEN 'failed'
         ELSE CASE result_type WHEN 'rejection' THEN 'failed' ELSE 'completed' END
       END AS state,
       attempts_allowed - remaining_attempts AS attempts
FROM jobs;
