/**
 * A longer past than the ring holds, as the server rolled it up: a row a stretch of some seconds. Pure.
 *
 * @typedef {import("./types.js").HistoryAnswer} HistoryAnswer
 * @typedef {import("./types.js").PointRow} PointRow
 * @typedef {import("./columns.js").Shape} Shape
 * @typedef {import("./columns.js").Which} Which
 * @typedef {import("./ring.js").Range} Range
 * @typedef {import("./ring.js").Series} Series
 * @typedef {import("./named.js").Named} Named
 * @typedef {import("./named.js").Table} Table
 * @typedef {import("./state.js").State} State
 *
 * @typedef {object} Past
 * @property {string} key what was asked for, as `Wanted.key`
 * @property {number} seconds the length of a stretch
 * @property {number} readAt milliseconds of the page's clock
 * @property {number | null} newest the middle of the newest stretch, in unix seconds
 * @property {number} rows how many stretches, gaps included
 * @property {(field: string, range: Range) => Series} series
 * @property {(which: Omit<Which, "window">, range: Range) => Series} percentiles
 * @property {(field: string, range: Range) => Table} named what is told by name
 * @property {(field: string) => boolean} has
 * @property {string[]} fields in the order of a point
 * @property {PointRow[]} points as they came
 *
 * @typedef {object} Missing
 * @property {number} since unix seconds
 * @property {number} until unix seconds
 * @property {number | null} leastSeconds how long stretches are that it goes on with; null where it is all
 *
 * @typedef {object} Wanted
 * @property {string} key alike as long as the same is looked at
 * @property {number} since unix seconds
 * @property {number} until unix seconds
 * @property {boolean} [follows] whether it ends with the present
 */
import { columnOf, createColumns, createCutter, percentileColumnOf } from "./columns.js";
import { namedOf } from "./named.js";
import { RING_SECONDS } from "./ring.js";

const RETRY_MS = 10_000;
/** The newest stretch is not closed before this. */
const CLOSING_MS = 30_000;
/** What has come of long stretches is read this often. */
const LONGEST_REST_MS = 60_000;
const MOST_ROWS = 4000;

/**
 * What the charts need beyond the ring; null where the ring has it all.
 *
 * @param {Pick<State, "now" | "stretch" | "spanSeconds" | "ring">} state
 * @returns {Wanted | null}
 */
export function wantedPast({ now, stretch, spanSeconds, ring }) {
  const newest = ring?.newestSeconds ?? now / 1000;
  if (stretch !== null) {
    if (stretch.from > newest - RING_SECONDS) return null;
    const [since, until] = [Math.floor(stretch.from), Math.ceil(stretch.to)];
    return { key: `${since}-${until}`, since, until };
  }
  if (spanSeconds <= RING_SECONDS) return null;
  const since = Math.floor(newest - spanSeconds);
  return { key: `last ${spanSeconds}`, since, until: Math.ceil(newest), follows: true };
}

/**
 * What is to be asked for now: all of it, or what has come since; null where nothing is. The newest stretch is asked for
 * once more: a stretch of a minute and more is told of while its last seconds are yet to be stored.
 *
 * @param {Wanted} wanted
 * @param {Past | null} past
 * @param {{now: number, failedAt: number | null}} times in milliseconds
 * @returns {Missing | null}
 */
export function missing(wanted, past, { now, failedAt }) {
  if (failedAt !== null && now - failedAt < RETRY_MS) return null;
  const { since, until } = wanted;
  if (past === null || past.key !== wanted.key) return { since, until, leastSeconds: null };
  if (now - past.readAt < Math.min(LONGEST_REST_MS, 1000 * past.seconds)) return null;
  // What follows the present is never over, however wrong the page's clock is.
  if (!wanted.follows && past.readAt > 1000 * until + CLOSING_MS + 1000 * past.seconds) return null;
  const begin = Math.max(since, Math.floor((past.newest ?? since) - past.seconds / 2));
  return { since: begin, until, leastSeconds: past.seconds };
}

/**
 * The past of this answer, put after `earlier` where that is of the same kind.
 *
 * @param {HistoryAnswer} answer
 * @param {object} context
 * @param {Wanted} context.wanted
 * @param {Past | null} context.earlier
 * @param {Pick<Shape, "intervals" | "percentiles">} context.measures
 * @param {number} context.readAt milliseconds
 * @returns {Past}
 */
export function createPast(answer, { wanted, earlier, measures, readAt }) {
  const shape = { ...measures, fields: answer.fields, numWindows: 1 };
  const timeIndex = answer.fields.indexOf("unix_seconds");
  const timeOf = (/** @type {PointRow} */ row) => Number(row[timeIndex]);
  const { seconds } = answer;
  const first = answer.points.length > 0 ? timeOf(answer.points[0]) : Infinity;
  const isContinued = earlier !== null && earlier.key === wanted.key && earlier.seconds === seconds;
  const isKept = (/** @type {PointRow} */ row) => timeOf(row) < first && timeOf(row) > wanted.since - seconds;
  const kept = isContinued ? earlier.points.filter(isKept) : [];
  const points = [...kept, ...answer.points];
  const columns = columnsOver(points, { shape, seconds, timeOf });
  return { ...columns, key: wanted.key, fields: answer.fields, seconds, readAt, points };
}

/**
 * @param {PointRow[]} points
 * @param {{shape: Shape, seconds: number, timeOf: (row: PointRow) => number}} meaning
 */
function columnsOver(points, { shape, seconds, timeOf }) {
  const start = points.length > 0 ? timeOf(points[0]) : 0;
  const newest = points.length > 0 ? timeOf(points[points.length - 1]) : null;
  const placeOf = (/** @type {PointRow} */ row) => Math.round((timeOf(row) - start) / seconds);
  const rows = newest === null ? 0 : Math.min(MOST_ROWS, placeOf(points[points.length - 1]) + 1);
  const columns = createColumns(shape, rows);
  const cut = createCutter(shape);
  /** @type {(PointRow | null)[]} */
  const atPlace = new Array(rows).fill(null);
  for (const row of points) {
    const place = placeOf(row);
    if (place < 0 || place >= rows) continue;
    for (const [name, value] of cut(row)) columnOf(columns, name)[place] = value;
    atPlace[place] = row;
  }
  const x = Float64Array.from({ length: rows }, (_, place) => start + place * seconds);
  /** @param {Range} range @returns {[begin: number, end: number]} */
  const placesOf = ({ since = -Infinity, until = Infinity }) => {
    const begin = Math.max(0, Math.ceil((since - start) / seconds));
    return [begin, Math.max(begin, Math.min(rows, Math.floor((until - start) / seconds) + 1))];
  };
  /** @param {Float64Array} y @param {Range} range @returns {Series} */
  const within = (y, range) => ({ x: x.subarray(...placesOf(range)), y: y.subarray(...placesOf(range)) });
  return {
    newest,
    rows,
    has: (/** @type {string} */ field) => columns.has(field),
    series: (/** @type {string} */ field, /** @type {Range} */ range) => within(columnOf(columns, field), range),
    percentiles: (/** @type {Omit<Which, "window">} */ which, /** @type {Range} */ range) =>
      within(percentileColumnOf(columns, { ...which, window: 0 }), range),
    named: (/** @type {string} */ field, /** @type {Range} */ range) => {
      const index = shape.fields.indexOf(field);
      const [begin, end] = placesOf(range);
      return { x: x.subarray(begin, end), rows: atPlace.slice(begin, end).map((row) => namedOf(row?.[index])) };
    },
  };
}
