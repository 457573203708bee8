// What an operator does with jobs and nodes. README.md lists the commands.

import { randomUUID } from 'node:crypto';
import { parseArgs, promisify } from 'node:util';

import { JobService, NodeService, fromJson, open, readDetail, toMs } from './protocol.js';

const DEADLINE_MS = 10_000; // of every call but a watch

const COMMANDS = {
  async list({ jobs }) {
    for (let pageToken = ''; ; ) {
      const page = await jobs.listJobs({ pageToken });
      for (const job of page.jobs) console.log(describe(job));
      pageToken = page.nextPageToken;
      if (!pageToken) return;
    }
  },

  async get({ jobs }, jobId) {
    const { job } = await jobs.getJob({ jobId, view: 'JOB_VIEW_FULL' });
    print(job);
  },

  /** Prints one line for every change, until the run has ended. */
  async watch({ jobs }, jobId) {
    const call = jobs.client.watchJob({ jobId, view: 'JOB_VIEW_SUMMARY' });
    for await (const { summary } of call) console.log(describe(summary));
  },

  async cancel({ jobs }, jobId, reason) {
    print(await jobs.cancelJob({ jobId, reason, requestId: randomUUID() }));
  },

  async restart({ jobs }, jobId, reason) {
    print(await jobs.restartJob({ jobId, reason, requestId: randomUUID() }));
  },

  async drain({ nodes }, jobId, nodeName, drainTimeout, reason) {
    print(await nodes.drainNode(fromJson({ jobId, nodeName, drainTimeout, reason })));
  },

  async cordon({ nodes }, jobId, nodeName, reason) {
    print(await nodes.cordonNode({ jobId, nodeName, reason }));
  },

  async uncordon({ nodes }, jobId, nodeName) {
    print(await nodes.uncordonNode({ jobId, nodeName }));
  },
};

/** Opens a service whose methods return promises; `client` has those that return streams. */
function openService(Service, target) {
  const client = open(Service, target);
  const call = (method) => (request) =>
    promisify(client[method]).call(client, request, { deadline: Date.now() + DEADLINE_MS });
  return new Proxy({ client }, { get: (own, name) => own[name] ?? call(name) });
}

/** Returns a JobSummary as one line. */
function describe({ jobId, run, phase, outcome, nodeCount, worldSize, waiting, verdict }) {
  const [, state] = /_([A-Z]+)$/.exec(phase === 'JOB_PHASE_CLOSED' ? outcome : phase);
  const counts = `run ${run}, ${nodeCount} nodes, ${worldSize} workers`;
  const why = [waiting, verdict].filter((text) => text).map((text) => `; ${text}`);
  return `${jobId}: ${state.toLowerCase()}, ${counts}${why.join('')}`;
}

/** Prints an answer as protobuf's JSON does, but for fields that are not set. */
function print(answer) {
  const isDuration = (value) => value && Object.keys(value).join() === 'seconds,nanos';
  const show = (_, value) => (isDuration(value) ? `${toMs(value) / 1000}s` : (value ?? undefined));
  console.log(JSON.stringify(answer, show, 2));
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { coordinator: { type: 'string', default: 'localhost:50051' } },
});
const [name, ...args] = positionals;
const services = {
  jobs: openService(JobService, values.coordinator),
  nodes: openService(NodeService, values.coordinator),
};
try {
  if (!Object.hasOwn(COMMANDS, name ?? '')) throw new Error(`commands: ${Object.keys(COMMANDS)}`);
  await COMMANDS[name](services, ...args);
} catch (error) {
  const detail = readDetail(error.metadata);
  console.error(`${error.details ?? error.message}${detail ? ` (${detail.name})` : ''}`);
  process.exitCode = 1;
} finally {
  services.jobs.client.close();
  services.nodes.client.close();
}
