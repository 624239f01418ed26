/**
 * Figures that points hold by name: who waits by priority, why requests were refused, what each engine does. Names come
 * and go, so a chart draws the largest of those in view, and what the others come to. Pure.
 *
 * @typedef {import("./ring.js").Series} Series
 *
 * @typedef {Record<string, number>} Named
 *
 * @typedef {object} Table a place a row, null where nothing was told
 * @property {Float64Array} x unix seconds
 * @property {(Named | null)[]} rows
 *
 * @typedef {"mean" | "sum"} Rest what the others come to. Of a sum, a name that is left out is nought.
 *
 * @typedef {object} Naming how a chart draws figures by name
 * @property {string} field of a point
 * @property {Rest} rest
 * @property {number} [leastNames] there is no chart where fewer are told of at once
 * @property {(name: string) => string} [wordsFor] what a name is called
 * @property {(name: string) => number} [rankOf] where it stands, before the names' own order
 *
 * @typedef {{label: string, series: Series}} Part
 */

export const NAMED_FIELDS = ["waiting_by_priority", "refusals_per_second", "utilisation_by_engine", "memory_by_engine"];
const OTHER = "other";
const UNREAD = "unread";
const REJECTED = /^rejected:/;
const OTHERS = { mean: "others: mean", sum: "others" };
/** @type {Table} */
export const NO_TABLE = { x: new Float64Array(0), rows: [] };

/** @param {unknown} value @returns {Named | null} */
export function namedOf(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? /** @type {Named} */ (value) : null;
}

/** @param {Table} table */
export function isTold({ rows }) {
  return rows.some((row) => row !== null);
}

/** How many names are told of at once, at the most. @param {Table} table */
export function mostAtOnce({ rows }) {
  let most = 0;
  for (const row of rows) if (row !== null) most = Math.max(most, Object.keys(row).length);
  return most;
}

/**
 * A series for each of the largest names in the table, and one for all others: at most `most`, in the order in which
 * they are drawn.
 *
 * @param {Table} table
 * @param {Naming} naming
 * @param {number} most
 * @returns {Part[]}
 */
export function partsOf(table, { rest, wordsFor = (name) => name, rankOf = () => 0 }, most) {
  const sizes = sizesOf(table, rest);
  const hasOther = sizes.delete(OTHER);
  const names = [...sizes.keys()].sort((one, other) => (sizes.get(other) ?? 0) - (sizes.get(one) ?? 0));
  const room = hasOther || names.length > most ? most - 1 : most;
  const drawn = names.slice(0, room).sort((one, other) => rankOf(one) - rankOf(other) || byName(one, other));
  const parts = drawn.map((name) => ({
    label: wordsFor(name),
    series: seriesOf(table, (row) => row[name] ?? (rest === "sum" ? 0 : NaN)),
  }));
  const left = [...names.slice(room), ...(hasOther ? [OTHER] : [])];
  if (left.length === 0) return parts;
  return [...parts, { label: OTHERS[rest], series: seriesOf(table, (row) => togetherOf(row, left, rest)) }];
}

/**
 * What a sum comes to over all places, without those that come to nought; or in how many places a mean was told.
 *
 * @param {Table} table
 * @param {Rest} rest
 */
function sizesOf({ rows }, rest) {
  /** @type {Map<string, number>} */
  const sizes = new Map();
  for (const row of rows) {
    // Twice a second and chart: names are not copied first.
    for (const name in row) {
      const size = rest === "mean" ? 1 : row[name];
      if (size > 0) sizes.set(name, (sizes.get(name) ?? 0) + size);
    }
  }
  return sizes;
}

/** @param {Named} row @param {string[]} names @param {Rest} rest */
function togetherOf(row, names, rest) {
  let [sum, count] = [0, 0];
  for (const name of names) {
    if (row[name] === undefined) continue;
    sum += row[name];
    count += 1;
  }
  return rest === "sum" ? sum : sum / count;
}

/** @param {Table} table @param {(row: Named) => number} valueOf @returns {Series} */
function seriesOf({ x, rows }, valueOf) {
  const y = new Float64Array(rows.length);
  rows.forEach((row, index) => (y[index] = row === null ? NaN : valueOf(row)));
  return { x, y };
}

/**
 * One row a step: the mean of what was told in it.
 *
 * @param {Table} table one row a second
 * @param {{from: number, to: number, step: number, rest: Rest}} how `from` is the middle of the first step
 * @returns {Table}
 */
export function thinnedTable({ x, rows }, { from, to, step, rest }) {
  if (x.length === 0 || !Number.isFinite(from)) return NO_TABLE;
  const length = Math.max(0, Math.floor((Math.min(to, x[x.length - 1]) - from) / step) + 1);
  const times = Float64Array.from({ length }, (_, index) => from + index * step);
  const means = Array.from(times, (middle) => {
    const begin = Math.max(0, Math.ceil(middle - step / 2 - x[0]));
    const end = Math.min(x.length, Math.ceil(middle + step / 2 - x[0]));
    return meanOf(rows.slice(begin, end), rest);
  });
  return { x: times, rows: means };
}

/** @param {(Named | null)[]} rows @param {Rest} rest @returns {Named | null} */
function meanOf(rows, rest) {
  const told = rows.filter((row) => row !== null);
  if (told.length === 0) return null;
  const [sums, counts] = [/** @type {Named} */ ({}), /** @type {Named} */ ({})];
  for (const row of told) {
    for (const [name, value] of Object.entries(row)) {
      sums[name] = (sums[name] ?? 0) + value;
      counts[name] = (counts[name] ?? 0) + 1;
    }
  }
  const share = (/** @type {string} */ name) => sums[name] / (rest === "sum" ? told.length : counts[name]);
  return Object.fromEntries(Object.keys(sums).map((name) => [name, share(name)]));
}

/** @param {Table} one @param {Table} other the later one @returns {Table} */
export function joinedTables(one, other) {
  if (other.x.length === 0) return one;
  return { x: Float64Array.from([...one.x, ...other.x]), rows: [...one.rows, ...other.rows] };
}

/** @param {string} name a priority */
export function priorityWords(name) {
  if (name === UNREAD) return "in the inbox";
  return Number(name) < 0 ? `priority ${name} (urgent)` : `priority ${name}`;
}

/** The most urgent first. @param {string} name */
export function urgencyOf(name) {
  return name === UNREAD ? Infinity : Number(name);
}

/** What was refused before any pool was known says so. @param {string} code */
export function refusalWords(code) {
  const words = code.replace(REJECTED, "").replaceAll("_", " ");
  return REJECTED.test(code) ? `${words} (any pool)` : words;
}

/** @param {string} one @param {string} other */
function byName(one, other) {
  return one < other ? -1 : 1;
}
