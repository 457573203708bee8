// What an operator does with jobs and nodes. README.md lists the commands.

import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs, promisify } from 'node:util';

import {
  CoordinatorService,
  EventService,
  JobService,
  NodeService,
  fromJson,
  isUnavailable,
  open,
  readDetail,
  toMs,
} from './protocol.js';

const DEADLINE_MS = 10_000; // of every call but a watch, all attempts together
const PAUSE_MS = 250; // before another attempt
const EXIT_FAILED = 1;
const EXIT_USAGE = 2;
const WIDTHS = { JOB: 24, RUN: 3, STATE: 10, ROUND: 5, NODES: 5, WORKERS: 7, RESTARTS: 8, WHY: 0 };

class UsageError extends Error {}

/** Each command: its arguments, and what it does. Those in brackets may be left out. */
const COMMANDS = {
  coordinator: {
    usage: '',
    async run({ coordinators }) {
      const { coordinator } = await coordinators.getCoordinator({});
      const { counts, deadlines, ...facts } = coordinator;
      const { version, coordinatorId, epoch, uptime } = facts;
      printFacts({ version, coordinatorId, epoch, uptime, ...counts, ...deadlines });
    },
  },

  list: {
    usage: '[STATE]',
    async run({ jobs }, state) {
      const filter = state === undefined ? {} : filterOf(state);
      const rows = [];
      for (let pageToken = ''; ;) {
        const page = await jobs.listJobs({ ...filter, pageToken });
        rows.push(...page.jobs.map(rowOf));
        pageToken = page.nextPageToken;
        if (!pageToken) break;
      }
      printTable(Object.keys(WIDTHS), rows);
    },
  },

  get: {
    usage: 'JOB',
    async run({ jobs }, jobId) {
      const { job } = await jobs.getJob({ jobId, view: 'JOB_VIEW_FULL' });
      const { minNodes, maxNodes, maxRestarts } = job.spec;
      printFacts({
        job: job.jobId,
        run: job.run,
        state: stateOf(job),
        round: job.round?.header.number ?? '-',
        size: `${minNodes} to ${maxNodes} nodes`,
        restarts: `${job.restartCount} of ${maxRestarts}`,
        waiting: job.waiting?.text,
        verdict: job.verdict?.text,
      });
      const rows = job.nodes.map(({ name, state, address, assignment, workers }) => {
        const pids = workers.map(({ pid }) => pid).join(' ');
        return [name, shorten(state), address, assignment?.firstRank ?? '-', pids || '-'];
      });
      console.log();
      printTable(['NODE', 'STATE', 'ADDRESS', 'FIRST RANK', 'PIDS'], rows);
    },
  },

  /** Prints a row for every change: of one job until its run has ended, or of all jobs. */
  watch: {
    usage: '[JOB]',
    async run({ jobs }, jobId) {
      const request = jobId === undefined ? {} : { jobId, view: 'JOB_VIEW_SUMMARY' };
      const method = jobId === undefined ? 'watchJobs' : 'watchJob';
      printRow(Object.keys(WIDTHS));
      await follow(jobs.client, method, request, 'afterRevision', (answer) => {
        const changed = answer.jobs ?? (answer.summary ? [answer.summary] : []);
        for (const job of changed) printRow(rowOf(job));
        for (const id of answer.deletedJobIds ?? []) printRow([id, '', 'deleted']);
        return answer.revision;
      });
    },
  },

  /** Prints what has happened since the oldest event that is kept, and then what happens. */
  events: {
    usage: '[JOB]',
    async run({ events }, jobId = '') {
      await follow(
        events.client,
        'watchEvents',
        { jobId, afterSequence: 0 },
        'afterSequence',
        (answer) => {
          for (const { sequence, time, jobId: job, text } of answer.events) {
            console.log(`${sequence}  ${new Date(toMs(time)).toISOString()}  ${job}: ${text}`);
          }
          return answer.lastSequence;
        },
      );
    },
  },

  cancel: {
    usage: 'JOB [REASON]',
    async run({ jobs }, jobId, reason) {
      printJob(await jobs.cancelJob({ jobId, reason, requestId: randomUUID() }));
    },
  },

  restart: {
    usage: 'JOB [REASON]',
    async run({ jobs }, jobId, reason) {
      printJob(await jobs.restartJob({ jobId, reason, requestId: randomUUID() }));
    },
  },

  resize: {
    usage: 'JOB MIN:MAX',
    async run({ jobs }, jobId, nodes) {
      const [, minNodes, maxNodes] = /^(\d+):(\d+)$/.exec(nodes) ?? [];
      if (!minNodes) throw new UsageError(`${nodes}: give me the fewest and most nodes, as 2:4`);
      const update = { minNodes: Number(minNodes), maxNodes: Number(maxNodes) };
      const updateMask = { paths: ['min_nodes', 'max_nodes'] };
      printJob(await jobs.updateJob({ jobId, update, updateMask, requestId: randomUUID() }));
    },
  },

  create: {
    usage: 'JOB SPEC',
    async run({ jobs }, jobId, text) {
      let spec;
      try {
        spec = fromJson(JSON.parse(text));
      } catch (error) {
        throw new UsageError(`the specification is no JSON: ${error.message}`);
      }
      printJob(await jobs.createJob({ jobId, spec, requestId: randomUUID() }));
    },
  },

  delete: {
    usage: 'JOB',
    async run({ jobs }, jobId) {
      await jobs.deleteJob({ jobId, requestId: randomUUID() });
      console.log(`${jobId} is deleted`);
    },
  },

  drain: {
    usage: 'JOB NODE TIME [REASON]',
    async run({ nodes }, jobId, nodeName, drainTimeout, reason) {
      const time = fromJson(drainTimeout);
      if (typeof time === 'string') throw new UsageError(`${drainTimeout}: give me a time, as 60s`);
      const request = { jobId, nodeName, drainTimeout: time, reason, requestId: randomUUID() };
      const { timeLeft } = await nodes.drainNode(request);
      console.log(`${nodeName} leaves within ${toMs(timeLeft) / 1000} s`);
    },
  },

  cordon: {
    usage: 'JOB NODE [REASON]',
    async run({ nodes }, jobId, nodeName, reason) {
      const answer = await nodes.cordonNode({ jobId, nodeName, reason, requestId: randomUUID() });
      const where = answer.connected ? '' : '; no node of that name is connected';
      console.log(`${nodeName} is cordoned${where}`);
    },
  },

  uncordon: {
    usage: 'JOB NODE',
    async run({ nodes }, jobId, nodeName) {
      await nodes.uncordonNode({ jobId, nodeName, requestId: randomUUID() });
      console.log(`${nodeName} is not cordoned`);
    },
  },
};

/** Opens a service whose methods return promises; `client` has those that return streams. */
function openService(Service, target) {
  const client = open(Service, target);
  const call = (method) => async (request) => {
    const deadline = Date.now() + DEADLINE_MS;
    for (;;) {
      try {
        return await promisify(client[method]).call(client, request, { deadline });
      } catch (error) {
        // Safe also if the first attempt counted: what changes something has a request id.
        if (!isUnavailable(error) || Date.now() + PAUSE_MS >= deadline) throw error;
        await pause(PAUSE_MS);
      }
    }
  };
  return new Proxy({ client }, { get: (own, name) => own[name] ?? call(name) });
}

/** Reads a watch; after an interruption it continues behind what it has shown. */
async function follow(client, method, request, after, show) {
  for (;;) {
    try {
      for await (const answer of client[method](request)) request[after] = show(answer);
      return;
    } catch (error) {
      const detail = readDetail(error.metadata);
      if (detail?.name === 'EventsCompacted') {
        console.error(`events before ${detail.oldestSequence} are lost`);
        request[after] = detail.oldestSequence - 1;
      } else if (detail?.name === 'RevisionCompacted') {
        request[after] = 0; // every job is sent again
      } else if (!isUnavailable(error)) {
        throw error;
      }
      await pause(PAUSE_MS);
    }
  }
}

/** Returns the filter of a list for a state, such as "running" or "failed". */
function filterOf(state) {
  const name = state.toUpperCase();
  const isPhase = ['FORMING', 'RUNNING', 'STOPPING'].includes(name);
  return isPhase ? { phases: [`JOB_PHASE_${name}`] } : { outcomes: [`OUTCOME_${name}`] };
}

/** Returns the last word of the name of an enum's value: JOB_PHASE_RUNNING is "running". */
function shorten(value) {
  return value.slice(value.lastIndexOf('_') + 1).toLowerCase();
}

function stateOf({ phase, outcome }) {
  return shorten(phase === 'JOB_PHASE_CLOSED' ? outcome : phase);
}

/** Returns a JobSummary as a row of a table. */
function rowOf(job) {
  const { jobId, run, round, nodeCount, worldSize, restartCount, maxRestarts } = job;
  const why = [job.waiting, job.verdict].filter((text) => text).join('; ');
  const restarts = `${restartCount} of ${maxRestarts}`;
  return [jobId, run, stateOf(job), round || '-', nodeCount, worldSize, restarts, why];
}

function printJob({ job }) {
  printTable(Object.keys(WIDTHS), [rowOf(job)]);
}

/** Prints a row of a table whose other rows are not known yet. */
function printRow(cells) {
  const widths = Object.values(WIDTHS);
  console.log(
    cells
      .map((cell, column) => String(cell).padEnd(widths[column]))
      .join('  ')
      .trimEnd(),
  );
}

function printTable(head, rows) {
  const lines = [head, ...rows];
  const widths = head.map((_, column) => Math.max(...lines.map((row) => `${row[column]}`.length)));
  for (const row of lines) {
    console.log(
      row
        .map((cell, column) => `${cell}`.padEnd(widths[column]))
        .join('  ')
        .trimEnd(),
    );
  }
}

/** Prints a line for each fact that is known, with durations as "1.5s". */
function printFacts(facts) {
  const rows = Object.entries(facts).filter(([, value]) => value !== undefined && value !== '');
  const width = Math.max(...rows.map(([name]) => name.length));
  for (const [name, value] of rows) {
    const text = value?.nanos === undefined ? value : `${toMs(value) / 1000}s`;
    console.log(`${name.padEnd(width)}  ${text}`);
  }
}

/** Returns what the command line asks for. */
function readCommand() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { coordinator: { type: 'string', default: 'localhost:50051' } },
  });
  const [name = '', ...args] = positionals;
  if (!Object.hasOwn(COMMANDS, name)) {
    const usages = Object.entries(COMMANDS).map(([one, { usage }]) =>
      `  ${one} ${usage}`.trimEnd(),
    );
    throw new UsageError(`no command ${name || 'given'}; there are:\n${usages.join('\n')}`);
  }
  const { usage, run } = COMMANDS[name];
  const names = usage.split(' ').filter((word) => word);
  const least = names.filter((word) => !word.startsWith('[')).length;
  if (args.length < least || args.length > names.length) {
    throw new UsageError(`usage: node operator.js ${name} ${usage}`.trimEnd());
  }
  return { target: values.coordinator, act: (services) => run(services, ...args) };
}

try {
  const { target, act } = readCommand();
  const services = {
    coordinators: openService(CoordinatorService, target),
    events: openService(EventService, target),
    jobs: openService(JobService, target),
    nodes: openService(NodeService, target),
  };
  try {
    await act(services);
  } finally {
    for (const { client } of Object.values(services)) client.close();
  }
} catch (error) {
  const isUsage = error instanceof UsageError || error.code?.startsWith?.('ERR_PARSE_ARGS');
  const detail = readDetail(error.metadata);
  console.error(`${error.details ?? error.message}${detail ? ` (${detail.name})` : ''}`);
  process.exitCode = isUsage ? EXIT_USAGE : EXIT_FAILED;
}
