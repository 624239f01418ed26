/** A workload's distributions, drawn: what was measured as bars, what is fitted and what is played as lines over it. */
import "../../tenants.js";
import { byId, find, show } from "../../dom.js";
import { onThemeChange, readColors } from "../../theme.js";
import { Chart } from "../../vendor.js";
import { binLabels, cumulative, timeLabels } from "./series.js";

const COLORS = /** @type {const} */ ([
  "chart-load",
  "chart-wait",
  "chart-wait-solid",
  "chart-p95",
  "chart-grid",
  "chart-ink",
  "surface",
  "line",
  "ink",
]);

/** @typedef {Record<typeof COLORS[number], string>} Palette */
/** @typedef {{label: string, values: number[], kind: "measured" | "fitted" | "played"}} Series */

const data = document.getElementById("workload-charts");
if (data) begin(JSON.parse(data.textContent ?? "{}"));

/** @param {{lengths: import("./series.js").LengthsChart[], arrivals: import("./series.js").ArrivalsChart}} charts */
function begin(charts) {
  const button = byId("cumulative");
  let isCumulative = false;
  let drawn = draw(charts, isCumulative);
  const again = () => {
    for (const chart of drawn) chart.destroy();
    drawn = draw(charts, isCumulative);
  };
  show(button, true);
  button.addEventListener("click", () => {
    isCumulative = !isCumulative;
    button.setAttribute("aria-pressed", String(isCumulative));
    again();
  });
  onThemeChange(again);
}

/** @param {Parameters<typeof begin>[0]} charts @param {boolean} isCumulative */
function draw(charts, isCumulative) {
  const palette = readColors(COLORS);
  const made = charts.lengths.flatMap((chart) => drawLengths(chart, palette, isCumulative));
  return [...made, ...drawArrivals(charts.arrivals, palette)];
}

/** @param {import("./series.js").LengthsChart} chart @param {Palette} palette @param {boolean} isCumulative */
function drawLengths(chart, palette, isCumulative) {
  const figure = document.querySelector(`[data-lengths="${CSS.escape(chart.name)}"]`);
  if (!(figure instanceof HTMLElement)) return [];
  const told = /** @type {Series[]} */ ([
    { label: "played", values: chart.played, kind: "played" },
    { label: "lognormal", values: chart.fitted, kind: "fitted" },
    { label: "measured", values: chart.measured, kind: "measured" },
  ].filter((series) => series.values));
  const series = told.map((one) => ({ ...one, values: isCumulative ? cumulative(one.values) : one.values }));
  return [plot(figure, binLabels(chart.edges), series, palette, percentOf)];
}

/** @param {import("./series.js").ArrivalsChart} arrivals @param {Palette} palette */
function drawArrivals(arrivals, palette) {
  const count = (arrivals.measured ?? arrivals.played ?? []).length;
  if (!count) return [];
  const series = /** @type {Series[]} */ ([
    { label: "played", values: arrivals.played, kind: "played" },
    { label: "measured", values: arrivals.measured, kind: "measured" },
  ].filter((one) => one.values));
  const figure = /** @type {HTMLElement} */ (byId("arrivals-chart"));
  return [plot(figure, timeLabels(arrivals.seconds, count), series, palette, (value) => `${Number(value.toPrecision(3))}/s`)];
}

/** @param {number} share */
function percentOf(share) {
  return `${Number((share * 100).toFixed(1))} %`;
}

/**
 * @param {HTMLElement} figure
 * @param {string[]} labels
 * @param {Series[]} series
 * @param {Palette} palette
 * @param {(value: number) => string} tell
 */
function plot(figure, labels, series, palette, tell) {
  show(figure, true);
  const canvas = /** @type {HTMLCanvasElement} */ (find(figure, "canvas"));
  const hasBars = series.some((one) => one.kind === "measured");
  const datasets = series.map((one) => datasetOf(one, palette, hasBars));
  return new Chart(canvas, /** @type {any} */ ({ data: { labels, datasets }, options: optionsOf(palette, tell) }));
}

/** @param {Series} series @param {Palette} palette @param {boolean} hasBars */
function datasetOf(series, palette, hasBars) {
  const color = palette[series.kind === "measured" ? "chart-wait" : series.kind === "fitted" ? "chart-p95" : "chart-load"];
  const shared = { label: series.label, data: series.values, borderColor: color, backgroundColor: color };
  if (series.kind === "measured") {
    const bar = { type: "bar", order: 3, barPercentage: 1, categoryPercentage: 0.96, borderWidth: 1 };
    return { ...shared, ...bar, backgroundColor: palette["chart-wait-solid"] };
  }
  const line = { type: "line", pointRadius: 0, borderWidth: 2, tension: 0 };
  return { ...shared, ...line, order: series.kind === "fitted" ? 1 : 2, borderDash: series.kind === "fitted" && hasBars ? [5, 3] : [] };
}

/** @param {Palette} palette @param {(value: number) => string} tell */
function optionsOf(palette, tell) {
  const ticks = { color: palette["chart-ink"], font: { size: 10 }, maxRotation: 0, autoSkipPadding: 12 };
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    interaction: { mode: "index", intersect: false },
    scales: {
      x: { grid: { display: false }, border: { display: false }, ticks },
      y: {
        beginAtZero: true,
        border: { display: false },
        grid: { color: palette["chart-grid"], drawTicks: false },
        ticks: { ...ticks, maxTicksLimit: 6, callback: (/** @type {number} */ value) => tell(value) },
      },
    },
    plugins: {
      legend: { display: false },
      tooltip: {
        animation: false,
        backgroundColor: palette.surface,
        borderColor: palette.line,
        borderWidth: 1,
        titleColor: palette.ink,
        bodyColor: palette.ink,
        callbacks: { label: (/** @type {any} */ item) => `${item.dataset.label}  ${tell(item.parsed.y)}` },
      },
    },
  };
}
