/**
 * Beside the picture: tokens a second and step time by batch size, from the steps that it shows, as two small charts, a
 * sentence and a table.
 *
 * @typedef {import("./steps_stats.js").SizeStats} SizeStats
 * @typedef {import("./steps_rows.js").Row} Row
 */
import { byId, create, find, setText, show } from "./dom.js";
import { compact, count, milliseconds } from "./format.js";
import { valueAxis } from "./scale.js";
import { sentenceAbout, sizesOf } from "./steps_stats.js";
import { onThemeChange, readColors } from "./theme.js";
import { Chart } from "./vendor.js";

const REST_MS = 1000;
const COLORS = /** @type {const} */ ([
  "chart-load",
  "chart-p50",
  "chart-p95",
  "chart-grid",
  "chart-ink",
  "raised",
  "line-strong",
  "ink",
]);
/** @typedef {Record<typeof COLORS[number], string>} Palette */

/**
 * @typedef {object} LineSpec
 * @property {string} label
 * @property {keyof Palette} color
 * @property {number[]} dash
 * @property {(stats: SizeStats) => number} value
 * @property {(value: number) => string} words
 */

/** @type {Record<string, LineSpec[]>} */
const CHARTS = {
  rate: [
    { label: "tokens/s", color: "chart-load", dash: [], value: (stats) => stats.tokensPerSecond, words: compact },
  ],
  time: [
    { label: "median", color: "chart-p50", dash: [], value: (stats) => stats.medianMs, words: milliseconds },
    { label: "p95", color: "chart-p95", dash: [4, 3], value: (stats) => stats.p95Ms, words: milliseconds },
  ],
};

export function createSizeCharts() {
  let palette = /** @type {Palette} */ (readColors(COLORS));
  const names = Object.keys(CHARTS);
  let charts = names.map((name) => createChart(name, palette));
  let drawnAt = -Infinity;
  let drawnStep = 0;
  /** @type {SizeStats[]} */
  let sizes = [];
  onThemeChange(() => {
    palette = /** @type {Palette} */ (readColors(COLORS));
    charts.forEach((chart) => chart.destroy());
    charts = names.map((name) => createChart(name, palette));
    draw();
  });

  function draw() {
    names.forEach((name, index) => fillChart(charts[index], CHARTS[name], sizes));
    show(byId("sizes-none"), sizes.length === 0);
    setText(byId("sizes-sentence"), sentenceAbout(sizes));
    byId("sizes-table").replaceChildren(
      ...sizes.map((stats) =>
        create("tr", {}, [
          create("th", { scope: "row", className: "num", text: count(stats.size) }),
          ...figuresOf(stats).map((text) => create("td", { className: "end num", text })),
        ]),
      ),
    );
  }

  return {
    /**
     * Draws at most once a second.
     *
     * @param {{lastStep: number, rows: () => Row[]}} ring
     * @param {number} now milliseconds
     */
    render(ring, now) {
      if (ring.lastStep === drawnStep || now - drawnAt < REST_MS) return;
      drawnAt = now;
      drawnStep = ring.lastStep;
      sizes = sizesOf(ring.rows());
      draw();
    },
  };
}

/** @param {SizeStats} stats */
function figuresOf({ numSteps, medianMs, p95Ms, tokensPerSecond }) {
  return [count(numSteps), milliseconds(medianMs), milliseconds(p95Ms), compact(tokensPerSecond)];
}

/** @param {import("chart.js").Chart} chart @param {LineSpec[]} lines @param {SizeStats[]} sizes */
function fillChart(chart, lines, sizes) {
  lines.forEach((line, index) => {
    chart.data.datasets[index].data = sizes.map((stats) => ({ x: stats.size, y: line.value(stats) }));
  });
  const largest = Math.max(0, ...sizes.flatMap((stats) => lines.map((line) => line.value(stats))));
  const widest = Math.max(1, ...sizes.map(({ size }) => size));
  const scales = /** @type {any} */ (chart.options.scales);
  scales.y.max = valueAxis(largest, { leastTop: 1 }).top;
  scales.x.max = valueAxis(widest, { leastStep: 1, leastTop: 4 }).top;
  chart.update("none");
}

/** @param {string} name @param {Palette} palette */
function createChart(name, palette) {
  const lines = CHARTS[name];
  const datasets = lines.map(({ label, color, dash }) => ({
    label,
    data: [],
    borderColor: palette[color],
    backgroundColor: palette[color],
    borderDash: dash,
    borderWidth: 1.5,
    pointRadius: 2,
    clip: 6,
    pointHoverRadius: 4,
  }));
  const canvas = /** @type {HTMLCanvasElement} */ (find(byId(`sizes-${name}`), "canvas"));
  const options = optionsOf(lines, palette);
  return new Chart(canvas, /** @type {any} */ ({ type: "line", data: { datasets }, options }));
}

/** @param {LineSpec[]} lines @param {Palette} palette */
function optionsOf(lines, palette) {
  const ticks = { color: palette["chart-ink"], font: { size: 10 }, maxRotation: 0, autoSkipPadding: 12 };
  const axis = { type: "linear", min: 0, border: { display: false } };
  const words = (/** @type {number} */ value) => lines[0].words(value).replace(/\.0+(?=\D|$)/, "");
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    parsing: false,
    layout: { padding: { right: 8 } },
    interaction: { mode: "nearest", axis: "x", intersect: false },
    scales: {
      x: { ...axis, grid: { display: false }, ticks: { ...ticks, precision: 0 } },
      y: {
        ...axis,
        grid: { color: palette["chart-grid"], drawTicks: false },
        ticks: { ...ticks, maxTicksLimit: 5, callback: words },
      },
    },
    plugins: {
      legend: { display: false },
      tooltip: {
        animation: false,
        backgroundColor: palette.raised,
        borderColor: palette["line-strong"],
        borderWidth: 1,
        titleColor: palette.ink,
        bodyColor: palette.ink,
        callbacks: {
          title: (/** @type {any[]} */ items) => (items.length ? `${count(items[0].parsed.x)} in the batch` : ""),
          label: (/** @type {any} */ item) => `${item.dataset.label}  ${lines[item.datasetIndex].words(item.parsed.y)}`,
        },
      },
    },
  };
}
