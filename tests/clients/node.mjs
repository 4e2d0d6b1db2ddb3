// What an application does with @clickhouse/client. Prints what it sees; the test compares two addresses.
//
// usage: node.mjs FOLDER_WITH_NODE_MODULES PORT DATABASE

import { createRequire } from 'node:module'
import { Readable } from 'node:stream'

const [folder, port, database] = process.argv.slice(2)
const { createClient } = createRequire(`${folder}/`)('@clickhouse/client')

const client = (options = {}) => createClient({ url: `http://127.0.0.1:${port}`, database, ...options })
const show = (...values) => console.log(...values.map((v) => (typeof v === 'string' ? v : JSON.stringify(v))))
const attempt = async (what, action) => {
  try {
    show(what, await action())
  } catch (error) {
    // The address is in some texts, and it is the one thing that may differ.
    show(what, error.constructor.name, error.code ?? '', error.type ?? '', error.message.replaceAll(port, 'PORT'))
  }
}

for (const compression of [{}, { request: true, response: true }]) {
  const c = client({ compression })
  await c.command({ query: 'CREATE OR REPLACE TABLE things (id UInt32, name String) ENGINE = MergeTree ORDER BY id' })
  await c.insert({ table: 'things', format: 'JSONEachRow', values: [{ id: 1, name: 'ä' }, { id: 2, name: "it's" }] })
  const rows = Array.from({ length: 20000 }, (_, i) => [i, `name ${i}`])
  await c.insert({ table: 'things', format: 'JSONCompactEachRow', values: Readable.from(rows, { objectMode: true }) })
  const all = await c.query({ query: 'SELECT * FROM things ORDER BY id, name LIMIT 4', format: 'JSONEachRow' })
  show(await all.json())
  const stream = await c.query({ query: 'SELECT number FROM numbers(200000)', format: 'CSV' })
  let count = 0
  for await (const piece of stream.stream()) count += piece.length
  show(count)
  const parameters = { a: "ä'\\", b: -5, c: ['x', 'y'] }
  const answer = await c.query({ query: 'SELECT {a:String}, {b:Int32}, {c:Array(String)}', format: 'JSONCompactEachRow', query_params: parameters })
  show(await answer.json())
  const limited = { query: 'SELECT number FROM numbers(10)', format: 'JSONCompactEachRow', clickhouse_settings: { limit: '3', wait_end_of_query: 1 } }
  show(await (await c.query(limited)).json())
  // Answered by a view where there is one, or an error: direct, ClickHouse does not know the header.
  const required = client({ compression, http_headers: { 'X-Tributary': 'require' } })
  for (const query of [
    'SELECT region, sum(amount) AS total, avg(amount), count() FROM sales GROUP BY region ORDER BY total DESC',
    "SELECT toYear(day) AS year, count() FROM sales WHERE region IN ('north', 'south') GROUP BY year ORDER BY year",
  ])
    for (const format of ['JSONEachRow', 'JSONCompactEachRowWithNamesAndTypes', 'CSV', 'TabSeparatedWithNamesAndTypes'])
      show(await (await required.query({ query, format })).text())
  await required.close()
  await attempt('unknown column', async () => (await c.query({ query: 'SELECT nope FROM things' })).json())
  await attempt('syntax', async () => (await c.query({ query: 'SELEC 1' })).json())
  await attempt('bad data', () => c.insert({ table: 'things', format: 'CSV', values: Readable.from(['x,y\n'], { objectMode: false }) }))
  await attempt('late error', async () => {
    const late = await c.query({ query: 'SELECT throwIf(number = 3), sleepEachRow(0.01) FROM numbers(9)', format: 'CSV', clickhouse_settings: { max_block_size: '1', http_response_buffer_size: '1', max_threads: 1 } })
    return (await late.text()).length > 0
  })
  show((await c.ping()).success)
  await c.close()
}

// Progress headers keep a query alive that is silent for longer than the client waits.
const patient = client({ request_timeout: 700, max_open_connections: 1 })
const slow = { query: 'SELECT sum(sleepEachRow(0.1)) FROM numbers(20) SETTINGS max_block_size = 1', format: 'JSONCompactEachRow' }
await attempt('progress headers', async () => (await patient.query({ ...slow, clickhouse_settings: { send_progress_in_http_headers: 1, http_headers_progress_interval_ms: '100' } })).json())
await patient.close()

const session = client({ session_id: `${database}-${port}` })
await session.command({ query: 'CREATE TEMPORARY TABLE kept (x UInt8)' })
await session.command({ query: 'INSERT INTO kept VALUES (1), (2)' })
show(await (await session.query({ query: 'SELECT sum(x) FROM kept', format: 'JSONCompactEachRow' })).json())
await session.close()

const stopped = new AbortController()
const aborted = client()
setTimeout(() => stopped.abort(), 100)
await attempt('aborted', async () => (await aborted.query({ query: 'SELECT sleep(2)', abort_signal: stopped.signal })).json())
await aborted.close()

const wrong = client({ username: 'reader', password: 'wrong' })
await attempt('wrong password', async () => (await wrong.query({ query: 'SELECT 1' })).json())
await wrong.close()

const several = client({ max_open_connections: 4 })
const answers = Array.from({ length: 40 }, async (_, i) => (await several.query({ query: `SELECT ${i}, count() FROM things`, format: 'JSONCompactEachRow' })).json())
show(await Promise.all(answers))
await several.close()
