/**
 * Which charts there are, in which groups, and what they draw.
 *
 * @typedef {"dash" | "dashdot" | "dashdots" | "dot" | "long" | "pair" | "solid" | "sparse" | "thin"} Line told apart by
 *   more than colour
 *
 * @typedef {object} SeriesSpec
 * @property {string} label empty where it is a place for a name
 * @property {string} color its key in `COLORS`, and the swatch's in the style sheet
 * @property {Line} line
 * @property {string} [fill] likewise
 * @property {string} [field] of a point
 * @property {string} [minus] a field that is taken away from it
 * @property {number} [scale] what it is multiplied with
 * @property {{interval: string, percentile: number}} [measured] or a percentile of an interval
 *
 * @typedef {"bytes" | "count" | "tokens" | "rate" | "ratio" | "seconds"} Measure what its figures mean
 *
 * @typedef {object} ChartSpec
 * @property {string} id
 * @property {Measure} measure
 * @property {number} [leastStep] 1 where there are only whole numbers
 * @property {number} leastTop the axis never ends below it, so that quiet looks quiet
 * @property {boolean} [isNothingAtZero] whether zero all the time is to be said in words
 * @property {boolean} [stacked] each series stands on those before it
 * @property {string} [objective] the tunable, in milliseconds, that is drawn as a line
 * @property {import("./named.js").Naming} [named] draws what points tell by name, in the places of its series
 * @property {SeriesSpec[]} series
 */
import { MEMORY_BY_ENGINE, PRIORITIES, REFUSALS, UTILISATION_BY_ENGINE } from "./named_charts.js";

/** CSS variables by the names that specifications use. */
export const COLORS = /** @type {const} */ ({
  load: "chart-load",
  loadFill: "chart-load-fill",
  loadSolid: "chart-load-solid",
  wait: "chart-wait",
  waitFill: "chart-wait-fill",
  waitSolid: "chart-wait-solid",
  prompt: "chart-prompt",
  promptSolid: "chart-prompt-solid",
  rest: "chart-rest",
  restSolid: "chart-rest-solid",
  p50: "chart-p50",
  p90: "chart-p90",
  p95: "chart-p95",
  p99: "chart-p99",
  percentileFill: "chart-percentile-fill",
  percentileSolid: "chart-percentile-solid",
  objective: "chart-objective",
  objectiveSolid: "chart-objective-solid",
  grid: "chart-grid",
  ink: "chart-ink",
  marker: "chart-marker",
  event: "chart-event",
  alert: "problem",
  selection: "accent-wash",
  ground: "surface",
  surface: "raised",
  text: "ink",
  line: "line-strong",
});

/** @type {ChartSpec[]} */
export const CHARTS = [
  {
    id: "sequences",
    isNothingAtZero: true,
    measure: "count",
    leastStep: 1,
    leastTop: 4,
    series: [
      { label: "running", field: "num_running", color: "load", line: "solid", fill: "loadFill" },
      { label: "waiting", field: "num_waiting", color: "wait", line: "dash" },
    ],
  },
  {
    id: "lanes",
    isNothingAtZero: true,
    measure: "count",
    leastStep: 1,
    leastTop: 4,
    stacked: true,
    series: [
      {
        label: "short",
        field: "num_waiting",
        minus: "num_waiting_long",
        color: "wait",
        line: "solid",
        fill: "waitSolid",
      },
      { label: "long", field: "num_waiting_long", color: "prompt", line: "dash", fill: "promptSolid" },
    ],
  },
  {
    id: "waiting_tokens",
    isNothingAtZero: true,
    measure: "tokens",
    leastStep: 1,
    leastTop: 100,
    series: [
      { label: "all", field: "num_waiting_tokens", color: "wait", line: "solid", fill: "waitFill" },
      { label: "long", field: "num_waiting_long_tokens", color: "prompt", line: "dash" },
    ],
  },
  PRIORITIES,
  percentileChart("ttft", "ttft_seconds", "slo_ttft_ms"),
  percentileChart("itl", "itl_seconds", "slo_itl_ms"),
  percentileChart("e2e", "e2e_seconds"),
  percentileChart("queue_time", "queue_time_seconds"),
  {
    id: "tokens",
    isNothingAtZero: true,
    measure: "rate",
    leastTop: 20,
    series: [
      { label: "generated", field: "generated_tokens_per_second", color: "load", line: "solid", fill: "loadFill" },
      { label: "prompt", field: "prompt_tokens_per_second", color: "prompt", line: "dash" },
    ],
  },
  {
    id: "step_tokens",
    isNothingAtZero: true,
    measure: "rate",
    leastTop: 16,
    stacked: true,
    series: [
      { label: "decode", field: "decode_tokens_per_step", color: "load", line: "solid", fill: "loadSolid" },
      { label: "prefill", field: "prefill_tokens_per_step", color: "prompt", line: "dash", fill: "promptSolid" },
    ],
  },
  {
    id: "step_time",
    measure: "seconds",
    leastTop: 0.01,
    series: [{ label: "mean", field: "step_ms", scale: 0.001, color: "load", line: "solid", fill: "loadFill" }],
  },
  {
    id: "utilisation",
    measure: "ratio",
    leastTop: 1,
    series: [{ label: "busy", field: "utilisation_ratio", color: "load", line: "solid", fill: "loadFill" }],
  },
  {
    id: "preemptions",
    isNothingAtZero: true,
    measure: "rate",
    leastTop: 1,
    series: [{ label: "a second", field: "preemptions_per_second", color: "wait", line: "solid", fill: "waitFill" }],
  },
  {
    id: "guesses_kept",
    measure: "ratio",
    leastTop: 1,
    series: [{ label: "right", field: "draft_acceptance_ratio", color: "load", line: "solid" }],
  },
  UTILISATION_BY_ENGINE,
  {
    id: "kv",
    measure: "ratio",
    leastTop: 1,
    stacked: true,
    series: [
      { label: "in use", field: "kv_used_ratio", color: "load", line: "solid", fill: "loadSolid" },
      { label: "cached", field: "kv_cached_ratio", color: "wait", line: "dash", fill: "waitSolid" },
      { label: "free", field: "kv_free_ratio", color: "rest", line: "dot", fill: "restSolid" },
    ],
  },
  {
    id: "prefix_hits",
    measure: "ratio",
    leastTop: 1,
    series: [{ label: "found", field: "prefix_hit_ratio", color: "prompt", line: "solid" }],
  },
  {
    id: "memory",
    measure: "bytes",
    leastTop: 64 * 2 ** 20,
    series: [{ label: "in use", field: "memory_bytes", color: "load", line: "solid", fill: "loadFill" }],
  },
  MEMORY_BY_ENGINE,
  {
    id: "goodput",
    isNothingAtZero: true,
    measure: "rate",
    leastTop: 1,
    series: [
      { label: "within SLO", field: "goodput_per_second", color: "objective", line: "solid" },
      { label: "finished", field: "finished_per_second", color: "load", line: "dash" },
    ],
  },
  {
    id: "unanswered",
    isNothingAtZero: true,
    measure: "rate",
    leastTop: 1,
    stacked: true,
    series: [
      { label: "refused", field: "refused_per_second", color: "wait", line: "solid", fill: "waitSolid" },
      { label: "aborted", field: "aborted_per_second", color: "prompt", line: "dash", fill: "promptSolid" },
      { label: "failed", field: "failed_per_second", color: "alert", line: "dot", fill: "restSolid" },
    ],
  },
  REFUSALS,
];

/**
 * @param {string} id
 * @param {string} interval
 * @param {string} [objective]
 * @returns {ChartSpec}
 */
function percentileChart(id, interval, objective) {
  return {
    id,
    measure: "seconds",
    leastTop: 0.01,
    objective,
    series: [
      { label: "p50", measured: { interval, percentile: 50 }, color: "p50", line: "solid", fill: "percentileFill" },
      { label: "p90", measured: { interval, percentile: 90 }, color: "p90", line: "thin" },
      { label: "p95", measured: { interval, percentile: 95 }, color: "p95", line: "dash" },
      { label: "p99", measured: { interval, percentile: 99 }, color: "p99", line: "dot" },
    ],
  };
}
