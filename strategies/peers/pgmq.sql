-- Models pgmq 1.5.1 (commit c8575e3, May 2025): send, read, archive and set_vt of
-- pgmq-extension/sql/pgmq.sql, on an ordinary queue.
--
-- What it documents: "exactly once" delivery of messages to a consumer within a visibility timeout
-- (https://github.com/pgmq/pgmq#readme). After it a message is delivered again, and again: to count
-- is left to the consumer, by read_ct. What becomes of a late archive or set_vt is not said.
--
-- Different here:
-- * These are statements; pgmq has PL/pgSQL functions that build them for the queue's own table. A
--   queue is a table there, so that there is no routing to judge.
-- * There is no `fail`: pgmq has none. A consumer lets the timeout pass, or sets it.
-- * `cleanup` removes what was archived long ago; pgmq leaves that to its user.

-- /// queue
-- lease = "30 seconds"
-- order = "fifo"
-- ///

-- name: schema#
CREATE TABLE q_default (
  msg_id      bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  read_ct     int         NOT NULL DEFAULT 0,
  enqueued_at timestamptz NOT NULL DEFAULT now(),
  vt          timestamptz NOT NULL,  -- not visible before
  message     jsonb
);
CREATE INDEX q_default_vt_idx ON q_default (vt);
CREATE TABLE a_default (
  msg_id      bigint      PRIMARY KEY,
  read_ct     int         NOT NULL,
  enqueued_at timestamptz NOT NULL,
  archived_at timestamptz NOT NULL DEFAULT now(),
  vt          timestamptz NOT NULL,
  message     jsonb
);
CREATE INDEX a_default_archived_at_idx ON a_default (archived_at);

-- name: enqueue(payload, delay)
INSERT INTO q_default (vt, message)
VALUES (clock_timestamp() + :delay, :payload)
RETURNING msg_id AS id;

-- name: claim(limit, lease)
WITH picked AS (
  SELECT msg_id
  FROM q_default
  WHERE vt <= clock_timestamp()
  ORDER BY msg_id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
)
UPDATE q_default
SET vt      = clock_timestamp() + :lease,
    read_ct = read_ct + 1
FROM picked
WHERE q_default.msg_id = picked.msg_id
RETURNING q_default.msg_id AS id, q_default.read_ct, q_default.message;

-- name: complete(id)!
WITH archived AS (
  -- By its number alone, whoever has read the message since.
  DELETE FROM q_default
  WHERE msg_id = :id
  RETURNING msg_id, read_ct, enqueued_at, vt, message
)
INSERT INTO a_default (msg_id, read_ct, enqueued_at, vt, message)
SELECT msg_id, read_ct, enqueued_at, vt, message
FROM archived;

-- name: complete_many(ids)
WITH archived AS (
  DELETE FROM q_default
  WHERE msg_id = ANY (:ids)
  RETURNING msg_id, read_ct, enqueued_at, vt, message
)
INSERT INTO a_default (msg_id, read_ct, enqueued_at, vt, message)
SELECT msg_id, read_ct, enqueued_at, vt, message
FROM archived
RETURNING msg_id AS id;

-- name: heartbeat(id, lease)!
UPDATE q_default
SET vt = clock_timestamp() + :lease
WHERE msg_id = :id;

-- name: cleanup(age)
DELETE FROM a_default
WHERE archived_at < now() - :age;

-- name: jobs
SELECT msg_id AS id,
       CASE WHEN read_ct > 0 AND vt > clock_timestamp() THEN 'running' ELSE 'queued' END AS state,
       read_ct AS attempts
FROM q_default
UNION ALL
SELECT msg_id, 'completed', read_ct
FROM a_default;
