/**
 * The last quarter of an hour of points, one place a second: what every chart draws from.
 *
 * Each column lies twice, one copy behind the other, so that any stretch of it is one piece of memory and reading costs
 * no copying. A place that no point fell into is a gap: NaN in every column.
 *
 * @typedef {import("./types.js").PointRow} PointRow
 * @typedef {import("./columns.js").Shape} Shape
 * @typedef {import("./columns.js").Which} Which
 * @typedef {import("./columns.js").Cell} Cell
 * @typedef {import("./named.js").Named} Named
 * @typedef {import("./named.js").Table} Table
 */
import { columnOf, createColumns, createCutter, emptyColumn, percentileColumnOf } from "./columns.js";
import { NAMED_FIELDS, NO_TABLE, namedOf } from "./named.js";

export const RING_SECONDS = 900;
const LATEST_SECONDS = 1e11;

/**
 * @typedef {{since?: number, until?: number}} Range unix seconds, both ends included; everything where left out
 * @typedef {{x: Float64Array, y: Float64Array}} Series unix seconds and values (NaN in gaps): parts of the ring itself,
 *   valid until it takes the next point
 */

/**
 * @typedef {object} Ring
 * @property {Shape} shape
 * @property {number} revision grows with every change, so that a reader sees whether there is something to draw
 * @property {number | null} newestSeconds the exact time of the newest point, in unix seconds
 * @property {number | null} oldest the second of the oldest place
 * @property {(row: PointRow) => boolean} push takes a point; false where it is malformed, too old or known already
 * @property {(unixSeconds: number) => void} forgetAfter drops what is newer
 * @property {(field: string, range?: Range) => Series} series
 * @property {(which: Which, range?: Range) => Series} percentiles in seconds
 * @property {(field: string, range?: Range) => Table} named what is told by name
 * @property {() => Ring} copy one that no later point changes
 */

/**
 * @typedef {object} Contents
 * @property {number} revision
 * @property {number | null} tip the newest place's second
 * @property {number | null} oldest
 * @property {number | null} newestSeconds
 * @property {Float64Array} places the second of each place
 * @property {import("./columns.js").Columns} columns
 * @property {Map<string, (Named | null)[]>} named once each, as what is read of it is copied
 */

/**
 * An empty ring for points of this shape.
 *
 * @param {Shape} shape
 * @returns {Ring}
 */
export function createRing(shape) {
  const length = 2 * RING_SECONDS;
  const places = emptyColumn(length);
  const columns = createColumns(shape, length);
  const fields = NAMED_FIELDS.filter((field) => shape.fields.includes(field));
  const named = new Map(fields.map((field) => [field, new Array(RING_SECONDS).fill(null)]));
  return ringOver(shape, { revision: 0, tip: null, oldest: null, newestSeconds: null, places, columns, named });
}

/**
 * @param {Shape} shape
 * @param {Contents} contents
 * @returns {Ring}
 */
function ringOver(shape, contents) {
  const timeIndex = shape.fields.indexOf("unix_seconds");
  const times = columnOf(contents.columns, "unix_seconds");
  const cut = createCutter(shape);
  return {
    shape,
    get revision() {
      return contents.revision;
    },
    get newestSeconds() {
      return contents.newestSeconds;
    },
    get oldest() {
      return contents.oldest;
    },
    push(row) {
      const at = row[timeIndex];
      if (typeof at !== "number" || !(at >= 0 && at < LATEST_SECONDS)) return false;
      const second = Math.floor(at);
      if (contents.tip !== null && second <= contents.tip - RING_SECONDS) return false;
      if (contents.places[second % RING_SECONDS] === second && at <= times[second % RING_SECONDS]) return false;
      makeRoom(contents, second);
      write(contents, second % RING_SECONDS, cut(row));
      for (const [field, rows] of contents.named)
        rows[second % RING_SECONDS] = namedOf(row[shape.fields.indexOf(field)]);
      if (contents.newestSeconds === null || at > contents.newestSeconds) contents.newestSeconds = at;
      contents.revision += 1;
      return true;
    },
    forgetAfter(unixSeconds) {
      forgetAfter(contents, times, unixSeconds);
    },
    series: (field, range) => read(contents, columnOf(contents.columns, field), range),
    percentiles: (which, range) => read(contents, percentileColumnOf(contents.columns, which), range),
    named: (field, range) => readNamed(contents, contents.named.get(field), range),
    copy: () => ringOver(shape, structuredClone(contents)),
  };
}

/**
 * Moves the tip to `second` where that is newer, with gaps on the way.
 *
 * @param {Contents} contents
 * @param {number} second
 */
function makeRoom(contents, second) {
  const first = contents.tip === null ? second : contents.tip + 1;
  for (let place = Math.max(first, second - RING_SECONDS + 1); place <= second; place += 1) clear(contents, place);
  if (contents.tip === null || second > contents.tip) contents.tip = second;
  const oldestKept = contents.tip - RING_SECONDS + 1;
  if (contents.oldest !== null) {
    // History that comes after the first frame reaches further back than it.
    for (let place = second; place < contents.oldest; place += 1) clear(contents, place);
  }
  contents.oldest = Math.max(oldestKept, Math.min(contents.oldest ?? second, second));
}

/** @param {Contents} contents @param {number} second */
function clear(contents, second) {
  const place = second % RING_SECONDS;
  contents.places[place] = contents.places[place + RING_SECONDS] = second;
  for (const column of contents.columns.values()) column[place] = column[place + RING_SECONDS] = NaN;
  for (const rows of contents.named.values()) rows[place] = null;
}

/**
 * @param {Contents} contents
 * @param {number} place
 * @param {Cell[]} cells
 */
function write({ columns }, place, cells) {
  for (const [name, value] of cells) {
    const column = columnOf(columns, name);
    column[place] = column[place + RING_SECONDS] = value;
  }
}

/** @param {Contents} contents @param {Float64Array} times @param {number} unixSeconds */
function forgetAfter(contents, times, unixSeconds) {
  if (contents.tip === null || contents.oldest === null) return;
  contents.revision += 1;
  const last = contents.tip;
  contents.tip = contents.newestSeconds = null;
  for (let second = last; second >= contents.oldest; second -= 1) {
    const at = times[second % RING_SECONDS];
    if (at <= unixSeconds) {
      contents.tip = second;
      contents.newestSeconds = at;
      return;
    }
    clear(contents, second);
  }
  contents.oldest = null;
}

/** @param {Contents} contents @param {Float64Array} column @param {Range} [range] @returns {Series} */
function read(contents, column, { since = -Infinity, until = Infinity } = {}) {
  const { tip, oldest, places } = contents;
  const first = Math.max(oldest ?? 0, Math.floor(since));
  const last = Math.min(tip ?? -1, Math.floor(until));
  if (tip === null || first > last) return { x: places.subarray(0, 0), y: column.subarray(0, 0) };
  const start = first % RING_SECONDS;
  const end = start + last - first + 1;
  return { x: places.subarray(start, end), y: column.subarray(start, end) };
}

/** @param {Contents} contents @param {(Named | null)[] | undefined} rows @param {Range} [range] @returns {Table} */
function readNamed(contents, rows, range) {
  if (rows === undefined) return NO_TABLE;
  const { x } = read(contents, contents.places, range);
  return { x, rows: Array.from(x, (second) => rows[second % RING_SECONDS]) };
}
