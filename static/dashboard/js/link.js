/**
 * Joins socket, store and commands: what the server says goes into the store, what the operator decides goes out.
 *
 * @typedef {import("./types.js").ServerMessage} ServerMessage
 * @typedef {import("./types.js").Terms} Terms
 * @typedef {import("./types.js").Timers} Timers
 * @typedef {import("./types.js").Clock} Clock
 * @typedef {import("./store.js").Store} Store
 * @typedef {import("./state.js").State} State
 * @typedef {import("./socket.js").Socket} Socket
 * @typedef {import("./commands.js").Answer} Answer
 */
import { createCommands } from "./commands.js";
import { canSend } from "./proposal.js";
import { openLiveSocket } from "./socket.js";

const TICK_MS = 500;
export const PROBE_AFTER_MS = 10_000;
export const PROBE_WITHIN_MS = 5_000;

/**
 * @typedef {object} Link
 * @property {() => void} retryNow for when the browser is online again, or the page in sight
 * @property {(terms?: Terms) => void} apply sends the proposal, where it may be sent
 * @property {(version: number, reason?: string) => Promise<Answer>} rollBack on top of the newest version known here
 */

/**
 * Opens the connection, and keeps it. Every frame is acknowledged once it is in the store. A connection on which
 * nothing is heard any more is asked something: frames stop with the monitor too, so that silence alone proves nothing.
 *
 * @param {object} parts
 * @param {string} parts.url
 * @param {Store} parts.store
 * @param {(url: string) => Socket} [parts.createSocket]
 * @param {Timers} [parts.timers]
 * @param {Clock} [parts.clock]
 * @param {() => number} [parts.random]
 * @returns {Link}
 */
export function openLink({ url, store, createSocket, timers = globalThis, clock = Date.now, random }) {
  /** @type {number | null} */
  let since = null;
  let heardAt = clock();
  let isProbing = false;
  let askedAbout = "";

  const commands = createCommands({ send: (message) => socket.send(message), timers });
  const socket = openLiveSocket({
    url,
    firstMessage() {
      since = store.getState().ring?.newestSeconds ?? null;
      return { type: "watch", since };
    },
    onMessage,
    onState(state) {
      store.dispatch({ type: "connection", at: clock(), ...state });
      if (state.state !== "open") commands.loseAll();
    },
    createSocket,
    timers,
    clock,
    random,
  });

  /** @param {ServerMessage} message */
  function onMessage(message) {
    heardAt = clock();
    const { ring } = store.getState();
    store.dispatch({ type: "received", message, at: heardAt });
    if (message.type === "frame") socket.send({ type: "ack", sequence: message.sequence });
    commands.receive(message);
    if (message.type === "hello") {
      askedAbout = "";
      // Points of another shape: the history that comes now would begin in the middle.
      if (since !== null && store.getState().ring !== ring) socket.reopen();
    }
    askAboutVersions();
  }

  /** Once for each version that is heard of and not known. */
  function askAboutVersions() {
    const { knowsAllVersions, frame } = store.getState();
    if (knowsAllVersions || frame === null) return;
    const heardOf = [frame.announced_version, ...frame.engines.map((engine) => engine.tunables_version)].join();
    if (heardOf === askedAbout) return;
    askedAbout = heardOf;
    commands.listVersions();
  }

  async function probe() {
    if (isProbing || store.getState().connection.state !== "live") return;
    isProbing = true;
    const { outcome } = await commands.listVersions({ withinMs: PROBE_WITHIN_MS }).answer;
    isProbing = false;
    if (outcome === "unknown" && store.getState().connection.state === "live") socket.reopen();
  }

  function tick() {
    const at = clock();
    store.dispatch({ type: "tick", at });
    if (at - heardAt > PROBE_AFTER_MS) void probe();
    timers.setTimeout(tick, TICK_MS);
  }

  /** @param {Terms} terms */
  async function apply(terms) {
    const { proposal } = store.getState();
    if (!canSend(proposal) || proposal.base === null) return;
    const { changes, reason, base } = proposal;
    const { id, answer } = commands.change({ changes, basedOn: base.number, reason, ...terms });
    store.dispatch({ type: "sent", id });
    const { outcome } = await answer;
    if (outcome !== "unknown" && outcome !== "not_sent") return;
    store.dispatch({ type: "answer_lost", id, wasSent: outcome === "unknown" });
    // The socket may live, and only this answer be late; otherwise the next hello tells.
    if (outcome === "unknown") commands.listVersions();
  }

  timers.setTimeout(tick, TICK_MS);
  return {
    retryNow() {
      socket.retryNow();
      if (store.getState().isStale) void probe();
    },
    apply: (terms = {}) => void apply(terms),
    async rollBack(version, reason = "") {
      const newest = store.getState().versions[0];
      if (newest === undefined) return { outcome: "not_sent" };
      return commands.rollBack({ version, basedOn: newest.number, reason }).answer;
    },
  };
}
