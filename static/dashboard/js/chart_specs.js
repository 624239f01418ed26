/**
 * Which charts there are and what they draw.
 *
 * @typedef {"dash" | "dot" | "solid"} Line told apart by more than colour
 *
 * @typedef {object} SeriesSpec
 * @property {string} label
 * @property {string} color its key in `COLORS`, and the swatch's in the style sheet
 * @property {Line} line
 * @property {string} [fill] likewise
 * @property {string} [field] of a point
 * @property {{interval: string, percentile: number}} [measured] or a percentile of an interval
 *
 * @typedef {"count" | "tokens" | "rate" | "ratio" | "seconds"} Measure what its figures mean
 *
 * @typedef {object} ChartSpec
 * @property {string} id
 * @property {Measure} measure
 * @property {number} [leastStep] 1 where there are only whole numbers
 * @property {number} leastTop the axis never ends below it, so that quiet looks quiet
 * @property {SeriesSpec[]} series
 */

/** CSS variables by the names that specifications use. */
export const COLORS = /** @type {const} */ ({
  load: "chart-load",
  loadFill: "chart-load-fill",
  wait: "chart-wait",
  waitFill: "chart-wait-fill",
  prompt: "chart-prompt",
  p50: "chart-p50",
  p95: "chart-p95",
  p99: "chart-p99",
  percentileFill: "chart-percentile-fill",
  grid: "chart-grid",
  ink: "chart-ink",
  marker: "chart-marker",
  ground: "surface",
  surface: "raised",
  text: "ink",
  line: "line-strong",
});

/** @type {ChartSpec[]} */
export const CHARTS = [
  {
    id: "sequences",
    measure: "count",
    leastStep: 1,
    leastTop: 4,
    series: [
      { label: "running", field: "num_running", color: "load", line: "solid", fill: "loadFill" },
      { label: "waiting", field: "num_waiting", color: "wait", line: "dash" },
    ],
  },
  {
    id: "waiting_tokens",
    measure: "tokens",
    leastStep: 1,
    leastTop: 100,
    series: [{ label: "waiting", field: "num_waiting_tokens", color: "wait", line: "solid", fill: "waitFill" }],
  },
  {
    id: "kv",
    measure: "ratio",
    leastTop: 1,
    series: [
      { label: "in use", field: "kv_used_ratio", color: "load", line: "solid", fill: "loadFill" },
      { label: "cached", field: "kv_cached_ratio", color: "wait", line: "dash" },
    ],
  },
  {
    id: "tokens",
    measure: "rate",
    leastTop: 20,
    series: [
      { label: "generated", field: "generated_tokens_per_second", color: "load", line: "solid", fill: "loadFill" },
      { label: "prompt", field: "prompt_tokens_per_second", color: "prompt", line: "dash" },
    ],
  },
  {
    id: "utilisation",
    measure: "ratio",
    leastTop: 1,
    series: [{ label: "busy", field: "utilisation_ratio", color: "load", line: "solid", fill: "loadFill" }],
  },
  percentileChart("queue_time", "queue_time_seconds"),
  percentileChart("ttft", "ttft_seconds"),
  percentileChart("itl", "itl_seconds"),
  percentileChart("e2e", "e2e_seconds"),
];

/**
 * @param {string} id
 * @param {string} interval
 * @returns {ChartSpec}
 */
function percentileChart(id, interval) {
  return {
    id,
    measure: "seconds",
    leastTop: 0.01,
    series: [
      { label: "p50", measured: { interval, percentile: 50 }, color: "p50", line: "solid", fill: "percentileFill" },
      { label: "p95", measured: { interval, percentile: 95 }, color: "p95", line: "dash" },
      { label: "p99", measured: { interval, percentile: 99 }, color: "p99", line: "dot" },
    ],
  };
}
