-- Models River 0.43 on PostgreSQL: river_job.sql of riverdriver/riverpgxv5, the job rescuer and the
-- default retry policy at commit fdf6cdf (August 2026).
--
-- What it documents: at-least-once execution; a job may run several times after an error, after a
-- completion that could not be saved, after a crash
-- (https://riverqueue.com/docs/reliable-workers). What has run for longer than one hour counts as
-- stuck. What becomes of a result that comes after that is not said. Jobs are taken by priority,
-- then by time.
--
-- Different here:
-- * Lower numbers are more urgent there, from 1 to 4: a priority is stored negated here.
-- * One leader makes scheduled and retryable jobs available there, every five seconds, and would
--   wait for a locked row. Each claim does it here, passes over what is locked, and has an index.
-- * Some times are the client's there (retries, since when a job is stuck); all are the server's
--   here, so that `server-clock` says nothing about River.
-- * Snoozing, cancelling, unique jobs, notifications and the history of attempted_by are left out.

-- /// queue
-- delivery = "at-least-once"
-- leader = true
-- lease = "1 hour"
-- max_attempts = 25
-- backoff = "900 milliseconds"
-- jitter = 0.2
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE river_job (
  id           bigserial   PRIMARY KEY,
  args         jsonb       NOT NULL DEFAULT '{}',
  attempt      smallint    NOT NULL DEFAULT 0,
  attempted_at timestamptz,
  attempted_by text,
  created_at   timestamptz NOT NULL DEFAULT now(),
  errors       jsonb[],
  finalized_at timestamptz,
  kind         text        NOT NULL DEFAULT 'default',
  max_attempts smallint    NOT NULL DEFAULT 25,
  priority     int         NOT NULL DEFAULT 1,
  queue        text        NOT NULL DEFAULT 'default',
  state        text        NOT NULL DEFAULT 'available'
               CHECK (state IN ('available', 'cancelled', 'completed', 'discarded', 'retryable',
                                'running', 'scheduled')),
  scheduled_at timestamptz NOT NULL DEFAULT now(),
  CHECK ((finalized_at IS NOT NULL) = (state IN ('cancelled', 'completed', 'discarded')))
);
CREATE INDEX river_job_prioritized_fetching_idx
  ON river_job (state, queue, priority, scheduled_at, id);
CREATE INDEX river_job_state_finalized_at_idx ON river_job (state, finalized_at)
  WHERE finalized_at IS NOT NULL;
-- Not River's: see above.
CREATE INDEX river_job_waiting_idx ON river_job (scheduled_at)
  WHERE state IN ('retryable', 'scheduled');

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO river_job (args, priority, queue, max_attempts, scheduled_at, state)
VALUES (:payload, - :priority, :queue, :max_attempts, now() + :delay,
        CASE WHEN :delay > interval '0' THEN 'scheduled' ELSE 'available' END)
RETURNING id;

-- name: claim(worker, limit, queue)
UPDATE river_job
SET state = 'available'
WHERE id = ANY (ARRAY(
  SELECT id
  FROM river_job
  WHERE state IN ('retryable', 'scheduled')
    AND scheduled_at <= now()
  ORDER BY priority, scheduled_at, id
  LIMIT 1000
  FOR UPDATE SKIP LOCKED
));
WITH locked_jobs AS (
  SELECT id
  FROM river_job
  WHERE state = 'available'
    AND queue = :queue
    AND scheduled_at <= now()
  ORDER BY priority, scheduled_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
)
UPDATE river_job
SET state        = 'running',
    attempt      = river_job.attempt + 1,
    attempted_at = now(),
    attempted_by = :worker
FROM locked_jobs
WHERE river_job.id = locked_jobs.id
-- What the client knows of the job until it reports back.
RETURNING river_job.id,
          river_job.attempt,
          river_job.attempt >= river_job.max_attempts AS last_attempt,
          COALESCE(cardinality(river_job.errors), 0) AS failure_count,
          river_job.args;

-- name: complete(id)!
UPDATE river_job
SET state        = 'completed',
    finalized_at = now()
WHERE id = :id
  -- Whose attempt it is that runs is not asked.
  AND state = 'running';

-- name: complete_many(ids)
WITH named AS (
  SELECT unnest(:ids::bigint[]) AS id
)
UPDATE river_job
SET state        = 'completed',
    finalized_at = now()
FROM named
WHERE river_job.id = named.id
  AND river_job.state = 'running'
RETURNING river_job.id;

-- name: fail(id, attempt, last_attempt, failure_count, error)!
UPDATE river_job
SET errors       = array_append(errors, jsonb_build_object(
                     'at', now(), 'attempt', :attempt::int, 'error', :error::text)),
    state        = CASE
                     WHEN :last_attempt THEN 'discarded'
                     -- It would be due before the scheduler runs again.
                     WHEN retry.wait <= interval '5 seconds' THEN 'available'
                     ELSE 'retryable'
                   END,
    finalized_at = CASE WHEN :last_attempt THEN now() END,
    scheduled_at = CASE WHEN :last_attempt THEN scheduled_at ELSE now() + retry.wait END
-- The fourth power of the number of errors in seconds, a tenth more or less.
FROM (
  SELECT interval '1 second' * (:failure_count + 1) ^ 4 * (0.9 + 0.2 * random()) AS wait
) AS retry
WHERE id = :id
  AND state = 'running';

-- name: recover(lease, ids, attempts, last_attempts, failure_counts)
-- The leader's rescuer, every thirty seconds: it looks, decides, and then writes by id.
SELECT id,
       attempt,
       attempt >= max_attempts AS last_attempt,
       COALESCE(cardinality(errors), 0) AS failure_count
FROM river_job
WHERE state = 'running'
  AND attempted_at < now() - :lease
ORDER BY id
LIMIT 1000;
UPDATE river_job
SET errors       = array_append(errors, jsonb_build_object(
                     'at', now(), 'attempt', stuck.attempt, 'error', 'stuck job rescued')),
    state        = CASE WHEN stuck.last_attempt THEN 'discarded' ELSE 'retryable' END,
    finalized_at = CASE WHEN stuck.last_attempt THEN now() END,
    scheduled_at = CASE
                     WHEN stuck.last_attempt THEN scheduled_at
                     ELSE now() + interval '1 second' * (stuck.failure_count + 1) ^ 4
                                  * (0.9 + 0.2 * random())
                   END
FROM unnest(:ids, :attempts, :last_attempts, :failure_counts)
       AS stuck (id, attempt, last_attempt, failure_count)
-- Whether it is still running, and still that attempt, is not asked.
WHERE river_job.id = stuck.id
RETURNING river_job.id, river_job.state;

-- name: cleanup(age)
DELETE FROM river_job
WHERE id IN (
  SELECT id
  FROM river_job
  WHERE state IN ('cancelled', 'completed', 'discarded')
    AND finalized_at < now() - :age
  ORDER BY id
  LIMIT 1000
);

-- name: jobs
SELECT id,
       CASE state
         WHEN 'running' THEN 'running'
         WHEN 'completed' THEN 'completed'
         WHEN 'discarded' THEN 'failed'
         WHEN 'cancelled' THEN 'failed'
         ELSE 'queued'
       END AS state,
       attempt AS attempts
FROM river_job;
