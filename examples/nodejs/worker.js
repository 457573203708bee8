// A worker in Node.js. It meets the workers of its round at a barrier, and prints what each of them
// has sent. Then each worker sets a key, and reads those of all.
//
// The node agent starts it, as README.md says.

import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs, promisify } from 'node:util';

import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

// The types come from the .proto files; no code has to be generated.
const types = loadSync(
  [
    'rallypoint/v1/barrier_service.proto',
    'rallypoint/v1/key_value_service.proto',
    'rallypoint/v1/error_details.proto',
    'status.proto',
  ],
  {
    includeDirs: ['../../proto', '.'].map((path) => fileURLToPath(new URL(path, import.meta.url))),
    enums: String, // BARRIER_BREAK_REASON_LOST, not 1
    longs: String, // epochs and revisions have 64 bits
    defaults: true, // a field that was not sent has its default
  },
);
const { BarrierService, KeyValueService } = grpc.loadPackageDefinition(types).rallypoint.v1;

const env = process.env;
if (env.RALLYPOINT_COORDINATOR === undefined) throw new Error('a node agent has to start this');
const rank = Number(env.RANK);
const worldSize = Number(env.WORLD_SIZE);
const jobId = env.RALLYPOINT_JOB_ID;
let epoch = env.RALLYPOINT_EPOCH; // the latest epoch of the coordinator that this worker knows
let at = 0; // which coordinator is called
let known = { epoch }; // the header of the latest answer about keys; no answer yet

// Proves that this process is a worker of the round.
const metadata = new grpc.Metadata();
metadata.set('rallypoint-worker-token', env.RALLYPOINT_WORKER_TOKEN ?? '');

/** Waits until every rank has called it with this name; returns what each has sent, by rank. */
async function meet(barriers, name, payload, deadline) {
  const request = {
    jobId,
    name,
    participant: { rank },
    payload: Buffer.from(payload),
    requestId: randomUUID(), // the same for every attempt: the coordinator counts them once
  };
  const answer = await retry(barriers, 'arrive', request, { firstEpoch: epoch }, deadline);
  epoch = answer.epoch;
  return answer.payloads;
}

/** Sets a key of the round. */
async function put(keys, key, value, deadline) {
  const writes = [{ key, put: { value: Buffer.from(value) } }];
  const request = { jobId, writes, requestId: randomUUID() };
  const answer = await retry(keys, 'writeKeys', request, { known }, deadline);
  known = answer.header;
}

/** Waits until all of these keys exist; returns their values, in the same order. */
async function get(keys, names, deadline) {
  const timeout = { seconds: 86_400 }; // or until shortly before the deadline
  const answer = await retry(keys, 'getKeys', { jobId, keys: names, timeout }, {}, deadline);
  known = answer.header;
  return answer.kvs.map((kv) => kv.value);
}

/**
 * Calls until the answer is not UNAVAILABLE: the coordinator may be away for a moment. The next
 * attempt is at the next coordinator, if there are several. It pauses between the attempts, and gives
 * up at the deadline. Later attempts also send the fields of `again`: what this worker knew before the
 * first one.
 */
async function retry(clients, method, request, again, deadline) {
  for (let longestMs = 100; ; longestMs = Math.min(2 * longestMs, 2000)) {
    const client = clients[at % clients.length];
    try {
      return await promisify(client[method]).bind(client)(request, metadata, { deadline });
    } catch (error) {
      if (error.code !== grpc.status.UNAVAILABLE || Date.now() >= deadline) throw error;
    }
    at += 1;
    // Drawn at random, so that the workers of a large job do not come back all at once.
    await pause(Math.random() * longestMs);
    request = { ...request, ...again };
  }
}

/** Prints an error. Its status comes last: the coordinator shows the last line as the cause. */
function report(error) {
  const [packed] = error.metadata?.get('grpc-status-details-bin') ?? [];
  const { details } = packed ? types['google.rpc.Status'].deserialize(packed) : { details: [] };
  for (const { type_url: url, value } of details) {
    const name = url.split('/').pop();
    if (name === 'rallypoint.v1.BarrierBroken') {
      const { missing, lost } = types[name].deserialize(value);
      console.error(`missing: ${describe(missing)}; lost: ${describe(lost)}`);
    } else if (name === 'rallypoint.v1.KeysMissing') {
      console.error(`missing keys: ${types[name].deserialize(value).keys.join(', ')}`);
    }
  }
  console.error(error.message); // such as "10 ABORTED: barrier hello failed: …"
}

function describe(participants) {
  const { ranks = [], nodes = [], names = [] } = participants ?? {};
  return [...ranks.map((rank) => `rank ${rank}`), ...nodes, ...names].join(', ') || 'no one';
}

const { values: flags } = parseArgs({ options: { timeout: { type: 'string', default: '60' } } });
const deadline = Date.now() + 1000 * Number(flags.timeout);
const options = {
  'grpc.enable_http_proxy': 0, // the coordinator is on the workers' own network
  // A call that waits at a barrier is silent: pings notice a coordinator whose host is gone.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
};
const addresses = env.RALLYPOINT_COORDINATOR.split(','); // one, or several that share all jobs
const connect = (Service) =>
  addresses.map((address) => new Service(address, grpc.credentials.createInsecure(), options));
const [barriers, keys] = [connect(BarrierService), connect(KeyValueService)];
try {
  const payloads = await meet(barriers, 'hello', `Node.js, rank ${rank}`, deadline);
  for (const [rank, payload] of payloads.entries()) console.log(`rank ${rank} sent: ${payload}`);

  await put(keys, `language/${rank}`, 'Node.js', deadline);
  const names = Array.from({ length: worldSize }, (_, rank) => `language/${rank}`);
  console.log(`languages: ${(await get(keys, names, deadline)).join(', ')}`);
} catch (error) {
  report(error);
  process.exitCode = 1; // the job restarts its workers, or fails
} finally {
  for (const client of [...barriers, ...keys]) client.close();
}
