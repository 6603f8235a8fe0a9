-- Models Oban 2.23 with its Basic engine and the Lifeline plugin, the open-source edition:
-- lib/oban/engines/basic.ex, plugins/lifeline.ex and worker.ex at commit 2939e31.
--
-- What it documents: Lifeline rescues purely by time, after 60 minutes by default, so that it may
-- move jobs that are still executing and run them twice; what has used up its attempts is discarded
-- (https://hexdocs.pm/oban/Oban.Plugins.Lifeline.html). What becomes of a result that comes after
-- that is not said. Jobs are taken by priority, then by time.
--
-- Different here:
-- * Lower numbers are more urgent there, from 0 to 9: a priority is stored negated here.
-- * One leader makes scheduled and retryable jobs available there, once a second, and would wait
--   for a locked row. Each claim does it here, passes over what is locked, and has an index.
-- * Times are the client's there and the server's here, so that `server-clock` says nothing about
--   Oban.
-- * To report a result answers `:ok` there, whatever it did; here it is accepted where the row is.
-- * Snoozing, cancelling, unique jobs, notifications and the producer's own records are left out.

-- /// queue
-- leader = true
-- lease = "60 minutes"
-- max_attempts = 20
-- backoff = "17 seconds"
-- jitter = 0.1
-- order = "priority, fifo"
-- ///

-- name: schema#
CREATE TABLE oban_jobs (
  id           bigserial   PRIMARY KEY,
  state        text        NOT NULL DEFAULT 'available'
               CHECK (state IN ('available', 'scheduled', 'executing', 'retryable', 'completed',
                                'discarded', 'cancelled')),
  queue        text        NOT NULL DEFAULT 'default',
  worker       text        NOT NULL DEFAULT 'default',
  args         jsonb       NOT NULL DEFAULT '{}',
  errors       jsonb[]     NOT NULL DEFAULT '{}',
  attempt      int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL DEFAULT 20 CHECK (max_attempts > 0),
  priority     int         NOT NULL DEFAULT 0,
  inserted_at  timestamptz NOT NULL DEFAULT now(),
  scheduled_at timestamptz NOT NULL DEFAULT now(),
  attempted_at timestamptz,
  attempted_by text,
  completed_at timestamptz,
  discarded_at timestamptz,
  CONSTRAINT attempt_range CHECK (attempt BETWEEN 0 AND max_attempts)
);
CREATE INDEX oban_jobs_state_queue_idx ON oban_jobs (state, queue, priority, scheduled_at, id);
-- Not Oban's: see above.
CREATE INDEX oban_jobs_waiting_idx ON oban_jobs (scheduled_at)
  WHERE state IN ('scheduled', 'retryable');

-- name: enqueue(payload, priority, delay, max_attempts, queue)
INSERT INTO oban_jobs (args, priority, queue, max_attempts, scheduled_at, state)
VALUES (:payload, - :priority, :queue, :max_attempts, now() + :delay,
        CASE WHEN :delay > interval '0' THEN 'scheduled' ELSE 'available' END)
RETURNING id;

-- name: claim(worker, limit, queue)
UPDATE oban_jobs
SET state = 'available'
WHERE id = ANY (ARRAY(
  SELECT id
  FROM oban_jobs
  WHERE state IN ('scheduled', 'retryable')
    AND scheduled_at <= now()
  LIMIT 5000
  FOR UPDATE SKIP LOCKED
));
BEGIN;
WITH subset AS MATERIALIZED (
  SELECT id
  FROM oban_jobs
  WHERE state = 'available'
    AND queue = :queue
  ORDER BY priority, scheduled_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
)
UPDATE oban_jobs
SET state        = 'executing',
    attempted_at = now(),
    attempted_by = :worker,
    attempt      = oban_jobs.attempt + 1
FROM subset
WHERE oban_jobs.id = subset.id
  -- After the LIMIT: a row that has used up its attempts takes a place in it.
  AND oban_jobs.attempt < oban_jobs.max_attempts
RETURNING oban_jobs.id,
          oban_jobs.attempt,
          oban_jobs.attempt >= oban_jobs.max_attempts AS last_attempt,
          oban_jobs.args;
COMMIT;

-- name: complete(id)!
UPDATE oban_jobs
SET state        = 'completed',
    completed_at = now()
-- By its number alone, whatever state it is in.
WHERE id = :id;

-- name: fail(id, attempt, last_attempt, error)!
UPDATE oban_jobs
SET state        = CASE WHEN :last_attempt THEN 'discarded' ELSE 'retryable' END,
    discarded_at = CASE WHEN :last_attempt THEN now() ELSE discarded_at END,
    -- 15 s and a power of two, and up to a tenth more.
    scheduled_at = CASE
                     WHEN :last_attempt THEN scheduled_at
                     ELSE now() + interval '1 second'
                                  * trunc((15 + 2 ^ LEAST(:attempt, 20)) * (1 + 0.1 * random()))
                   END,
    errors       = array_append(errors, jsonb_build_object(
                     'at', now(), 'attempt', :attempt::int, 'error', :error::text))
WHERE id = :id;

-- name: recover(lease)
-- Lifeline, once a minute on the leader.
WITH rescued AS (
  UPDATE oban_jobs
  SET state = 'available'
  WHERE state = 'executing'
    AND attempted_at < now() - :lease
    AND attempt < max_attempts
  RETURNING id, state
),
discarded AS (
  UPDATE oban_jobs
  SET state        = 'discarded',
      discarded_at = now()
  WHERE state = 'executing'
    AND attempted_at < now() - :lease
    AND attempt >= max_attempts
  RETURNING id, state
)
SELECT id, state FROM rescued
UNION ALL
SELECT id, state FROM discarded;

-- name: cleanup(age)
DELETE FROM oban_jobs
USING (
  SELECT id
  FROM oban_jobs
  WHERE state = 'completed' AND completed_at < now() - :age
     OR state = 'discarded' AND discarded_at < now() - :age
  LIMIT 10000
) AS old
WHERE oban_jobs.id = old.id;

-- name: jobs
SELECT id,
       CASE state
         WHEN 'executing' THEN 'running'
         WHEN 'completed' THEN 'completed'
         WHEN 'discarded' THEN 'failed'
         ELSE 'queued'
       END AS state,
       attempt AS attempts
FROM oban_jobs;
