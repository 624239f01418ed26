/**
 * What of a pool is looked at: how much of the past, or which stretch of it, and what is folded away or hidden. Pure;
 * the address of the page has it all, so that a view can be shared.
 *
 * @typedef {{from: number, to: number}} Stretch unix seconds
 *
 * @typedef {object} View
 * @property {number} window index of the percentiles' window
 * @property {number} spanSeconds how much of the past the charts show while they follow the present
 * @property {Stretch | null} stretch what they show instead; null while they follow
 * @property {string[]} folded groups
 * @property {string[]} hidden charts
 */

export const SHORTEST_STRETCH_SECONDS = 5;
export const LONGEST_STRETCH_SECONDS = 86_400;
const EARLIEST = 1e9;
const LATEST = 1e11;
const NAMES = /^[a-z][a-z0-9_]{0,39}$/;
const MOST_NAMES = 40;

/**
 * What an address asks for; what it does not say, or says wrongly, is as in `otherwise`.
 *
 * @param {string} search `?span=3600&hidden=kv`
 * @param {View} otherwise
 * @param {{spans: number[], numWindows: number}} offered
 * @returns {View}
 */
export function readView(search, otherwise, { spans, numWindows }) {
  const asked = new URLSearchParams(search);
  const number = (/** @type {string} */ name) => {
    const text = asked.get(name) ?? "";
    return /^\d{1,12}$/.test(text) ? Number(text) : NaN;
  };
  const spanSeconds = spans.includes(number("span")) ? number("span") : otherwise.spanSeconds;
  const window = number("window") < numWindows ? number("window") : otherwise.window;
  const at = number("at");
  const stretch = stretchOf(number("from"), number("to")) ?? stretchOf(at - spanSeconds, at) ?? otherwise.stretch;
  return {
    window,
    spanSeconds,
    stretch,
    folded: namesIn(asked.get("folded")) ?? otherwise.folded,
    hidden: namesIn(asked.get("hidden")) ?? otherwise.hidden,
  };
}

/**
 * The address that shows this view. `pausedAt` is the newest second shown while the page is paused.
 *
 * @param {View & {pausedAt: number | null}} view
 * @returns {string} begins with `?`
 */
export function writeView({ window, spanSeconds, stretch, folded, hidden, pausedAt }) {
  const said = new URLSearchParams({ span: String(spanSeconds), window: String(window) });
  if (stretch !== null) {
    said.set("from", String(Math.floor(stretch.from)));
    said.set("to", String(Math.ceil(stretch.to)));
  } else if (pausedAt !== null) said.set("at", String(Math.ceil(pausedAt)));
  if (folded.length > 0) said.set("folded", folded.join(","));
  if (hidden.length > 0) said.set("hidden", hidden.join(","));
  // Commas may stand in a query as they are.
  return `?${said}`.replaceAll("%2C", ",");
}

/**
 * `names` with or without `name`.
 *
 * @param {string[]} names
 * @param {string} name
 * @param {{isIn: boolean}} wanted
 */
export function withName(names, name, { isIn }) {
  const others = names.filter((each) => each !== name);
  return isIn ? [...others, name] : others;
}

/**
 * The stretch between two moments in either order, as long as one may be; null where either is no time.
 *
 * @param {number} one
 * @param {number} other
 * @returns {Stretch | null}
 */
export function stretchOf(one, other) {
  const [from, to] = one < other ? [one, other] : [other, one];
  if (!(from >= EARLIEST && to <= LATEST)) return null;
  return limited({ from, to });
}

/**
 * Zoomed around a moment that stays in its place: `factor` 0.5 shows half as much.
 *
 * @param {Stretch} stretch
 * @param {{factor: number, about: number, newest: number}} how `newest` is the latest that there is to see
 * @returns {Stretch}
 */
export function zoomed({ from, to }, { factor, about, newest }) {
  const share = (about - from) / (to - from);
  const length = Math.min(
    LONGEST_STRETCH_SECONDS,
    Math.max(SHORTEST_STRETCH_SECONDS, (to - from) * factor),
  );
  return pushedBack({ from: about - share * length, to: about + (1 - share) * length }, newest);
}

/**
 * Moved by a share of its length, later where that is positive.
 *
 * @param {Stretch} stretch
 * @param {{share: number, newest: number}} how
 * @returns {Stretch}
 */
export function moved({ from, to }, { share, newest }) {
  const by = share * (to - from);
  return pushedBack({ from: from + by, to: to + by }, newest);
}

/** There is nothing to see of the future. @param {Stretch} stretch @param {number} newest @returns {Stretch} */
function pushedBack({ from, to }, newest) {
  const surplus = Math.max(0, to - newest);
  return { from: from - surplus, to: to - surplus };
}

/** @param {Stretch} stretch @returns {Stretch} */
function limited({ from, to }) {
  const middle = (from + to) / 2;
  if (to - from < SHORTEST_STRETCH_SECONDS)
    return { from: middle - SHORTEST_STRETCH_SECONDS / 2, to: middle + SHORTEST_STRETCH_SECONDS / 2 };
  return { from: Math.max(from, to - LONGEST_STRETCH_SECONDS), to };
}

/** @param {string | null} text */
function namesIn(text) {
  return text === null ? null : text.split(",", MOST_NAMES).filter((name) => NAMES.test(name));
}
