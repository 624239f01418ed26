/**
 * What each message of the server makes of the state.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").ServerMessage} ServerMessage
 * @typedef {import("./types.js").Hello} Hello
 * @typedef {import("./types.js").Frame} Frame
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./proposal.js").Proposal} Proposal
 * @typedef {import("./ring.js").Shape} Shape
 */
import { acceptRefused, acceptStored, observeEngines, observeVersions } from "./answers.js";
import { createRing } from "./ring.js";
import { withEvents } from "./viewing.js";

const CLOCK_RESET_SECONDS = 5;
const LONGEST_LIST = 200;

/**
 * @param {State} state
 * @param {ServerMessage} message
 * @param {number} at
 * @returns {State}
 */
export function receive(state, message, at) {
  switch (message.type) {
    case "hello":
      return receiveHello(state, message, at);
    case "history":
      for (const row of message.points) state.ring?.push(row);
      return { ...state };
    case "frame":
      return receiveFrame(state, message, at);
    case "versions":
      return withVersions(state, replaceNewest(state.versions, message.versions), { isComplete: true });
    case "stored": {
      const specs = state.hello?.tunables ?? [];
      const proposal = acceptStored(state.proposal, message, specs);
      return withVersions({ ...state, proposal }, insert(state.versions, [message.version]), { isComplete: false });
    }
    case "refused": {
      const proposal = acceptRefused(state.proposal, message);
      return withVersions({ ...state, proposal }, insert(state.versions, message.newer), { isComplete: false });
    }
    default:
      // A newer server may say more than this page understands.
      return state;
  }
}

/** @param {State} state @param {Hello} hello @param {number} at @returns {State} */
function receiveHello(state, hello, at) {
  const shape = shapeOf(hello);
  const isSameShape = state.ring !== null && JSON.stringify(shape) === JSON.stringify(state.ring.shape);
  const next = {
    ...state,
    connection: { state: /** @type {const} */ ("live"), since: at, attempt: 0, retryAt: null, code: null },
    hello,
    ring: isSameShape ? state.ring : createRing(shape),
    past: isSameShape ? state.past : null,
    paused: isSameShape ? state.paused : null,
    window: Math.min(state.window, hello.windows_seconds.length - 1),
  };
  return withVersions(next, replaceNewest(state.versions, hello.versions), { isComplete: true });
}

/**
 * The newest by Redis's time is shown; its sequence begins anew after a Redis that lost everything. Where that clock
 * was set back, what lies in its future is forgotten.
 *
 * @param {State} state
 * @param {Frame} frame
 * @param {number} at
 * @returns {State}
 */
function receiveFrame(state, frame, at) {
  const { hello, ring } = state;
  if (hello === null || ring === null) return state;
  const time = timeOf(frame, hello);
  const shownTime = state.frame === null ? -Infinity : timeOf(state.frame, hello);
  if (time <= shownTime && time > shownTime - CLOCK_RESET_SECONDS) return state;
  if (time <= shownTime) ring.forgetAfter(time);
  ring.push(frame.point);
  const next = {
    ...state,
    frame,
    events: withEvents(state.events, frame.events ?? []),
    lastFrameAt: at,
    isStale: false,
    numMissed: state.numMissed + numMissedBefore(frame, state),
    proposal: observeEngines(state.proposal, frame.engines),
  };
  return { ...next, ...versionKnowledge(next) };
}

/** Those skipped since the frame before, on this connection. @param {Frame} frame @param {State} state */
function numMissedBefore(frame, { frame: earlier, lastFrameAt, connection }) {
  if (earlier === null || lastFrameAt === null || lastFrameAt < connection.since) return 0;
  return Math.max(0, frame.sequence - earlier.sequence - 1);
}

/** @param {Frame} frame @param {Hello} hello */
function timeOf(frame, hello) {
  return Number(frame.point[hello.point_fields.indexOf("unix_seconds")]);
}

/** @param {Hello} hello @returns {Shape} */
function shapeOf(hello) {
  return {
    fields: hello.point_fields,
    numWindows: hello.windows_seconds.length,
    intervals: hello.interval_names,
    percentiles: hello.percentiles,
  };
}

/** @param {State} state @param {VersionInfo[]} versions @param {{isComplete: boolean}} options @returns {State} */
function withVersions(state, versions, { isComplete }) {
  const { hello } = state;
  const observed =
    hello === null
      ? state.proposal
      : observeVersions(state.proposal, { versions, user: hello.user, specs: hello.tunables, isComplete });
  const proposal = state.frame === null ? observed : observeEngines(observed, state.frame.engines);
  const next = { ...state, versions, proposal };
  return { ...next, ...versionKnowledge(next) };
}

/** @param {Pick<State, "frame" | "versions">} state */
function versionKnowledge({ frame, versions }) {
  const newest = versions[0]?.number ?? null;
  const announced = frame?.announced_version ?? null;
  const oldest = versions.at(-1)?.number ?? -Infinity;
  const heardOf = [announced, ...(frame?.engines ?? []).map((engine) => engine.tunables_version)];
  const isKnown = (/** @type {number | null} */ number) =>
    number === null || number < oldest || versions.some((info) => info.number === number);
  const storedVersion = announced === null || newest === null ? (announced ?? newest) : Math.max(announced, newest);
  return { storedVersion, knowsAllVersions: heardOf.every(isKnown) };
}

/**
 * `newest` is what the server says now; only what is older than all of it stays.
 *
 * @param {VersionInfo[]} known
 * @param {VersionInfo[]} newest
 */
function replaceNewest(known, newest) {
  const oldest = newest.at(-1)?.number ?? 0;
  return [...newest, ...known.filter((version) => version.number < oldest)].slice(0, LONGEST_LIST);
}

/** @param {VersionInfo[]} known @param {VersionInfo[]} added */
function insert(known, added) {
  if (added.length === 0) return known;
  const numbers = new Set(added.map((version) => version.number));
  const merged = [...added, ...known.filter((version) => !numbers.has(version.number))];
  return merged.sort((one, other) => other.number - one.number).slice(0, LONGEST_LIST);
}
