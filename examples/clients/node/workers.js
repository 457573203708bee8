// The workers of one round: started with their environment, watched, stopped.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { constants } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

import { toDuration, toMs } from './protocol.js';

const LOOK_MS = 20; // between two looks at what is left after SIGKILL
const OUTPUT_MS_MAX = 100; // a child of the worker may hold its standard error for longer
const TEXT_CHARS_MAX = 4096; // of a message, and of the end of standard error
const WHOLE_WORKERS_MAX = 16; // whose texts Hello has in full
const TEXT_BYTES_MAX = 1024; // of any other worker
const TEXTS_BYTES_MAX = 2 ** 19; // of all those together

/** What a node holds of a round: its order, and its workers. */
export class Round {
  /**
   * The folder is for files of its workers. What survives SIGKILL is reported before readySlackMs
   * are over. The listener has onChange(), and gets reports.
   */
  constructor(order, { command, env, folder, readySlackMs, listener }) {
    this.order = order;
    this.number = order.header.number;
    this.state = 'NODE_STATE_ASSIGNED';
    this.startFailure = undefined; // text, when a worker could not be started
    this.signalledAt = null; // when the agent first signalled the workers
    this.isStopping = false;
    this.isClean = false; // no process of the round is left
    this.folder = path.join(folder, String(this.number));
    this.noticeFile = path.join(this.folder, 'notices.json');
    this.blockedMs = 0.9 * readySlackMs;
    this.listener = listener;
    mkdirSync(this.folder, { recursive: true });
    this.workers = [];
    for (let localRank = 0; localRank < order.assignment.localWorldSize; localRank += 1) {
      this.workers.push({ localRank, pid: 0, child: null, tail: '', exit: null });
    }
    this.started = this.#start(command, env);
  }

  get hasEnded() {
    return this.workers.every((worker) => worker.exit || (!worker.pid && this.startFailure));
  }

  /** Returns the round as Hello shows it. */
  show() {
    const workers = limitTexts(this.workers.map((worker) => showWorker(worker)));
    return { order: this.order, state: this.state, workers, startFailure: this.startFailure };
  }

  /** Signals the workers to end, and kills after the timeout what is left of their groups. */
  async stop(timeoutMs) {
    if (this.isStopping) return;
    this.isStopping = true;
    this.state = 'NODE_STATE_STOPPING';
    await this.started;
    this.signalledAt ??= performance.now();
    this.signal('SIGTERM');
    await Promise.race([this.#ended(), pause(timeoutMs)]);
    await this.kill();
  }

  /** Kills every process of the round; returns when none is left. */
  async kill() {
    await this.started;
    this.signal('SIGKILL');
    await this.#ended();
    const end = performance.now() + this.blockedMs;
    for (let pids; (pids = this.#findProcesses()).length; await pause(LOOK_MS)) {
      for (const pid of pids) sendSignal(pid, 'SIGKILL');
      if (performance.now() > end && this.state !== 'NODE_STATE_BLOCKED') {
        this.state = 'NODE_STATE_BLOCKED';
        this.#report({ blocked: { round: this.number, pids: pids.slice(0, 64) } });
      }
    }
    this.isClean = true;
    this.listener.onChange();
  }

  async #start(command, env) {
    const started = this.workers.map((worker) => this.#startWorker(worker, command, env));
    const problems = (await Promise.all(started)).filter((problem) => problem);
    for (const worker of this.workers) if (worker.pid) this.#await(worker);
    if (this.isStopping) return;
    const round = this.number;
    if (problems.length) {
      [this.startFailure] = problems;
      this.state = 'NODE_STATE_FAILED';
      this.#report({ startFailed: { round, text: this.startFailure } });
    } else {
      this.state = 'NODE_STATE_STARTED';
      this.#report({ started: { round, pids: this.workers.map(({ pid }) => pid) } });
    }
  }

  /** Starts a worker in a separate process group; returns what is wrong, if anything is. */
  async #startWorker(worker, [program, ...args], env) {
    const errorFile = path.join(this.folder, `error-${worker.localRank}.json`);
    worker.errorFile = errorFile;
    worker.startedAt = performance.now();
    worker.child = spawn(program, args, {
      detached: true,
      env: {
        ...process.env,
        ...env,
        ...environment(this.order, worker.localRank),
        TORCHELASTIC_ERROR_FILE: errorFile,
        RALLYPOINT_NOTICE_FILE: this.noticeFile,
      },
      stdio: ['ignore', 'inherit', 'pipe'],
    });
    worker.ended = once(worker.child, 'exit');
    worker.closed = once(worker.child, 'close');
    for (const promise of [worker.ended, worker.closed]) promise.catch(() => {}); // see below
    try {
      await once(worker.child, 'spawn');
    } catch (error) {
      return `${program}: ${error.code ?? error.message}`;
    }
    worker.pid = worker.child.pid;
    worker.child.stderr.setEncoding('utf8').on('data', (text) => {
      process.stderr.write(text);
      worker.tail = (worker.tail + text).slice(-TEXT_CHARS_MAX);
    });
    return '';
  }

  async #await(worker) {
    const [code, signal] = await worker.ended;
    const [endedAt, clock] = [performance.now(), Date.now()];
    const wasSignalled = this.signalledAt !== null && endedAt >= this.signalledAt;
    await Promise.race([worker.closed, pause(OUTPUT_MS_MAX)]); // the end of its standard error
    const error = readErrorFile(worker.errorFile, clock);
    worker.exit = { code, signal, endedAt, wasSignalled, signalledAt: this.signalledAt, error };
    this.#report({ exited: { round: this.number, workers: [worker] } });
    this.#judge(worker.exit);
    this.listener.onChange();
  }

  /** Notes a failure or success; after a signal of the agent an exit is neither. */
  #judge({ code, wasSignalled }) {
    if (wasSignalled || !['NODE_STATE_ASSIGNED', 'NODE_STATE_STARTED'].includes(this.state)) return;
    if (code !== 0) {
      this.state = 'NODE_STATE_FAILED';
    } else if (this.hasEnded) {
      this.state = 'NODE_STATE_SUCCEEDED';
      this.#report({ succeeded: { round: this.number } });
    }
  }

  /** Reports; the ages of exits are those at the time of sending. */
  #report(report) {
    const { exited } = report;
    const make = () => ({ exited: { ...exited, workers: exited.workers.map(showWorker) } });
    this.listener.report(exited ? make : () => report);
  }

  #ended() {
    return Promise.all(this.workers.filter(({ pid }) => pid).map(({ ended }) => ended));
  }

  /** Returns the living processes of the round, also those that called setsid. */
  #findProcesses() {
    const [groups, mark] = [this.#groups(), `RALLYPOINT_NOTICE_FILE=${this.noticeFile}`];
    return readdirSync('/proc')
      .map(Number)
      .filter((pid) => {
        const { state, group } = readStat(pid);
        if (!state || state === 'Z' || state === 'X') return false; // gone, or a zombie
        return groups.includes(group) || readEnvironment(pid).includes(mark);
      });
  }

  #groups() {
    return this.workers.filter(({ pid }) => pid).map(({ pid }) => pid);
  }

  /** Sends a signal to every process group. */
  signal(signal) {
    for (const group of this.#groups()) sendSignal(-group, signal);
  }
}

/** Returns what a worker learns from its environment about its place. */
function environment({ header, assignment, maxRestarts, workerToken }, localRank) {
  const variables = {
    RANK: assignment.firstRank + localRank,
    LOCAL_RANK: localRank,
    GROUP_RANK: assignment.groupRank,
    ROLE_RANK: assignment.firstRoleRank + localRank,
    ROLE_NAME: assignment.role,
    WORLD_SIZE: header.worldSize,
    LOCAL_WORLD_SIZE: assignment.localWorldSize,
    GROUP_WORLD_SIZE: header.groupWorldSize,
    ROLE_WORLD_SIZE: assignment.roleWorldSize,
    MASTER_ADDR: header.masterAddr,
    MASTER_PORT: header.masterPort,
    TORCHELASTIC_RESTART_COUNT: header.restartCount,
    TORCHELASTIC_MAX_RESTARTS: maxRestarts,
    TORCHELASTIC_USE_AGENT_STORE: 'False', // rank 0 hosts the store
    RALLYPOINT_LOCAL_RANK: localRank,
    RALLYPOINT_RUN: header.run,
    RALLYPOINT_ROUND: header.number,
    RALLYPOINT_EPOCH: header.epoch,
    RALLYPOINT_WORKER_TOKEN: workerToken, // a secret
  };
  return Object.fromEntries(Object.entries(variables).map(([name, value]) => [name, `${value}`]));
}

function showWorker({ localRank, pid, exit, tail, startedAt, errorFile }) {
  const running = pid ? 'WORKER_STATE_RUNNING' : 'WORKER_STATE_PENDING';
  if (!exit) return { localRank, pid, state: running };
  const { code, signal, endedAt, wasSignalled, signalledAt, error } = exit;
  const shown = {
    agentSignalledFirst: wasSignalled,
    age: toDuration(performance.now() - endedAt),
    runTime: toDuration(endedAt - startedAt),
    stderrTail: cut(tail),
  };
  if (code === null) shown.signal = constants.signals[signal];
  else shown.exitCode = code;
  if (wasSignalled) shown.outlivedSignalFor = toDuration(endedAt - signalledAt);
  if (error && code !== 0) Object.assign(shown, { error, errorFile });
  return { localRank, pid, state: 'WORKER_STATE_EXITED', exit: shown };
}

/**
 * Cuts the texts of workers, but for those that failed first: Hello repeats the exits of all, and a
 * message has at most 4 MiB.
 */
export function limitTexts(workers) {
  const isEffect = ({ agentSignalledFirst, exitCode }) => agentSignalledFirst || exitCode === 0;
  const exits = workers.map(({ exit }) => exit).filter((exit) => exit);
  exits.sort((a, b) => isEffect(a) - isEffect(b) || toMs(b.age) - toMs(a.age));
  const others = exits.slice(WHOLE_WORKERS_MAX);
  const bytes = Math.min(TEXT_BYTES_MAX, Math.floor(TEXTS_BYTES_MAX / others.length));
  for (const exit of others) {
    const { error } = exit;
    exit.stderrTail = error ? '' : cut(exit.stderrTail, -bytes);
    if (error) exit.error = { ...error, message: cut(error.message, 0, bytes), traceback: '' };
    if (Buffer.byteLength(exit.errorFile ?? '') > bytes) delete exit.errorFile;
  }
  return workers;
}

/** Returns some bytes of a text; half characters, which no message may have, become U+FFFD. */
function cut(text, start, end) {
  return Buffer.from(text).subarray(start, end).toString();
}

/** Returns the error that a worker recorded as torch's @record does; null when there is none. */
function readErrorFile(file, endedAt) {
  try {
    const { message } = JSON.parse(readFileSync(file, 'utf8'));
    return {
      message: cut(`${message.message ?? message}`.slice(0, TEXT_CHARS_MAX)),
      traceback: cut(`${message.extraInfo?.py_callstack ?? ''}`.slice(-4 * TEXT_CHARS_MAX)),
      ageAtExit: toDuration(endedAt - statSync(file).mtimeMs),
    };
  } catch {
    return null; // there is none, or it is broken: the last lines of standard error have to do
  }
}

/** Sends a signal to a process, or to a process group by its negative number. */
function sendSignal(target, signal) {
  try {
    process.kill(target, signal);
  } catch (error) {
    if (!['ESRCH', 'EPERM'].includes(error.code)) throw error; // gone, or of another user
  }
}

/** Returns state and process group of a process; nothing if it is gone, or no process. */
function readStat(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [state, , group] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state, group: Number(group) };
  } catch {
    return {};
  }
}

/** Returns the variables that a process was started with; none if it is gone, or of another user. */
function readEnvironment(pid) {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
  } catch {
    return [];
  }
}
