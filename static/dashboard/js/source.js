/**
 * What the charts of one stretch of time are drawn from: the ring, or the past with the ring after it. All series of a
 * source have the same places. Pure.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./ring.js").Ring} Ring
 * @typedef {import("./ring.js").Series} Series
 * @typedef {import("./past.js").Past} Past
 * @typedef {import("./view.js").Stretch} Stretch
 * @typedef {import("./chart_specs.js").SeriesSpec} SeriesSpec
 * @typedef {import("./named.js").Naming} Naming
 * @typedef {import("./named.js").Table} Table
 *
 * @typedef {object} Source
 * @property {Stretch} stretch
 * @property {number} step seconds from place to place
 * @property {string} revision another one where there is something else to draw
 * @property {boolean} isOfPast drawn from what was rolled up
 * @property {(spec: SeriesSpec) => Series} read
 * @property {(naming: Naming) => Table} readNamed what is told by name
 * @property {() => Series} versions which version of the tunables was in force
 */
import { NO_TABLE, joinedTables, thinnedTable } from "./named.js";
import { wantedPast } from "./past.js";
import { shown } from "./selectors.js";

const SHORTEST_STEP_SECONDS = 10;
/** @type {Series} */
export const NOTHING = { x: new Float64Array(0), y: new Float64Array(0) };

/** The stretch that is looked at. @param {State} state @returns {Stretch} */
export function stretchShown(state) {
  if (state.stretch !== null) return state.stretch;
  const to = shown(state).ring?.newestSeconds ?? state.now / 1000;
  return { from: to - state.spanSeconds, to };
}

/**
 * @param {State} state
 * @returns {Source}
 */
export function sourceOf(state) {
  const { ring } = shown(state);
  const stretch = stretchShown(state);
  const wanted = wantedPast({ ...state, ring });
  if (wanted === null) return fromRing(ring, stretch, state.window);
  // What was read for another stretch is better than nothing until this one comes.
  const past = state.stretch === null ? shown(state).past : state.past;
  return fromPast(past, { ring, stretch, windows: state.hello?.windows_seconds ?? [] });
}

/**
 * @param {Ring | null} ring
 * @param {Stretch} stretch
 * @param {number} window
 * @returns {Source}
 */
function fromRing(ring, stretch, window) {
  // One place more than is seen, so that the line begins and ends at the edge.
  const range = { since: stretch.from - 1, until: stretch.to + 1 };
  const isOver = (ring?.newestSeconds ?? 0) > range.until;
  return {
    stretch,
    step: 1,
    revision: isOver ? "over" : `${ring?.revision ?? 0}`,
    isOfPast: false,
    read(spec) {
      if (ring === null) return NOTHING;
      if (spec.measured !== undefined) return ring.percentiles({ window, ...spec.measured }, range);
      return combined(spec, ring.shape.fields, (field) => ring.series(field, range));
    },
    readNamed: ({ field }) => ring?.named(field, range) ?? NO_TABLE,
    versions: () => ring?.series("tunables_version", range) ?? NOTHING,
  };
}

/**
 * @param {Past | null} past
 * @param {{ring: Ring | null, stretch: Stretch, windows: number[]}} parts
 * @returns {Source}
 */
function fromPast(past, { ring, stretch, windows }) {
  const step = past?.seconds ?? SHORTEST_STEP_SECONDS;
  const range = { since: stretch.from - step, until: stretch.to + step };
  // The window that comes nearest to what a stretch of the past sums up.
  const window = nearest(windows, step);
  // Where nothing is kept yet, or cannot be read, there is what the ring has.
  const from = typeof past?.newest === "number" ? past.newest + step : (ring?.oldest ?? 0) + step / 2;
  /** @param {Series} kept @param {Series | undefined} live @param {boolean} isMean */
  const whole = (kept, live, isMean) =>
    live === undefined ? kept : joined(kept, thinned(live, { from, to: stretch.to, step, isMean }));
  /** @param {string} field @param {boolean} isMean */
  const ofField = (field, isMean) =>
    whole(
      past?.has(field) ? past.series(field, range) : NOTHING,
      ring?.shape.fields.includes(field) ? ring.series(field) : undefined,
      isMean,
    );
  return {
    stretch,
    step,
    revision: `${past?.key} ${past?.readAt} ${Math.floor((ring?.newestSeconds ?? 0) / step)}`,
    isOfPast: true,
    read(spec) {
      const { measured } = spec;
      if (measured === undefined) return combined(spec, null, (field) => ofField(field, true));
      const kept = past?.percentiles(measured, range) ?? NOTHING;
      return whole(kept, ring?.percentiles({ window, ...measured }), false);
    },
    readNamed({ field, rest }) {
      const live = ring === null ? NO_TABLE : thinnedTable(ring.named(field), { from, to: stretch.to, step, rest });
      return joinedTables(past?.named(field, range) ?? NO_TABLE, live);
    },
    versions: () => ofField("tunables_version", false),
  };
}

/**
 * What the fields of a specification come to; nothing where points lack one (an older server).
 *
 * @param {SeriesSpec} spec
 * @param {string[] | null} fields those that there are, where it is known
 * @param {(field: string) => Series} read
 * @returns {Series}
 */
function combined({ field = "", minus, scale = 1 }, fields, read) {
  if (fields !== null && !fields.includes(field)) return NOTHING;
  const series = read(field);
  if (minus !== undefined) {
    if (fields !== null && !fields.includes(minus)) return series;
    const { y: taken } = read(minus);
    return { x: series.x, y: series.y.map((value, index) => Math.max(0, value - taken[index])) };
  }
  return scale === 1 ? series : { x: series.x, y: series.y.map((value) => value * scale) };
}

/**
 * One place a step: the mean of what was known in it, or (of what means cannot be taken of) the last.
 *
 * @param {Series} series one place a second
 * @param {{from: number, to: number, step: number, isMean: boolean}} how `from` is the middle of the first step
 * @returns {Series}
 */
export function thinned({ x, y }, { from, to, step, isMean }) {
  if (x.length === 0 || !Number.isFinite(from)) return NOTHING;
  const length = Math.max(0, Math.floor((Math.min(to, x[x.length - 1]) - from) / step) + 1);
  const times = Float64Array.from({ length }, (_, index) => from + index * step);
  const values = times.map((middle) => {
    let [sum, count, last] = [0, 0, NaN];
    const begin = Math.max(0, Math.ceil(middle - step / 2 - x[0]));
    const end = Math.min(x.length, Math.ceil(middle + step / 2 - x[0]));
    for (let index = begin; index < end; index += 1) {
      if (Number.isNaN(y[index])) continue;
      sum += y[index];
      count += 1;
      last = y[index];
    }
    return isMean ? sum / count : last;
  });
  return { x: times, y: values };
}

/** @param {Series} one @param {Series} other @returns {Series} */
function joined(one, other) {
  if (other.x.length === 0) return one;
  return { x: appended(one.x, other.x), y: appended(one.y, other.y) };
}

/** @param {Float64Array} one @param {Float64Array} other */
function appended(one, other) {
  const both = new Float64Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

/** The index of the value that is nearest. @param {number[]} values @param {number} wanted */
function nearest(values, wanted) {
  return values.reduce(
    (best, value, index) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? index : best),
    0,
  );
}

/**
 * The place that a moment falls into; -1 where it falls into none.
 *
 * @param {Series} series
 * @param {number} second
 * @param {number} step
 */
export function placeAt({ x }, second, step) {
  const place = Math.round((second - x[0]) / step);
  return place >= 0 && place < x.length ? place : -1;
}

/**
 * Each series upon those before it. A gap in one is none in the others.
 *
 * @param {Series[]} parts of the same places
 * @returns {Series[]}
 */
export function stackedUp(parts) {
  /** @type {Float64Array | null} */
  let below = null;
  return parts.map(({ x, y }) => {
    const ground = below;
    const tops = y.map((value, index) => value + (ground === null || Number.isNaN(ground[index]) ? 0 : ground[index]));
    below = tops;
    return { x, y: tops };
  });
}
