// The session with the coordinator: it connects, says Hello, sends heartbeats and reports, and
// connects again whenever the stream ends.

import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';

import { AgentService, connect, open, readEnding, toMs } from './protocol.js';

const BACKOFF_MS_MAX = 2000; // a new coordinator waits 2.5 s for its agents
const LEASE_MS = 5000; // until a Welcome says otherwise, and the shortest wait for a Welcome
const RECONNECT_MS = 500; // until a Welcome says otherwise: a node is lost that long after a break
const READY_SLACK_MS = 5000; // the same for a stop, beyond the shutdown timeout
const FAREWELL_MS_MAX = 1000; // longest wait for the answer to Goodbye

const HOPS_MAX = 3; // coordinators disagree for a moment while a job moves between them

export class Session {
  #targets; // of the coordinators that share all jobs, the one to try first
  #owner = ''; // where a coordinator has sent this agent
  #hops = 0; // such moves in a row
  #agent;
  #id = randomBytes(16).toString('hex'); // of this process; a secret
  #connection = 0; // number of the latest connection
  #epoch = 0; // highest that a message had
  #known = {}; // what the last Welcome said and every Hello repeats
  #acknowledged = 0; // the last report that the coordinator has journalled
  #reports = []; // the later ones, oldest first, as functions: ages are those of the sending
  #sent = 0; // the last report that was sent on this connection
  #call = null; // the stream, once it was welcomed
  #intervalMs = 1000;
  #leaseMs = LEASE_MS;
  #reconnectMs = RECONNECT_MS;
  #readySlackMs = READY_SLACK_MS;
  #heartbeat = { number: 0, timer: undefined };
  #left = null; // resolves when the coordinator has accepted the Goodbye

  /** The agent has hello(), holdsRound(), onMessage(), onDisconnected() and onDismissed(). */
  constructor(targets, agent) {
    this.#targets = targets.split(',');
    this.#agent = agent;
  }

  /** The addresses for workers: the one of this connection, and then the others. */
  get coordinators() {
    return [...new Set([this.#target, ...this.#targets])].join(',');
  }

  get #target() {
    return this.#owner || this.#targets[0];
  }

  /** Name of the node, as the coordinator knows it. */
  get nodeName() {
    return this.#known.nodeName;
  }

  /** How long after SIGKILL the coordinator still waits for Ready. */
  get readySlackMs() {
    return this.#readySlackMs;
  }

  /** Queues a report; it is sent until the coordinator acknowledges it, also after a break. */
  report(make) {
    this.#reports.push(make);
    this.#sendReports();
  }

  /** Says Goodbye; returns when the coordinator has accepted it, or after a second without. */
  async leave(goodbye) {
    if (!this.#call) return;
    const accepted = new Promise((resolve) => (this.#left = resolve));
    this.report(() => ({ goodbye }));
    await Promise.race([accepted, pause(FAREWELL_MS_MAX)]);
  }

  /** Stays connected until the coordinator has accepted the Goodbye, or refuses this agent. */
  async run() {
    let backoffMs = this.#backoffMsMin;
    for (;;) {
      const ending = await this.#attempt();
      if (this.#left && ending.isOk) return this.#left();
      if (ending.exitCode !== undefined && !(ending.unclear && this.#agent.holdsRound())) {
        return this.#agent.onDismissed(ending.exitCode, ending.text);
      }
      if (ending.wasWelcome && !ending.unclear) {
        backoffMs = this.#backoffMsMin;
        this.#hops = 0;
      }
      if (ending.owner && this.#hops < HOPS_MAX) {
        this.#hops += 1;
        this.#owner = ending.owner;
        continue; // at once: nothing is lost yet
      }
      this.#hops = 0;
      if (this.#owner) this.#owner = '';
      else if (!ending.wasWelcome) this.#targets.push(this.#targets.shift());
      this.#agent.onDisconnected(ending.text);
      // Half of each pause is random, so that the agents of a large job do not return all at once.
      const asked = (ending.retryMs ?? 0) * (1 + Math.random() / 4);
      await pause(Math.max(asked, (backoffMs * (1 + Math.random())) / 2));
      backoffMs = Math.min(2 * backoffMs, BACKOFF_MS_MAX);
    }
  }

  /** The first pause: there is time for several attempts before the coordinator counts a loss. */
  get #backoffMsMin() {
    return this.#reconnectMs / 10;
  }

  /** Makes one connection, on a new channel; returns how it ended. */
  async #attempt() {
    this.#connection += 1;
    this.#sent = this.#heartbeat.number = 0;
    const client = open(AgentService, this.#target);
    try {
      await connect(client);
      return await this.#converse(client);
    } catch (error) {
      return { text: error.message };
    } finally {
      client.close();
    }
  }

  #converse(client) {
    const call = client.session();
    return new Promise((resolve) => {
      let silence;
      const listen = (ms) => {
        clearTimeout(silence);
        silence = setTimeout(() => {
          call.cancel(); // a stream does not break when its peer vanishes
          end({ text: `no message from the coordinator for ${ms / 1000} s` });
        }, ms);
      };
      const end = (ending) => {
        clearTimeout(silence);
        clearTimeout(this.#heartbeat.timer);
        resolve({ wasWelcome: this.#call === call, ...ending });
        this.#call = null;
      };
      call.on('data', (message) => {
        this.#receive(call, message);
        listen(this.#call ? this.#leaseMs : Math.max(this.#leaseMs, LEASE_MS));
      });
      call.on('status', (status) => end(readEnding(status)));
      call.on('error', () => {}); // its status says the same
      this.#send(call, { hello: this.#hello() });
      listen(Math.max(this.#leaseMs, LEASE_MS));
    });
  }

  #hello() {
    return { ...this.#agent.hello(), ...this.#known, reportsAcknowledged: this.#acknowledged };
  }

  #receive(call, message) {
    if (message.connection !== this.#connection || message.epoch < this.#epoch) return; // old news
    this.#epoch = message.epoch;
    const count = message.acknowledged - this.#acknowledged;
    if (count > 0) {
      this.#reports.splice(0, count);
      this.#acknowledged = message.acknowledged;
    }
    const { welcome, acknowledgement } = message;
    const timing = welcome ?? acknowledgement;
    if (timing?.heartbeatInterval) {
      this.#intervalMs = toMs(timing.heartbeatInterval);
      this.#leaseMs = toMs(timing.lease);
    }
    if (welcome) {
      this.#known = {
        nodeName: welcome.nodeName,
        run: welcome.run,
        coordinatorId: welcome.coordinatorId,
        coordinatorDurable: welcome.coordinatorDurable,
        resumeToken: welcome.resumeToken, // a secret
      };
      this.#learn(welcome.deadlines);
    }
    this.#agent.onMessage(message);
    if (welcome && !this.#call) {
      this.#call = call;
      this.#sendReports();
      this.#beat();
    }
  }

  /** Takes over what the coordinator says about its deadlines; an older one says nothing. */
  #learn(deadlines) {
    if (deadlines?.reconnectWithin) this.#reconnectMs = toMs(deadlines.reconnectWithin);
    if (deadlines?.readySlack) this.#readySlackMs = toMs(deadlines.readySlack);
  }

  #sendReports() {
    for (const [index, make] of this.#reports.entries()) {
      const sequence = this.#acknowledged + 1 + index;
      if (this.#call && sequence > this.#sent) {
        this.#send(this.#call, { sequence, ...make() });
        this.#sent = sequence;
      }
    }
  }

  #beat() {
    this.#heartbeat.number += 1;
    this.#send(this.#call, { heartbeat: { number: this.#heartbeat.number } });
    this.#heartbeat.timer = setTimeout(() => this.#beat(), this.#intervalMs);
  }

  #send(call, message) {
    const envelope = { sessionId: this.#id, connection: this.#connection, epoch: this.#epoch };
    call.write({ ...envelope, ...message });
  }
}
