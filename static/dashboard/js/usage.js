/** Usage by day as a chart, drawn from the table that stands below it. */
import { byId, find, show } from "./dom.js";
import { compact, count } from "./format.js";
import { onThemeChange, readColors } from "./theme.js";
import { daysOf, readDays } from "./usage_days.js";
import { Chart } from "./vendor.js";

const COLORS = /** @type {const} */ ([
  "chart-prompt",
  "chart-load",
  "chart-wait",
  "chart-grid",
  "chart-ink",
  "surface",
  "line",
  "ink",
]);

/** @typedef {Record<typeof COLORS[number], string>} Palette */

const days = daysOf(readDays(byId("days")));
const figure = byId("usage-chart");
show(figure, true);
let chart = draw(readColors(COLORS));
onThemeChange(() => {
  chart.destroy();
  chart = draw(readColors(COLORS));
});

/** @param {Palette} palette */
function draw(palette) {
  const canvas = /** @type {HTMLCanvasElement} */ (find(figure, "canvas"));
  return new Chart(canvas, /** @type {any} */ ({ data: dataOf(palette), options: optionsOf(palette) }));
}

/** @param {Palette} palette */
function dataOf(palette) {
  const bar = { type: "bar", stack: "tokens", yAxisID: "tokens", order: 1, maxBarThickness: 28 };
  return {
    labels: days.labels,
    datasets: [
      { ...bar, label: "prompt tokens", data: days.prompt, backgroundColor: palette["chart-prompt"] },
      { ...bar, label: "completion tokens", data: days.completion, backgroundColor: palette["chart-load"] },
      {
        type: "line",
        label: "requests",
        data: days.requests,
        yAxisID: "requests",
        order: 0,
        borderColor: palette["chart-wait"],
        backgroundColor: palette["chart-wait"],
        borderWidth: 1.5,
        pointRadius: days.labels.length > 31 ? 0 : 2,
      },
    ],
  };
}

/** @param {Palette} palette */
function optionsOf(palette) {
  const ticks = { color: palette["chart-ink"], font: { size: 10 }, maxRotation: 0, autoSkipPadding: 12 };
  const counts = { ...ticks, precision: 0, callback: (/** @type {number} */ value) => compact(value).replace(/\.0+(?=\D|$)/, "") };
  const axis = { beginAtZero: true, border: { display: false }, ticks: counts, suggestedMax: 4 };
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    interaction: { mode: "index", intersect: false },
    scales: {
      x: { stacked: true, grid: { display: false }, border: { display: false }, ticks },
      tokens: { ...axis, stacked: true, position: "left", grid: { color: palette["chart-grid"], drawTicks: false } },
      requests: { ...axis, position: "right", grid: { display: false } },
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
        callbacks: { label: (/** @type {any} */ item) => `${item.dataset.label}  ${count(item.parsed.y)}` },
      },
    },
  };
}
