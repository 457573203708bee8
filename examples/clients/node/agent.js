// A node agent in Node.js. README.md says how to start it, docs/protocol.md how it works.

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { constants, hostname, tmpdir, userInfo } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { findAddress } from './address.js';
import { EXIT, fromJson, toDuration, toMs } from './protocol.js';
import { Session } from './session.js';
import { Round } from './workers.js';

const SHUTDOWN_MS = 30_000; // between SIGTERM and SIGKILL, unless the specification says otherwise
const TIMER_MS_MAX = 2 ** 31 - 1; // of setTimeout
const OUTCOMES = {
  OUTCOME_SUCCEEDED: 'succeeded',
  OUTCOME_FAILED: 'failed',
  OUTCOME_ABANDONED: 'was abandoned',
  OUTCOME_CANCELLED: 'was cancelled',
};

const log = (text) => console.error(`agent: ${text}`);

/** One node: it holds at most one round, and does what brings it closer to its desired state. */
class Agent {
  #flags;
  #session;
  #folder = mkdtempSync(path.join(tmpdir(), 'agent-'));
  #held = null; // the round whose processes may run here
  #lastRound = 0; // highest that was started here, or stopped before its start here
  #port = null; // reserved for the next round; null while the node is not clean
  #offered = new Set(); // ports of earlier rounds: late workers may still look for them
  #desired = null; // the newest desired state
  #revision = 0; // of it
  #drain = null; // { until, reason, ending }, once this node has to leave
  #notices = []; // of the coordinator, about the round and other nodes
  #waitsFor = null; // what the job waited for in the latest answer to a heartbeat
  #ending = null; // { exitCode, reason, text }, once it is decided how the agent ends
  #isFinishing = false;
  #awaySince = performance.now(); // null while there is a session
  #end;

  constructor(flags) {
    this.#flags = flags;
    this.#session = new Session(flags.coordinator, this);
  }

  /** Takes part in the job until it ends; returns the exit code. */
  async live() {
    const ended = new Promise((resolve) => (this.#end = resolve));
    for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP']) {
      process.on(name, () => this.#onSignal(name));
    }
    process.on('uncaughtException', (error) => this.#fail(error)); // and rejections
    await this.#reservePort();
    this.#session.run();
    const exitCode = await ended;
    rmSync(this.#folder, { recursive: true, force: true });
    return exitCode;
  }

  // --- What the session asks ---------------------------------------------------------------------

  /** Returns what the node is, and everything that it holds. */
  hello() {
    const { identity } = this.#flags;
    const drain = this.#drain && { draining: this.#showDrain() };
    const ready = { round: this.#lastRound, masterPort: this.#port?.number };
    const holds = this.#held ? { held: this.#held.show() } : { ready };
    return { ...identity, ...holds, ...drain, revisionApplied: this.#revision };
  }

  holdsRound() {
    return this.#held !== null;
  }

  onMessage({ message: kind, welcome, desired, notices, acknowledgement }) {
    if (kind === 'welcome') {
      if (this.#awaySince !== null) log(`joined as ${welcome.nodeName}`);
      this.#awaySince = null;
    }
    const newest = welcome ? welcome.desired : desired;
    // Without a desired state the coordinator has not decided yet: whatever runs keeps running.
    if (newest?.state && newest.revision >= this.#revision) {
      this.#desired = newest;
      this.#revision = newest.revision;
      // It may be the node's own drain. Who came first decides how the agent ends.
      if (newest.drain) this.#beginDrain(toMs(newest.drain.timeLeft), newest.drain.reason);
    }
    this.onChange(); // first: the notices of a Welcome are about the round that it orders
    if (welcome || notices) {
      const current = (welcome ? welcome.notices : notices)?.notices ?? [];
      this.#notices = current.map(({ timeLeft, ...rest }) => {
        return { ...rest, until: performance.now() + toMs(timeLeft) };
      });
      this.#writeNotices();
    }
    if (acknowledgement) this.#logWaiting(acknowledgement.waiting);
  }

  onDisconnected(text) {
    if (this.#awaySince === null) log(`no coordinator: ${text}`);
    const now = performance.now();
    this.#awaySince ??= now;
    const isIdle = !this.#held || this.#held.hasEnded || this.#held.state === 'NODE_STATE_FAILED';
    const ends = this.#held?.workers.map(({ exit }) => exit?.endedAt ?? 0) ?? [];
    const since = Math.max(this.#awaySince, ...ends);
    if (isIdle && now - since >= this.#flags.coordinatorTimeoutMs) {
      this.#finish(EXIT.unreachable, 'GOODBYE_REASON_ERROR', 'no coordinator answered in time');
    }
    this.onChange();
  }

  onDismissed(exitCode, text) {
    this.#awaySince ??= performance.now();
    this.#finish(exitCode, 'GOODBYE_REASON_RELEASED', text);
    this.onChange();
  }

  /** Logs what the job waits for when that changes; the text counts the seconds down. */
  #logWaiting(waiting) {
    const waitsFor = waiting && `${waiting.kind} ${waiting.readyNodes}`;
    if (waiting && waitsFor !== this.#waitsFor) log(`waits: ${waiting.text}`);
    this.#waitsFor = waitsFor;
  }

  // --- What the round asks -----------------------------------------------------------------------

  report(make) {
    this.#session.report(make);
  }

  /** Does what brings the node closer to its desired state; safe to call at any time. */
  onChange() {
    this.#followDesired();
    if (this.#drain && !this.#ending) {
      const isDone = !this.#held || (this.#held.hasEnded && !this.#held.isStopping);
      if (isDone || performance.now() >= this.#drain.until) this.#leave(this.#drain.ending);
    }
    if (this.#held?.isClean) this.#letGo();
    if (!this.#ending) return;
    if (this.#held) this.#held.stop(this.#shutdownMs);
    else this.#exit();
  }

  // --- Decisions ---------------------------------------------------------------------------------

  #followDesired() {
    if (!this.#desired || this.#ending) return;
    const { state, run, stop, released, finished } = this.#desired;
    const held = this.#held;
    if (state === 'run') {
      const { number } = run.header;
      if (held && held.number < number) held.stop(this.#shutdownMs);
      else if (!held && this.#port && !this.#drain && number > this.#lastRound) this.#start(run);
    } else if (state === 'stop') {
      if (held && held.number <= stop.round) {
        if (!held.isStopping) log(`round ${held.number} is stopped: ${stop.text}`);
        held.stop(toMs(stop.shutdownTimeout));
      } else if (!held && this.#port && this.#lastRound < stop.round) {
        this.#lastRound = stop.round; // it was stopped before it began here, and never begins
        this.#reportReady();
      }
    } else if (state === 'standby') {
      held?.stop(this.#shutdownMs);
    } else if (state === 'released') {
      const exitCode = released.reason === 'RELEASED_REASON_DRAINED' ? 0 : EXIT.failed;
      const ending = { exitCode, reason: 'GOODBYE_REASON_RELEASED', text: released.text };
      this.#ending = this.#drain?.ending ?? ending;
    } else if (state === 'finished') {
      const failed = finished.noRequeue ? EXIT.noRequeue : EXIT.failed;
      const outcome = `the job ${OUTCOMES[finished.outcome] ?? 'ended'}`;
      const why = finished.verdict?.text ?? '';
      const text = why.startsWith(outcome) ? why : [outcome, why].filter((part) => part).join(': ');
      const codes = { OUTCOME_SUCCEEDED: 0, OUTCOME_CANCELLED: EXIT.cancelled };
      const exitCode = codes[finished.outcome] ?? failed;
      this.#finish(exitCode, 'GOODBYE_REASON_FINISHED', text);
    }
  }

  #start(order) {
    this.#lastRound = order.header.number;
    this.#port.release(); // the worker with rank 0 listens there now
    this.#port = null;
    this.#notices = [];
    const { command, identity } = this.#flags;
    const env = {
      RALLYPOINT_COORDINATOR: this.#session.coordinators,
      RALLYPOINT_JOB_ID: identity.jobId,
      RALLYPOINT_NODE: this.#session.nodeName,
      TORCHELASTIC_RUN_ID: identity.jobId,
    };
    const { readySlackMs } = this.#session;
    const folder = this.#folder;
    this.#held = new Round(order, { command, env, folder, readySlackMs, listener: this });
    log(`round ${order.header.number} begins: ${order.header.worldSize} workers`);
  }

  /** Lets the round go whose processes are gone; the node is ready once it has a new port. */
  async #letGo() {
    const held = this.#held;
    if (this.#ending) {
      this.#held = null;
    } else if (!held.isLetGo) {
      held.isLetGo = true;
      await this.#reservePort();
      this.#held = null;
      if (!this.#ending) this.#reportReady();
      this.onChange();
    }
  }

  #reportReady() {
    const ready = { round: this.#lastRound, masterPort: this.#port.number };
    this.report(() => ({ ready }));
  }

  #beginDrain(timeMs, reason, ending) {
    const until = performance.now() + timeMs;
    if (this.#drain) {
      this.#drain.until = Math.min(this.#drain.until, until); // never taken back
    } else {
      const text = `drained: ${reason}`;
      const drained = { exitCode: 0, reason: 'GOODBYE_REASON_RELEASED', text };
      this.#drain = { until, reason, ending: ending ?? drained };
      log(`drains within ${timeMs / 1000} s: ${reason}`);
      if (this.#held) this.report(() => ({ draining: this.#showDrain() }));
      if (this.#held) this.#held.signalledAt ??= performance.now(); // an exit means: it has left
      this.#writeNotices();
    }
    setTimeout(() => this.onChange(), Math.min(timeMs + 1, TIMER_MS_MAX));
  }

  #showDrain() {
    const { until, reason } = this.#drain;
    return { timeLeft: toDuration(until - performance.now()), reason };
  }

  #onSignal(name) {
    const exitCode = 128 + constants.signals[name];
    const ending = { exitCode, reason: 'GOODBYE_REASON_SIGNAL', text: `received ${name}` };
    if (this.#ending) this.#held?.kill();
    else if (name === 'SIGTERM' && this.#flags.drainMs && !this.#drain) {
      this.#beginDrain(this.#flags.drainMs, ending.text, ending);
    } else this.#leave(ending);
    this.onChange();
  }

  /** Ends the agent; the report lets the other nodes stop before their connections break. */
  #leave(ending) {
    const { exitCode, reason, text } = ending;
    if (this.#held && !this.#held.isStopping && !this.#ending) {
      const leaving = { round: this.#held.number, text };
      this.report(() => ({ leaving }));
    }
    this.#finish(exitCode, reason, text);
  }

  #finish(exitCode, reason, text) {
    this.#ending ??= { exitCode, reason, text };
  }

  async #exit() {
    if (this.#isFinishing) return;
    this.#isFinishing = true;
    const { exitCode, reason, text } = this.#ending;
    log(text);
    await this.#session.leave({ reason, text });
    this.#end(exitCode);
  }

  /** Ends the agent at once because of a bug in it, without leaving its workers behind. */
  #fail(error) {
    console.error(error);
    this.#held?.signal('SIGKILL');
    process.exit(EXIT.bug);
  }

  get #shutdownMs() {
    const { shutdownTimeout } = this.#flags.identity.spec;
    return shutdownTimeout ? toMs(shutdownTimeout) : SHUTDOWN_MS;
  }

  /** Reserves a port by listening there: Node.js cannot bind a port without that. */
  async #reservePort() {
    while (!this.#port) {
      const server = net.createServer((socket) => socket.destroy()).listen(0);
      try {
        await once(server, 'listening');
      } catch (error) {
        log(`no port: ${error.message}`);
        await pause(1000);
        continue;
      }
      const { port } = server.address();
      if (this.#offered.has(port)) server.close();
      else this.#port = { number: port, release: () => server.close() };
      this.#offered.add(port);
    }
  }

  /** Replaces the notice file of the round; without a notice there is none. */
  #writeNotices() {
    if (!this.#held || this.#held.isStopping) return;
    const here = this.#session.nodeName;
    const own = this.#drain && { kind: 'drain', node: here, here: true, ...this.#drain };
    const others = this.#notices.map(({ kind, nodeName, reason, until }) => {
      const name = kind.replace('NOTICE_KIND_', '').toLowerCase();
      return { kind: name, node: nodeName, here: false, reason, until };
    });
    const notices = [...(own ? [own] : []), ...others].sort((a, b) => a.until - b.until);
    const file = this.#held.noticeFile;
    if (!notices.length) return void rmSync(file, { force: true });
    const content = notices.map(({ kind, node, here: isHere, reason, until }) => {
      return { kind, node, here: isHere, reason, deadline: toMonotonicSeconds(until) };
    });
    writeFileSync(`${file}.new`, JSON.stringify(content));
    renameSync(`${file}.new`, file); // so that no reader sees half of it
    log(`notice: ${content.map(({ kind, node }) => `${kind} ${node}`.trim()).join(', ')}`);
  }
}

/** Returns a time of performance.now() on the clock that all processes of a machine share. */
function toMonotonicSeconds(time) {
  return Number(process.hrtime.bigint()) / 1e9 + (time - performance.now()) / 1000;
}

function digest(text) {
  return createHash('sha256').update(text).digest('hex');
}

async function readFlags() {
  const { values, positionals: command } = parseArgs({
    allowPositionals: true,
    options: {
      coordinator: { type: 'string', default: 'localhost:50051' },
      'job-id': { type: 'string' },
      'node-name': { type: 'string' },
      'local-addr': { type: 'string' },
      workers: { type: 'string', default: '1' },
      role: { type: 'string', default: 'default' },
      spec: { type: 'string', default: '{"minNodes": 1, "maxNodes": 1}' },
      'drain-timeout': { type: 'string', default: '0' },
      'coordinator-timeout': { type: 'string', default: '600' },
      'allow-different-programs': { type: 'boolean', default: false },
    },
  });
  if (!values['job-id'] || !command.length) throw new Error('give me --job-id and a command');
  const [program, ...args] = command;
  const identity = {
    protocolVersion: 1,
    minProtocolVersion: 1,
    capabilities: ['CAPABILITY_NOTICES'],
    jobId: values['job-id'],
    spec: fromJson(JSON.parse(values.spec)),
    nodeName: values['node-name'] ?? hostname(),
    nodeNameExplicit: values['node-name'] !== undefined,
    address: values['local-addr'] ?? (await findAddress(values.coordinator.split(',')[0])),
    localWorldSize: Number(values.workers),
    role: values.role,
    hostName: hostname(),
    program: {
      name: path.basename(program),
      argumentsDigest: args.length ? digest(args.join('\0')) : '',
      commandLine: command.join(' ').slice(0, 4096),
      user: userInfo().username,
      mayDiffer: values['allow-different-programs'],
    },
  };
  return {
    identity,
    command,
    coordinator: values.coordinator,
    drainMs: 1000 * Number(values['drain-timeout']),
    coordinatorTimeoutMs: 1000 * Number(values['coordinator-timeout']),
  };
}

let flags;
try {
  flags = await readFlags();
} catch (error) {
  log(error.message);
  process.exit(EXIT.refused);
}
process.exit(await new Agent(flags).live());
