/**
 * Joins the socket and what is known of an engine's steps: what comes goes into a ring, and is acknowledged.
 *
 * @typedef {import("./socket.js").Socket} Socket
 * @typedef {import("./socket.js").SocketState} SocketState
 * @typedef {import("./steps_ring.js").StepsRing} StepsRing
 * @typedef {import("./steps_rows.js").Batch} Batch
 * @typedef {import("./types.js").Timers} Timers
 * @typedef {import("./types.js").Clock} Clock
 *
 * @typedef {{engine_id: string, name: string}} EngineInfo
 * @typedef {{type: "hello", engine: string | null, engines: EngineInfo[], row_fields: string[]}} StepsHello
 * @typedef {{type: "steps", sequence: number, batches: Batch[]}} Steps
 * @typedef {{type: "engines", engines: EngineInfo[]}} Engines
 *
 * @typedef {object} Known all that the page knows
 * @property {SocketState} socket
 * @property {string | null} engine whose steps these are; null before any is known
 * @property {EngineInfo[]} engines that live
 * @property {StepsRing | null} ring another one where the engine is another
 * @property {boolean} hasHistory
 * @property {boolean} hasGone the engine that is shown lives no more
 * @property {number | null} steppedAt when steps came last, milliseconds of the clock
 */
import { openLiveSocket } from "./socket.js";
import { createStepsRing } from "./steps_ring.js";

const TICK_MS = 1000;
/** The server says every few seconds which engines live: after such a silence there is no line. */
export const SILENT_MS = 12_000;

/**
 * Opens the connection and keeps it. Where the page's address names no engine, it goes on with the pool's next one when
 * the engine that it shows has gone.
 *
 * @param {object} parts
 * @param {string} parts.url
 * @param {string} parts.chosen engine that the address names; empty where it names none
 * @param {(known: Known) => void} parts.onChange
 * @param {(url: string) => Socket} [parts.createSocket]
 * @param {Timers} [parts.timers]
 * @param {Clock} [parts.clock]
 * @param {() => number} [parts.random]
 */
export function openStepsLink({ url, chosen, onChange, createSocket, timers = globalThis, clock = Date.now, random }) {
  let heardAt = clock();
  /** @type {Known} */
  let known = {
    socket: { state: "connecting", attempt: 0, retryAt: null, code: null },
    engine: chosen === "" ? null : chosen,
    engines: [],
    ring: null,
    hasHistory: false,
    hasGone: false,
    steppedAt: null,
  };

  const socket = openLiveSocket({
    url,
    firstMessage: () => {
      // Steps are numbered by their engine: of another one, the page has none.
      const after = known.engine === null ? 0 : known.ring?.lastStep ?? 0;
      return /** @type {any} */ ({ type: "watch", engine: known.engine, after });
    },
    onMessage: (message) => onMessage(/** @type {any} */ (message)),
    onState: (state) => {
      heardAt = clock();
      note({ socket: state });
    },
    createSocket,
    timers,
    clock,
    random,
  });

  /** @param {Partial<Known>} changes */
  function note(changes) {
    known = { ...known, ...changes };
    onChange(known);
  }

  /** @param {StepsHello | Steps | Engines} message */
  function onMessage(message) {
    heardAt = clock();
    if (message.type === "hello") greet(message);
    else if (message.type === "steps") takeIn(message);
    else if (message.type === "engines") hearOf(message.engines);
  }

  /** @param {StepsHello} hello */
  function greet({ engine, engines, row_fields: fields }) {
    const isOther = known.ring === null || engine !== known.engine;
    const ring = engine === null ? known.ring : isOther ? createStepsRing(fields) : known.ring;
    note({ engine, ring, hasHistory: known.hasHistory && !isOther });
    hearOf(engines);
  }

  /** @param {Steps} steps */
  function takeIn({ sequence, batches }) {
    const numNew = known.ring?.add(batches) ?? 0;
    socket.send(/** @type {any} */ ({ type: "ack", sequence }));
    note({ hasHistory: true, steppedAt: numNew > 0 ? heardAt : known.steppedAt });
  }

  /** @param {EngineInfo[]} engines */
  function hearOf(engines) {
    const hasGone = known.engine !== null && !engines.some(({ engine_id: id }) => id === known.engine);
    note({ engines, hasGone });
    const hasNext = engines.length > 0 && (known.engine === null || hasGone);
    if (chosen !== "" || !hasNext) return;
    // The ring stays until the next engine's hello.
    known = { ...known, engine: null };
    socket.reopen();
  }

  function tick() {
    if (known.socket.state === "open" && clock() - heardAt > SILENT_MS) socket.reopen();
    onChange(known);
    timers.setTimeout(tick, TICK_MS);
  }

  timers.setTimeout(tick, TICK_MS);
  return { retryNow: socket.retryNow };
}
