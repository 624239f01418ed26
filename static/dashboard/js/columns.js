/**
 * What a point holds, told apart by name: a column a field, and one for each percentile.
 *
 * @typedef {import("./types.js").PointRow} PointRow
 * @typedef {import("./types.js").Percentiles} Percentiles
 */
import { NAMED_FIELDS } from "./named.js";

const NESTED = ["percentiles", ...NAMED_FIELDS];

/**
 * @typedef {object} Shape
 * @property {string[]} fields in a point's order; `percentiles` and what is told by name are nested, and no columns
 * @property {number} numWindows
 * @property {string[]} intervals
 * @property {number[]} percentiles
 */

/** @typedef {Map<string, Float64Array>} Columns */
/** @typedef {[name: string, value: number]} Cell of one column; NaN where nothing was measured */

/**
 * `window` is an index, `interval` a name, `percentile` a number such as 95.
 *
 * @typedef {{window: number, interval: string, percentile: number}} Which
 */

/**
 * @param {number} length
 * @returns {Float64Array}
 */
export function emptyColumn(length) {
  return new Float64Array(length).fill(NaN);
}

/**
 * Empty columns for points of this shape.
 *
 * @param {Shape} shape
 * @param {number} length
 * @returns {Columns}
 */
export function createColumns(shape, length) {
  const names = [...shape.fields.filter((field) => !NESTED.includes(field)), ...percentileNames(shape)];
  return new Map(names.map((name) => [name, emptyColumn(length)]));
}

/**
 * The column of a field. Raises RangeError where points have none of that name.
 *
 * @param {Columns} columns
 * @param {string} name
 * @returns {Float64Array}
 */
export function columnOf(columns, name) {
  const column = columns.get(name);
  if (column === undefined) throw new RangeError(`points hold no ${name}`);
  return column;
}

/**
 * The column of a percentile, likewise.
 *
 * @param {Columns} columns
 * @param {Which} which
 * @returns {Float64Array}
 */
export function percentileColumnOf(columns, which) {
  return columnOf(columns, nameOf(which));
}

/**
 * What takes points of this shape apart. What is missing or no number becomes NaN.
 *
 * @param {Shape} shape
 * @returns {(row: PointRow) => Cell[]}
 */
export function createCutter(shape) {
  const names = percentileNames(shape);
  const nestedIndex = shape.fields.indexOf("percentiles");
  const plain = shape.fields
    .map((name, index) => /** @type {[name: string, index: number]} */ ([name, index]))
    .filter(([name]) => !NESTED.includes(name));
  return (row) => {
    const nested = /** @type {Percentiles | null | undefined} */ (row[nestedIndex]);
    const measured = (nested ?? []).flat(2);
    const scalars = plain.map(([name, index]) => cell(name, row[index]));
    return [...scalars, ...names.map((name, index) => cell(name, measured[index]))];
  };
}

/** @param {string} name @param {unknown} value @returns {Cell} */
function cell(name, value) {
  return [name, typeof value === "number" ? value : NaN];
}

/** In the order of points. @param {Shape} shape @returns {string[]} */
function percentileNames({ numWindows, intervals, percentiles }) {
  return Array.from({ length: numWindows }, (_, window) =>
    intervals.flatMap((interval) => percentiles.map((percentile) => nameOf({ window, interval, percentile }))),
  ).flat();
}

/** @param {Which} which */
function nameOf({ window, interval, percentile }) {
  return `${interval} p${percentile} over ${window}`;
}
