// The protocol as JavaScript: its messages, a channel, and what the end of a stream means.

import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

// The types come from the .proto files; no code has to be generated.
const types = loadSync(
  [
    'rallypoint/v1/agent_service.proto',
    'rallypoint/v1/coordinator_service.proto',
    'rallypoint/v1/error_details.proto',
    'rallypoint/v1/event_service.proto',
    'rallypoint/v1/job_service.proto',
    'rallypoint/v1/node_service.proto',
    'status.proto',
  ],
  {
    includeDirs: ['../../../proto', '.'].map((path) =>
      fileURLToPath(new URL(path, import.meta.url)),
    ),
    enums: String, // NODE_STATE_READY, not 2
    longs: Number, // no number of the protocol is larger than 2^53 - 1
    defaults: true, // a field that was not sent has its default; an absent message is null
    oneofs: true, // message.message names the field that is set: 'welcome', 'desired', …
  },
);
export const { AgentService, CoordinatorService, EventService, JobService, NodeService } =
  grpc.loadPackageDefinition(types).rallypoint.v1;

const CONNECT_MS_MAX = 1000;
const RETRY_MS_MAX = 60_000; // longest pause that a coordinator can ask for

/** Exit codes of an agent; a signal n ends it with 128 + n. */
export const EXIT = { failed: 1, refused: 2, bug: 70, unreachable: 75, noRequeue: 93, cancelled: 94 };

// Reasons of refusals that another attempt cannot change, unless there is a RetryInfo.
const FINAL = {
  SPEC_MISMATCH: EXIT.refused,
  NODE_NAME_IN_USE: EXIT.refused,
  NODE_RANK_IN_USE: EXIT.refused,
  ADDRESS_MISMATCH: EXIT.refused,
  PROGRAM_MISMATCH: EXIT.refused,
  PROTOCOL_MISMATCH: EXIT.refused,
  FOREIGN_ROUND: EXIT.failed,
  LIMIT_REACHED: EXIT.failed,
  OLD_RUN: EXIT.failed,
};
const DOMAIN = 'rallypoint.v1'; // of those reasons; another one is of a proxy

/** Opens a client with a channel that it shares with no other, and that uses no proxy. */
export function open(Service, target) {
  return new Service(target, grpc.credentials.createInsecure(), {
    'grpc.enable_http_proxy': 0,
    'grpc.use_local_subchannel_pool': 1, // else a new channel would inherit an old one's back-off
  });
}

/** Waits until a client is connected; fails at the first failure, and after a second. */
export function connect(client) {
  const channel = client.getChannel();
  const { READY, TRANSIENT_FAILURE } = grpc.connectivityState;
  const deadline = Date.now() + CONNECT_MS_MAX;
  return new Promise((resolve, reject) => {
    const look = (late) => {
      const state = channel.getConnectivityState(true);
      if (state === READY) resolve();
      else if (late || state === TRANSIENT_FAILURE) reject(new Error('no coordinator answers'));
      else channel.watchConnectivityState(state, deadline, look);
    };
    look();
  });
}

/** Returns whether a call may succeed if it is made again. */
export function isUnavailable({ code }) {
  return code === grpc.status.UNAVAILABLE;
}

/** Returns the message of error_details.proto in a status, with its name; or null. */
export function readDetail(metadata) {
  return unpack(metadata).find(({ fullName }) => fullName.startsWith('rallypoint.v1.')) ?? null;
}

/** Returns why a call was refused, as a constant; undefined if the status does not say. */
function readReason(metadata) {
  return unpack(metadata).find(({ domain }) => domain === DOMAIN)?.reason;
}

/** Returns how long to wait at least before another attempt; undefined if the status does not say. */
function readRetryMs(metadata) {
  const retry = unpack(metadata).find(({ name }) => name === 'RetryInfo');
  return retry && Math.min(toMs(retry.retryDelay), RETRY_MS_MAX);
}

/** Returns the details of a status, in any order, each with the name of its type. */
function unpack(metadata) {
  const [packed] = metadata?.get('grpc-status-details-bin') ?? [];
  if (!packed) return [];
  const { details } = types['google.rpc.Status'].deserialize(packed);
  return details.flatMap(({ type_url: url, value }) => {
    const [, fullName, name] = /^.*\/((?:\w+\.)*(\w+))$/.exec(url) ?? [];
    // A newer coordinator may send details that these .proto files do not have.
    return types[fullName] ? [{ name, fullName, ...types[fullName].deserialize(value) }] : [];
  });
}

/**
 * Returns what the status of a stream means: { text }, with exitCode if the agent has to give up,
 * unclear if it gives up only when it holds no round, retryMs if it has to wait that long, and owner
 * if another coordinator owns the job.
 */
export function readEnding({ code, details: text, metadata }) {
  if (code === grpc.status.OK) return { text: 'the coordinator closed the stream', isOk: true };
  if (code === grpc.status.INVALID_ARGUMENT || code === grpc.status.UNIMPLEMENTED) {
    return { text, exitCode: EXIT.refused, unclear: true };
  }
  const retryMs = readRetryMs(metadata);
  const detail = readDetail(metadata);
  if (detail?.name === 'NotOwner') return { text, retryMs, owner: detail.address };
  if (retryMs !== undefined) return { text, retryMs };
  return { text, exitCode: FINAL[readReason(metadata)] }; // undefined: the agent connects again
}

/** Returns a google.protobuf.Duration in milliseconds; an absent one is 0. */
export function toMs(duration) {
  return duration ? duration.seconds * 1000 + duration.nanos / 1e6 : 0;
}

/** Returns milliseconds as a google.protobuf.Duration. */
export function toDuration(ms) {
  const whole = Math.max(0, Math.round(ms));
  return { seconds: Math.floor(whole / 1000), nanos: (whole % 1000) * 1e6 };
}

/** Returns protobuf's JSON as the loader wants it: "1.5s" becomes a Duration. */
export function fromJson(value) {
  if (typeof value === 'string' && /^\d+(\.\d+)?s$/.test(value)) {
    return toDuration(1000 * Number.parseFloat(value));
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, fromJson(inner)]));
}
