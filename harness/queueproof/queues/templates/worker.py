#!/usr/bin/env python3
"""A worker of a job queue in one table. Make it yours: call your library where this runs SQL.

    queueproof check "exec: python worker.py"

One process is one worker's life. It reads a JSON object a line from stdin, carries out what that
asks for, and writes its answer in one line to stdout. What it writes to stderr is its log, and when
stdin ends it exits. Needs psycopg: pip install 'psycopg[binary]'
"""

import json
import sys
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Json = dict[str, Any]
Db = psycopg.Connection[Json]

SCHEMA = """
CREATE TABLE jobs (
  id           bigserial   PRIMARY KEY,
  payload      jsonb       NOT NULL,
  status       text        NOT NULL DEFAULT 'queued',  -- then running; completed or failed
  priority     int         NOT NULL,                   -- higher first
  attempts     int         NOT NULL DEFAULT 0,
  max_attempts int         NOT NULL,
  run_at       timestamptz NOT NULL,                   -- not before
  locked_by    text,
  locked_at    timestamptz,
  last_error   text
);
CREATE INDEX jobs_queued ON jobs (priority DESC, run_at, id) WHERE status = 'queued';
CREATE INDEX jobs_running ON jobs (locked_at) WHERE status = 'running'
"""
ENQUEUE = """
INSERT INTO jobs (payload, priority, run_at, max_attempts)
VALUES (%(payload)s, %(priority)s, now() + make_interval(secs => %(delay)s), %(max_attempts)s)
RETURNING id::text
"""
CLAIM = """
UPDATE jobs
SET status = 'running', locked_by = %(worker)s, locked_at = now(), attempts = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status = 'queued' AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT %(limit)s
  FOR UPDATE SKIP LOCKED
))
RETURNING id::text, attempts AS attempt, payload
"""
# Still this worker's, and still this attempt: whoever was paused beyond the lease has lost the job.
MINE = "id = %(id)s AND status = 'running' AND locked_by = %(worker)s AND attempts = %(attempt)s"
COMPLETE = f"UPDATE jobs SET status = 'completed' WHERE {MINE}"
FAIL = f"""
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    run_at = now() + interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10), last_error = %(error)s
WHERE {MINE}
"""
HEARTBEAT = f"UPDATE jobs SET locked_at = now() WHERE {MINE}"
RECOVER = """
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status = 'running' AND locked_at < now() - make_interval(secs => %(lease)s)
  FOR UPDATE SKIP LOCKED
))
RETURNING id::text
"""
JOBS = "SELECT id::text, status AS state, attempts FROM jobs"

# The operations that this queue has, what each wants to be told, and what the queue promises.
# Durations are seconds. What is left out is not promised, and not judged.
DESCRIPTION: Json = {
    "operations": ["enqueue", "claim", "complete", "fail", "heartbeat", "recover", "jobs"],
    "takes": {  # without it, everything: also the name of a queue, which this table does not keep
        "enqueue": ["payload", "priority", "delay", "max_attempts"],
        "claim": ["worker", "limit"],
        "heartbeat": ["worker", "job"],
    },
    "lease": 30,
    "max_attempts": 3,
    "backoff": 5,
    "order": "priority, fifo",
}


def perform(db: Db, message: Json) -> Json:
    """Carry out one message."""
    job = message.get("job", {})  # as this worker's claim answered it
    match message["op"]:
        case "init":
            return DESCRIPTION
        case "install":
            db.execute(SCHEMA)
            return {}
        case "enqueue":
            rows = [{**each, "payload": Jsonb(each["payload"])} for each in message["jobs"]]
            return {"ids": [one["id"] for row in rows for one in db.execute(ENQUEUE, row)]}
        case "claim":
            return {"jobs": db.execute(CLAIM, message).fetchall()}
        case "complete":
            return {"accepted": db.execute(COMPLETE, {**job, **message}).rowcount == 1}
        case "fail":
            return {"accepted": db.execute(FAIL, {**job, **message}).rowcount == 1}
        case "heartbeat":
            return {"accepted": db.execute(HEARTBEAT, {**job, **message}).rowcount == 1}
        case "recover":
            return {"ids": [row["id"] for row in db.execute(RECOVER, message)]}
        case "jobs":
            return {"jobs": db.execute(JOBS).fetchall()}
        case unknown:
            raise ValueError(f"no operation {unknown}")


def main() -> None:
    """Answer until stdin ends."""
    db: Db | None = None
    for line in sys.stdin:
        message = json.loads(line)
        answer: Json
        try:
            if db is None:  # the first message, init or install, brings the address
                db = psycopg.connect(message["dsn"], autocommit=True, row_factory=dict_row)
                db.prepare_threshold = None  # no names: behind any PgBouncer they would be lost
            answer = perform(db, message)
        except psycopg.Error as error:
            answer = {"error": {"sqlstate": error.sqlstate or "XX000", "message": str(error)}}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
