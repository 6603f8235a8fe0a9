// The JSON lines that a worker program speaks with queueproof: one object a line on stdin, one answer
// a line on stdout; stderr is its log. What a worker's library is asked to do stands beside this file.

import { createInterface } from 'node:readline'

const RealDate = Date
let ahead = 0 // milliseconds by which this process' clock is ahead of the machine's

const now = () => RealDate.now() + ahead

// Timers are not moved: a library's own intervals would fire in the middle of an operation.
globalThis.Date = new Proxy(RealDate, {
  construct: (target, args, made) => Reflect.construct(target, args.length ? args : [now()], made),
  apply: () => new Date().toString(),
  get: (target, key, self) => (key === 'now' ? now : Reflect.get(target, key, self)),
})

// Libraries wrap what the driver threw, whose `code` is the SQLSTATE, or an errno such as EPIPE.
function sqlstateOf (error) {
  for (let one = error; one; one = one.cause) {
    if (one.syscall) return '08006' // connection_failure
    if (/^[0-9A-Z]{5}$/.test(one.code)) return one.code
  }
  return 'XX000'
}

function told (error) {
  const sqlstate = sqlstateOf(error)
  if (sqlstate === 'XX000') console.error(error)
  return { error: { sqlstate, message: String(error.message) } }
}

/**
 * Answer messages until stdin ends.
 *
 * @param {object} worker
 * @param {object} worker.facts what the queue promises: the keys of a queue file's header, seconds as numbers
 * @param {object} worker.takes each operation's name to the arguments that it wants to be told
 * @param {(dsn: string) => Promise<void>} worker.install makes the tables, in a database that has none
 * @param {(dsn: string) => Promise<object>} worker.open connects; returns each operation's name to a function
 *   from the message to the answer
 */
export async function serve ({ facts, takes, install, open }) {
  let operations = {}
  const known = {
    async init ({ dsn }) {
      operations = await open(dsn)
      return { operations: [...Object.keys(operations), 'clock'], takes, ...facts }
    },
    async install ({ dsn }) {
      await install(dsn)
      return {}
    },
    async clock (message) {
      ahead = message.ahead * 1000
      return {}
    },
  }
  console.log = console.info = console.error // stdout is for answers
  for await (const line of createInterface({ input: process.stdin })) {
    let answer
    try {
      const { op, ...message } = JSON.parse(line)
      const perform = known[op] ?? operations[op]
      if (!perform) throw new Error(`${op} is not offered, or init has not been asked yet`)
      answer = await perform(message)
    } catch (error) {
      answer = told(error)
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
  process.exit(0) // whoever closed stdin waits for nothing, and a pool would
}
