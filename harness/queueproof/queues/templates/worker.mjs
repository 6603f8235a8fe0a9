#!/usr/bin/env node
// A worker of a job queue in one table. Make it yours: call your library where this runs SQL.
//
//     queueproof check "exec: node worker.mjs"
//
// One process is one worker's life. It reads a JSON object a line from stdin, carries out what that
// asks for, and writes its answer in one line to stdout. What it writes to stderr is its log (use
// console.error, never console.log), and when stdin ends it exits. Needs node-postgres: npm i pg

import { createInterface } from 'node:readline'
import pg from 'pg'

const SCHEMA = `
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
CREATE INDEX jobs_running ON jobs (locked_at) WHERE status = 'running'`

const ENQUEUE = `
INSERT INTO jobs (payload, priority, run_at, max_attempts)
VALUES ($1, $2, now() + make_interval(secs => $3), $4)
RETURNING id::text`

const CLAIM = `
UPDATE jobs
SET status = 'running', locked_by = $1, locked_at = now(), attempts = attempts + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status = 'queued' AND run_at <= now()
  ORDER BY priority DESC, run_at, id
  LIMIT $2
  FOR UPDATE SKIP LOCKED
))
RETURNING id::text, attempts AS attempt, payload`

// Still this worker's, and still this attempt: whoever was paused beyond the lease has lost the job.
const MINE = `id = $1 AND status = 'running' AND locked_by = $2 AND attempts = $3`
const COMPLETE = `UPDATE jobs SET status = 'completed' WHERE ${MINE}`
const HEARTBEAT = `UPDATE jobs SET locked_at = now() WHERE ${MINE}`
const FAIL = `
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END,
    run_at = now() + interval '5 seconds' * 2 ^ LEAST(attempts - 1, 10), last_error = $4
WHERE ${MINE}`

const RECOVER = `
UPDATE jobs
SET status = CASE WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status = 'running' AND locked_at < now() - make_interval(secs => $1)
  FOR UPDATE SKIP LOCKED
))
RETURNING id::text`

const JOBS = `SELECT id::text, status AS state, attempts FROM jobs`

// The operations that this queue has, what each wants to be told, and what the queue promises.
// Durations are seconds. What is left out is not promised, and not judged.
const DESCRIPTION = {
  operations: ['enqueue', 'claim', 'complete', 'fail', 'heartbeat', 'recover', 'jobs'],
  takes: { // without it, everything: also the name of a queue, which this table does not keep
    enqueue: ['payload', 'priority', 'delay', 'max_attempts'],
    claim: ['worker', 'limit'],
    heartbeat: ['worker', 'job'],
  },
  lease: 30,
  max_attempts: 3,
  backoff: 5,
  order: 'priority, fifo',
}

let db // one connection, which the first message opens

async function perform(message) {
  const { op, worker, job } = message // job: as this worker's claim answered it
  const rows = async (...query) => (await db.query(...query)).rows
  const ids = async (...query) => (await rows(...query)).map((row) => row.id)
  const accepted = async (sql, ...more) => {
    const { rowCount } = await db.query(sql, [job.id, worker, job.attempt, ...more])
    return { accepted: rowCount === 1 }
  }
  switch (op) {
    case 'init':
      return DESCRIPTION
    case 'install':
      await db.query(SCHEMA)
      return {}
    case 'enqueue': {
      const enqueued = []
      for (const { payload, priority, delay, max_attempts } of message.jobs) {
        enqueued.push(...await ids(ENQUEUE, [JSON.stringify(payload), priority, delay, max_attempts]))
      }
      return { ids: enqueued }
    }
    case 'claim':
      return { jobs: await rows(CLAIM, [worker, message.limit]) }
    case 'complete':
      return accepted(COMPLETE)
    case 'fail':
      return accepted(FAIL, message.error)
    case 'heartbeat':
      return accepted(HEARTBEAT)
    case 'recover':
      return { ids: await ids(RECOVER, [message.lease]) }
    case 'jobs':
      return { jobs: await rows(JOBS) }
    default:
      throw new Error(`no operation ${op}`)
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line)
  let answer
  try {
    if (!db) {
      db = new pg.Client({ connectionString: message.dsn })
      db.on('error', (error) => console.error(error.message)) // a lost connection ends no worker
      await db.connect()
    }
    answer = await perform(message)
  } catch (error) {
    const sqlstate = error instanceof pg.DatabaseError ? error.code : 'XX000'
    answer = { error: { sqlstate, message: error.message } }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
process.exit() // a library's timers and connections would keep the process alive
