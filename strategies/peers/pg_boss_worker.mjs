// pg-boss 12.38 (https://pgboss.io) as a queue under test:
//
//   queueproof check "exec: node strategies/peers/pg_boss_worker.mjs [--max-attempts 60]"
//
// One PgBoss instance, with its pool, is one worker. Everything goes through its public methods: send, fetch,
// complete, fail and touch with the job that fetch returned, as its own workers do; supervise recovers.
//
// What it promises, and where that is written (docs/ of its repository):
// - at least once: "a handler can run more than once for the same job" (introduction.md, What to expect);
// - a crashed worker's job: `heartbeatSeconds` without a touch, and `supervise` retries or fails it
//   (api/queues.md, Heartbeat vs expiration). `expireInSeconds` bounds a whole attempt instead: it stands at its
//   highest here, a day, so that the heartbeat is the lease;
// - attempts: "retryLimit, default 2", which makes three;
// - backoff: retryDelay * 2 ^ retryCount, of which half is random (api/jobs.md, Retry options): the least wait
//   is half the delay, and once the exponent stands still a wait may be half of the one before;
// - order: by priority, higher first, then by creation (api/jobs.md, fetch).
//
// Background work is off: a pass of the supervisor is `recover`. Its throttle, monitorIntervalSeconds, is on the
// database's clock and cannot be less than a second: of two passes within one, the second looks for nothing.

import { parseArgs } from 'node:util'
import { PgBoss } from 'pg-boss'
import { serve } from './lines.mjs'

const { values: { 'max-attempts': bound } } = parseArgs({ options: { 'max-attempts': { type: 'string', default: '3' } } })

const DAY = 86400 // seconds; the longest interval that it takes
const LEASE = 30
const RETRY_DELAY = 5
const QUEUES = ['default', 'other'] // a queue must be there before a job is sent to it

const QUEUE_OPTIONS = {
  heartbeatSeconds: LEASE,
  expireInSeconds: DAY,
  retryLimit: Number(bound) - 1,
  retryDelay: RETRY_DELAY,
  retryBackoff: true,
  deleteAfterSeconds: 0, // finished jobs stay, so that `jobs` shows how they ended
}

async function start (dsn, options) {
  const boss = new PgBoss({
    connectionString: dsn,
    supervise: false,
    schedule: false,
    registerInstance: false,
    reindex: false,
    monitorVacuum: false,
    monitorIntervalSeconds: 1,
    queueCacheIntervalSeconds: DAY, // what is cached are the queues, which install has made
    idleTimeoutMillis: 0, // pg's: a connection lives as long as its worker
    ...options,
  })
  boss.on('error', console.error)
  boss.on('warning', console.error)
  return boss.start()
}

// The clock that it asks is one function of its own, which names pg_catalog.now(). Its TestClock puts another
// body there (api/testing.md, Controlling time); this one is what makes its time the database's, whatever that is.
const CLOCK = `
  CREATE OR REPLACE FUNCTION pgboss.job_now() RETURNS timestamp with time zone
  LANGUAGE sql STABLE AS 'SELECT now()'`

async function install (dsn) {
  const boss = await start(dsn, { migrate: true })
  await boss.getDb().executeSql(CLOCK)
  for (const name of QUEUES) await boss.createQueue(name, QUEUE_OPTIONS)
  await boss.stop()
}

// sql/job-table.md
const STATES = {
  created: 'queued',
  retry: 'queued',
  active: 'running',
  completed: 'completed',
  failed: 'failed',
}

async function open (dsn) {
  const boss = await start(dsn, { migrate: false })

  async function rows () {
    const sql = 'SELECT id, state::text, retry_count, started_on IS NOT NULL AS started FROM pgboss.job'
    return (await boss.getDb().executeSql(sql)).rows
  }

  const accepted = ({ affected }) => ({ accepted: affected > 0 })

  return {
    async enqueue ({ jobs }) {
      const ids = []
      // One by one: jobs of one insert() are created at the same moment, so that they have no order.
      for (const { payload, priority, delay, max_attempts: most, queue } of jobs) {
        ids.push(await boss.send(queue, payload, { priority, startAfter: delay, retryLimit: most - 1 }))
      }
      return { ids }
    },

    async claim ({ limit, queue }) {
      const jobs = await boss.fetch(queue, { batchSize: limit })
      return { jobs: jobs.map(({ id, retryCount }) => ({ id, retryCount, queue })) }
    },

    complete: async ({ job }) => accepted(await boss.complete(job.queue, job)),

    // The jobs of one claim, which are of one queue.
    async complete_many ({ jobs }) {
      const { settled } = await boss.complete(jobs[0].queue, jobs)
      return { ids: settled }
    },

    fail: async ({ job, error }) => accepted(await boss.fail(job.queue, job, new Error(error))),

    heartbeat: async ({ job }) => accepted(await boss.touch(job.queue, job)),

    // It does not tell which jobs it recovered: those that were active before and wait, or have failed, after.
    async recover () {
      const active = new Set((await rows()).filter(({ state }) => state === 'active').map(({ id }) => id))
      await boss.supervise()
      const recovered = (await rows()).filter(({ id, state }) => active.has(id) && ['retry', 'failed'].includes(state))
      return { ids: recovered.map(({ id }) => id) }
    },

    async jobs () {
      const attempts = (row) => (row.started ? row.retry_count + 1 : 0)
      return { jobs: (await rows()).map((row) => ({ id: row.id, state: STATES[row.state], attempts: attempts(row) })) }
    },
  }
}

await serve({
  facts: {
    lease: LEASE,
    max_attempts: Number(bound),
    backoff: RETRY_DELAY / 2,
    jitter: 0.5,
    order: 'priority, fifo',
  },
  takes: {
    enqueue: ['payload', 'priority', 'delay', 'max_attempts', 'queue'],
    claim: ['limit', 'queue'],
    complete: ['job'],
    complete_many: ['jobs'],
    fail: ['job', 'error'],
    heartbeat: ['job'],
    recover: [],
    jobs: [],
  },
  install,
  open,
})
