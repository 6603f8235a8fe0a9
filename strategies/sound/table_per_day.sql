-- What is completed goes into a table per day, which the day's first complete makes, so that a
-- month of it can be dropped instead of deleted. One at a time makes tables, under an advisory
-- lock, and asks again once it has it. Nothing but complete goes near them: a claim or a recovery
-- that did would wait for a complete.

-- /// queue
-- lease = "30 seconds"
-- max_attempts = 3
-- order = "fifo"
-- ///

-- name: schema#
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,
  token        uuid,  -- whose the job is; a new one for each claim
  leased_until timestamptz,
  dead         boolean     NOT NULL DEFAULT false
);
CREATE INDEX jobs_free_idx ON jobs (run_at, id) WHERE token IS NULL AND NOT dead;
CREATE INDEX jobs_held_idx ON jobs (leased_until) WHERE token IS NOT NULL;

CREATE TABLE done (
  id       bigint PRIMARY KEY,
  attempts int    NOT NULL,
  day      date   NOT NULL
);

CREATE FUNCTION finish(held bigint, by uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  place text := 'done_' || to_char(today, 'YYYYMMDD');
  tries int;
BEGIN
  IF to_regclass(place) IS NULL THEN
    PERFORM pg_advisory_xact_lock(hashtext('done'));
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (LIKE done INCLUDING ALL) INHERITS (done)', place);
  END IF;
  DELETE FROM jobs WHERE id = held AND token = by RETURNING attempts INTO tries;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  EXECUTE format('INSERT INTO %I VALUES ($1, $2, $3)', place) USING held, tries, today;
  RETURN true;
END $$;

-- name: enqueue(payload, delay, max_attempts)
INSERT INTO jobs (payload, run_at, max_attempts)
VALUES (:payload, now() + :delay, :max_attempts)
RETURNING id;

-- name: claim(limit, lease)
UPDATE jobs
SET token = gen_random_uuid(), attempts = attempts + 1, leased_until = now() + :lease
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE token IS NULL AND NOT dead AND run_at <= now()
  ORDER BY run_at, id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
))
RETURNING id, token, payload;

-- name: complete(id, token)
SELECT finish(:id, :token) AS accepted;

-- name: fail(id, token)!
UPDATE jobs SET token = NULL, dead = attempts >= max_attempts WHERE id = :id AND token = :token;

-- name: heartbeat(id, token, lease)!
UPDATE jobs SET leased_until = now() + :lease WHERE id = :id AND token = :token;

-- name: recover
UPDATE jobs
SET token = NULL, dead = attempts >= max_attempts
WHERE id = ANY (ARRAY(
  SELECT id
  FROM jobs
  WHERE token IS NOT NULL AND leased_until < now()
  FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: jobs
SELECT id,
       CASE WHEN dead THEN 'failed' WHEN token IS NULL THEN 'queued' ELSE 'running' END AS state,
       attempts
FROM jobs
UNION ALL
SELECT id, 'completed', attempts FROM done;
