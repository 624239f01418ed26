/**
 * The charts of what points tell by name, and the places that names take in them.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_specs.js").SeriesSpec} SeriesSpec
 */
import { priorityWords, refusalWords, urgencyOf } from "./named.js";

/** One upon the other. @type {SeriesSpec[]} */
const STACKED = [
  { label: "", color: "wait", line: "solid", fill: "waitSolid" },
  { label: "", color: "prompt", line: "dash", fill: "promptSolid" },
  { label: "", color: "load", line: "dot", fill: "loadSolid" },
  { label: "", color: "p95", line: "long", fill: "percentileSolid" },
  { label: "", color: "objective", line: "dashdot", fill: "objectiveSolid" },
  { label: "", color: "rest", line: "thin", fill: "restSolid" },
];

/** Eight, and the mean of the others. @type {SeriesSpec[]} */
const LINES = [
  { label: "", color: "load", line: "solid" },
  { label: "", color: "wait", line: "dash" },
  { label: "", color: "prompt", line: "dot" },
  { label: "", color: "p95", line: "long" },
  { label: "", color: "objective", line: "dashdot" },
  { label: "", color: "load", line: "sparse" },
  { label: "", color: "wait", line: "pair" },
  { label: "", color: "prompt", line: "dashdots" },
  { label: "", color: "rest", line: "thin" },
];

/** @type {ChartSpec} */
export const PRIORITIES = {
  id: "priorities",
  isNothingAtZero: true,
  measure: "count",
  leastStep: 1,
  leastTop: 4,
  stacked: true,
  named: { field: "waiting_by_priority", rest: "sum", wordsFor: priorityWords, rankOf: urgencyOf },
  series: STACKED,
};

/** @type {ChartSpec} */
export const REFUSALS = {
  id: "refusals",
  isNothingAtZero: true,
  measure: "rate",
  leastTop: 1,
  stacked: true,
  named: { field: "refusals_per_second", rest: "sum", wordsFor: refusalWords },
  series: STACKED,
};

/** @type {ChartSpec} */
export const UTILISATION_BY_ENGINE = {
  id: "utilisation_by_engine",
  measure: "ratio",
  leastTop: 1,
  named: { field: "utilisation_by_engine", rest: "mean", leastNames: 2 },
  series: LINES,
};

/** @type {ChartSpec} */
export const MEMORY_BY_ENGINE = {
  id: "memory_by_engine",
  measure: "bytes",
  leastTop: 64 * 2 ** 20,
  named: { field: "memory_by_engine", rest: "mean", leastNames: 2 },
  series: LINES,
};
