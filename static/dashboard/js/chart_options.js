/**
 * How a chart looks, in Chart.js's words.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_specs.js").SeriesSpec} SeriesSpec
 * @typedef {Record<keyof typeof import("./chart_specs.js").COLORS, string>} Palette
 *
 * @typedef {object} PlottedPoint
 * @property {number} x unix seconds
 * @property {number} y where it is drawn: upon the series below it, where they are stacked
 * @property {number} own its value
 */
import { clock, clockShort, moment } from "./format.js";
import { figure, tick } from "./measures.js";

const AXIS_WIDTH = 46;
const DAY_SECONDS = 86_400;
export const DASHES = {
  solid: [],
  thin: [],
  dash: [5, 3],
  dot: [1.5, 2.5],
  long: [10, 3],
  dashdot: [7, 2.5, 1.5, 2.5],
  dashdots: [7, 2.5, 1.5, 2.5, 1.5, 2.5],
  pair: [3, 2, 3, 6],
  sparse: [1.5, 5],
};
export const WIDTHS = {
  ...{ solid: 1.75, thin: 1, dash: 1.25, dot: 1.5 },
  ...{ long: 1.25, dashdot: 1.25, dashdots: 1.25, pair: 1.25, sparse: 1.75 },
};

/** @param {SeriesSpec} series @param {Palette} palette */
export function datasetOf(series, palette) {
  return {
    label: series.label,
    data: /** @type {PlottedPoint[]} */ ([]),
    borderDash: DASHES[series.line],
    borderWidth: WIDTHS[series.line],
    pointRadius: 0,
    pointHoverRadius: 3,
    pointHitRadius: 0,
    // A line along the edge of the plot is seen whole.
    clip: { left: 0, top: 3, right: 3, bottom: 3 },
    // Of a stack, the lowest is drawn last and covers what is behind it.
    fill: series.fill === undefined ? false : "origin",
    ...colorsOf(series, palette),
  };
}

/** @param {SeriesSpec} series @param {Palette} palette */
export function colorsOf(series, palette) {
  const color = palette[/** @type {keyof Palette} */ (series.color)];
  const backgroundColor = series.fill === undefined ? color : palette[/** @type {keyof Palette} */ (series.fill)];
  return { borderColor: color, backgroundColor, pointHoverBackgroundColor: color, pointHoverBorderColor: color };
}

/** @param {Palette} palette */
export function tooltipColors(palette) {
  return {
    backgroundColor: palette.surface,
    borderColor: palette.line,
    titleColor: palette.text,
    bodyColor: palette.text,
    footerColor: palette.marker,
  };
}

/**
 * @param {ChartSpec} spec
 * @param {object} parts
 * @param {{value: {ticks: number[], top: number}, time: {ticks: number[], step: number}}} parts.axes
 * @param {Palette} parts.palette
 * @param {(seconds: number) => string[]} parts.footer what a tooltip adds at that moment
 */
export function optionsOf(spec, { axes, palette, footer }) {
  const ticks = { color: palette.ink, font: { size: 10 }, autoSkip: false, maxRotation: 0, sampleSize: 1 };
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    parsing: false,
    normalized: true,
    layout: { padding: { top: 4, right: 8 } },
    interaction: { mode: "index", axis: "x", intersect: false },
    events: ["mousemove", "mouseout", "touchstart", "touchmove"],
    scales: {
      x: {
        type: "linear",
        min: 0,
        max: 1,
        grid: { display: false },
        border: { display: false },
        ticks: {
          ...ticks,
          padding: 0,
          callback: (/** @type {number} */ value) => timeLabel(value, axes.time.step),
        },
        afterBuildTicks: (/** @type {any} */ scale) => (scale.ticks = axes.time.ticks.map((value) => ({ value }))),
      },
      y: {
        type: "linear",
        min: 0,
        max: axes.value.top,
        grid: { color: palette.grid, drawTicks: false },
        border: { display: false },
        ticks: { ...ticks, padding: 6, callback: (/** @type {number} */ value) => tick(value, spec.measure) },
        afterBuildTicks: (/** @type {any} */ scale) => (scale.ticks = axes.value.ticks.map((value) => ({ value }))),
        afterFit: (/** @type {any} */ scale) => (scale.width = AXIS_WIDTH),
      },
    },
    plugins: {
      legend: { display: false },
      annotation: { animations: false, clip: true, annotations: /** @type {object[]} */ ([]) },
      tooltip: {
        animation: false,
        position: "nearest",
        // Beside the crosshair, not under it.
        yAlign: "center",
        borderWidth: 1,
        cornerRadius: 4,
        padding: 7,
        caretSize: 0,
        caretPadding: 10,
        boxWidth: 8,
        boxHeight: 2,
        boxPadding: 4,
        titleFont: { size: 11 },
        bodyFont: { size: 11 },
        footerFont: { size: 11, weight: "normal" },
        titleMarginBottom: 4,
        ...tooltipColors(palette),
        callbacks: {
          title: (/** @type {any[]} */ items) => (items.length ? clock(items[0].parsed.x) : ""),
          label: (/** @type {any} */ item) => `${item.dataset.label}  ${figure(item.raw.own, spec.measure)}`,
          labelColor: (/** @type {any} */ item) => ({
            borderColor: item.dataset.borderColor,
            backgroundColor: item.dataset.borderColor,
          }),
          footer: (/** @type {any[]} */ items) => (items.length ? footer(items[0].parsed.x) : []),
        },
      },
    },
  };
}

/** @param {number} unixSeconds @param {number} step between two labels, in seconds */
function timeLabel(unixSeconds, step) {
  if (step >= DAY_SECONDS) return moment(new Date(unixSeconds * 1000).toISOString());
  return step < 60 ? clock(unixSeconds) : clockShort(unixSeconds);
}
