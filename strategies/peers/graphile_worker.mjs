// graphile-worker 0.18 (https://worker.graphile.org) as a queue under test:
//
//   queueproof check "exec: node strategies/peers/graphile_worker.mjs [--max-attempts 60]"
//
// One pool id is one worker. Jobs are added by add_job(), the SQL function (website/docs/sql-add-job.md). A claim has no public
// name: run() claims, works and completes in one. What run() calls for that stands in files of its own under
// dist/sql, which are called here as dist/main.js does, with its retries, its pool and no batching delays.
//
// What it promises, and where that is written (website/docs/ of its repository):
// - at least once: "each job will execute at least once. Most jobs will execute exactly once" (index.md, Reliable);
// - a crashed worker's job stays locked for 4 hours, then a sweep releases it (error-handling.md, Instantaneous
//   exit). There is no heartbeat: a job that runs for longer is taken over (pro/recovery.md, the note);
// - attempts: maxAttempts, 25 unless a job has its own (library/add-job.md);
// - backoff: exp(least(10, attempt)) seconds (exponential-backoff.md);
// - order: numerically ascending priority (library/add-job.md), so the sign is turned here; then run_at.
//
// It has no queues in the sense of routing: a "queue" of its own is a lock that makes jobs run one by one. Which
// worker takes which job is decided by the task's name, so that is what stands for the harness' queue.

import { parseArgs } from 'node:util'
import { makeWorkerUtils } from 'graphile-worker'
import pg from 'pg'
import { serve } from './lines.mjs'

const { values: { 'max-attempts': bound } } = parseArgs({ options: { 'max-attempts': { type: 'string', default: '25' } } })

const dist = import.meta.resolve('graphile-worker')
const inside = (path) => import(new URL(path, dist))

const { makeWithPgClientFromPool } = await inside('helpers.js')
const { makeEnhancedWithPgClient, processSharedOptions } = await inside('lib.js')
const { batchCompleteJobs } = await inside('sql/completeJobs.js')
const { batchFailJobs } = await inside('sql/failJobs.js')
const { batchGetJobs } = await inside('sql/getJobs.js')
const { resetLockedAt } = await inside('sql/resetLockedAt.js')
const { getTaskDetails } = await inside('taskIdentifiers.js')

// A worker caches the numbers of its tasks when it begins. They have to stay what they are while it lives.
const TASKS = ['default', 'other']
const tasksOf = (name) => ({ [name]: async () => {} })

async function install (dsn) {
  const utils = await makeWorkerUtils({ connectionString: dsn })
  await utils.migrate()
  await utils.release()
  const pool = new pg.Pool({ connectionString: dsn })
  await register(pool)
  await pool.end()
}

// As run() would before its first claim. Options are what it caches by: each task has its own.
async function register (pool) {
  const withPgClient = makeEnhancedWithPgClient(makeWithPgClientFromPool(pool))
  const options = {}
  for (const name of TASKS) {
    options[name] = processSharedOptions({})
    await getTaskDetails(options[name], withPgClient, tasksOf(name))
  }
  return options
}

const ADD = `
  SELECT id FROM graphile_worker.add_job($1, payload := $2::json, run_at := now() + $3 * interval '1 second',
    max_attempts := $4, priority := $5)`
const STALE = "SELECT id FROM graphile_worker.jobs WHERE locked_at < now() - interval '4 hours'"
const FREE = 'SELECT id FROM graphile_worker.jobs WHERE id = ANY ($1) AND locked_at IS NULL'
const JOBS = `
  SELECT id, attempts,
    CASE WHEN locked_at IS NOT NULL THEN 'running' WHEN attempts < max_attempts THEN 'queued' ELSE 'failed' END AS state
  FROM graphile_worker.jobs`

async function open (dsn) {
  const pool = new pg.Pool({ connectionString: dsn, idleTimeoutMillis: 0 }) // connections live as long as their worker
  pool.on('error', console.error)
  pool.on('connect', (client) => client.on('error', console.error))
  const withPgClient = makeEnhancedWithPgClient(makeWithPgClientFromPool(pool))
  const options = await register(pool)
  const [anyOptions] = Object.values(options)
  const rows = async (sql, values) => (await pool.query(sql, values)).rows

  // Ending jobs tells its caller nothing; whether it did anything stands in the number of rows.
  async function changed (end) {
    let rowCount = 0
    await end((perform) => withPgClient.withRetries((client) => perform({
      query: async (query) => {
        const result = await client.query(query)
        rowCount = result.rowCount
        return result
      },
    })))
    return rowCount
  }

  const held = ({ id }) => ({ id, job_queue_id: null })

  return {
    async enqueue ({ jobs }) {
      const ids = []
      for (const { payload, priority, delay, max_attempts: most, queue } of jobs) {
        const [{ id }] = await rows(ADD, [queue, JSON.stringify(payload), delay, most, -priority])
        ids.push(id)
      }
      return { ids }
    },

    async claim ({ worker, limit, queue }) {
      const jobs = await batchGetJobs(options[queue], withPgClient, tasksOf(queue), worker, null, limit)
      return { jobs: jobs.map(({ id, attempts }) => ({ id, attempts })) }
    },

    async complete ({ worker, job }) {
      const count = await changed((run) => batchCompleteJobs(anyOptions, run, worker, [held(job)]))
      return { accepted: count > 0 }
    },

    // As it does where completeJobBatchDelay is set.
    async complete_many ({ worker, jobs }) {
      const count = await changed((run) => batchCompleteJobs(anyOptions, run, worker, jobs.map(held)))
      const ids = jobs.map(({ id }) => id)
      return { ids: count === 0 ? [] : count === ids.length ? ids : null }
    },

    async fail ({ worker, job, error }) {
      const failed = [{ job: held(job), message: error }]
      const count = await changed((run) => batchFailJobs(anyOptions, run, worker, failed))
      return { accepted: count > 0 }
    },

    // It does not tell which jobs it released: those that were stale before and are not locked after.
    async recover () {
      const stale = (await rows(STALE)).map(({ id }) => id)
      await resetLockedAt(anyOptions, withPgClient)
      return { ids: stale.length ? (await rows(FREE, [stale])).map(({ id }) => id) : [] }
    },

    jobs: async () => ({ jobs: await rows(JOBS) }),
  }
}

await serve({
  facts: {
    delivery: 'at-least-once',
    lease: 4 * 3600,
    max_attempts: Number(bound),
    backoff: 2.718,
    order: 'priority, fifo',
    breaks: {
      'pooler-safe': '"Yes, pgbouncer might pose an issue if it\'s not done in "connection" mode" (docs/faq.md)',
    },
  },
  takes: {
    enqueue: ['payload', 'priority', 'delay', 'max_attempts', 'queue'],
    claim: ['worker', 'limit', 'queue'],
    complete: ['worker', 'job'],
    complete_many: ['worker', 'jobs'],
    fail: ['worker', 'job', 'error'],
    recover: [],
    jobs: [],
  },
  install,
  open,
})
