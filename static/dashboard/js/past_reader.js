/**
 * Reads the past that the ring does not hold, as it is looked at; owns the one request that may be under way.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./types.js").HistoryAnswer} HistoryAnswer
 * @typedef {import("./past.js").Missing} Missing
 * @typedef {import("./past.js").Wanted} Wanted
 */
import { missing, wantedPast } from "./past.js";
import { RING_SECONDS } from "./ring.js";

/** Charts are a few hundred pixels wide. */
const MOST_POINTS = 720;
/** The recent past's events come with no frame: neither those before the page came nor those while it was away. */
const RECENT = "recent";

/**
 * @param {object} parts
 * @param {string} parts.url
 * @param {(action: Action) => void} parts.dispatch
 * @param {(url: string, options: RequestInit) => Promise<Response>} [parts.fetch]
 * @param {import("./types.js").Clock} [parts.clock]
 * @returns {{render: (state: State) => void}}
 */
export function createPastReader({ url, dispatch, fetch = (...asked) => globalThis.fetch(...asked), clock = Date.now }) {
  /** @type {{key: string, stop: AbortController} | null} */
  let underWay = null;
  /** @type {State["hello"]} The greeting after which a past was read. */
  let greeting = null;

  /** @param {Wanted} wanted @param {Missing} range @param {State["hello"]} hello */
  async function read(wanted, { since, until, leastSeconds }, hello) {
    underWay?.stop.abort();
    const stop = new AbortController();
    const mine = (underWay = { key: wanted.key, stop });
    try {
      const query = new URLSearchParams({ since: `${since}`, until: `${until}`, max_points: `${MOST_POINTS}` });
      // A short range would be told of in shorter stretches, which do not go after those that are known.
      if (leastSeconds !== null) query.set("least_seconds", `${leastSeconds}`);
      const response = await fetch(`${url}?${query}`, { signal: stop.signal, headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`the past was answered with ${response.status}`);
      const answer = /** @type {HistoryAnswer} */ (await response.json());
      if (underWay !== mine) return;
      greeting = hello;
      dispatch({ type: "past_read", answer, wanted, at: clock() });
    } catch {
      if (underWay === mine) dispatch({ type: "past_failed", at: clock() });
    } finally {
      if (underWay === mine) underWay = null;
    }
  }

  return {
    render(state) {
      if (state.hello === null) return;
      const wanted = wantedPast(state) ?? (state.hello === greeting ? null : recent(state));
      // While the page is paused, only what was not looked at before is read.
      const isHeld = state.paused !== null && state.stretch === null && state.past !== null;
      if (wanted === null || isHeld || underWay?.key === wanted.key) return;
      const range = missing(wanted, state.past, { now: state.now, failedAt: state.pastFailedAt });
      if (range !== null && range.since < range.until) void read(wanted, range, state.hello);
    },
  };
}

/** @param {State} state @returns {Wanted} */
function recent({ now, ring }) {
  const newest = ring?.newestSeconds ?? now / 1000;
  return { key: RECENT, since: Math.floor(newest) - RING_SECONDS, until: Math.ceil(newest), follows: true };
}
