// Runs statements on one connection of node-postgres; exits 1 at the first error.
// Arguments: a DSN, and JSON: {"statements": [[sql, params], ...], "name": prefix or null}
const { Client } = require("pg");

async function main(dsn, { statements, name }) {
  const client = new Client({ connectionString: dsn });
  // A connection that is cut is also reported as an event, which would end the process by itself.
  client.on("error", () => {});
  await client.connect();
  for (const [n, [text, values]] of statements.entries()) {
    const prepared = name === null ? {} : { name: `${name}${n}` };
    await client.query(values.length || name !== null ? { text, values, ...prepared } : text);
  }
  await client.end();
}

main(process.argv[2], JSON.parse(process.argv[3])).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
