/**
 * One chart: a thin hand on Chart.js. What it draws comes in whole each time; nothing is animated, nothing is kept but
 * the objects that points are written into, so that drawing leaves no garbage.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_specs.js").SeriesSpec} SeriesSpec
 * @typedef {{x: Float64Array, y: Float64Array}} Series
 * @typedef {import("./markers.js").Marker & {tellings: import("./mark_lines.js").Telling[]}} Mark
 * @typedef {{from: number, to: number, series: Series[], marks: Mark[]}} Drawing `from` and `to` are unix seconds
 * @typedef {Record<keyof typeof import("./chart_specs.js").COLORS, string>} Palette
 *
 * @typedef {object} ChartView
 * @property {(drawing: Drawing) => boolean} draw false where there was no value to draw
 * @property {(palette: Palette) => void} paint takes other colours, from the next drawing on
 * @property {() => number} width of the plot, in pixels
 * @property {(unixSeconds: number) => number} pixelAt from the canvas's left edge
 * @property {(pixel: number) => number | null} timeAt null outside the plot
 */
import { clock, clockShort } from "./format.js";
import { linesAbout } from "./mark_lines.js";
import { labelOf, labelsOf } from "./markers.js";
import { figure, tick } from "./measures.js";
import { durationAxis, timeAxis, valueAxis } from "./scale.js";
import { Chart } from "./vendor.js";

const AXIS_WIDTH = 46;
const LABEL_FONT_SIZE = 10;
const LABEL_PADDING = 3;
const LABEL_GAP = 4;
const MARK_REACH = 5;
const MOST_LINES = 6;
const DASHES = { solid: [], dash: [5, 3], dot: [1.5, 2.5] };
const WIDTHS = { solid: 1.75, dash: 1.25, dot: 1.5 };

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ChartSpec} spec
 * @param {Palette} palette
 * @returns {ChartView}
 */
export function createChart(canvas, spec, palette) {
  let colors = palette;
  /** @type {Drawing} */
  let drawing = { from: 0, to: 1, series: [], marks: [] };
  const axisOf = (/** @type {number} */ largest) =>
    (spec.measure === "seconds" ? durationAxis : valueAxis)(largest, spec);
  const axes = { value: axisOf(0), time: timeAxis(0, 1, 0) };
  const datasets = spec.series.map((series) => datasetOf(series, palette));
  const options = optionsOf(spec, {
    axes,
    palette,
    footer: (seconds) => linesNear(drawing.marks, seconds, MARK_REACH * secondsPerPixel()),
  });
  const chart = new Chart(canvas, { type: "line", data: { datasets }, options: /** @type {any} */ (options) });

  // Not the canvas's: to ask it for its size costs a layout.
  const plotWidth = () => Math.max(1, chart.chartArea.right - chart.chartArea.left);

  const secondsPerPixel = () => (drawing.to - drawing.from) / plotWidth();

  function paint() {
    spec.series.forEach((series, index) => Object.assign(datasets[index], colorsOf(series, colors)));
    options.scales.x.ticks.color = options.scales.y.ticks.color = colors.ink;
    options.scales.y.grid.color = colors.grid;
    Object.assign(options.plugins.tooltip, tooltipColors(colors));
  }

  return {
    draw(next) {
      drawing = next;
      let largest = -1;
      next.series.forEach((series, index) => {
        largest = Math.max(largest, fill(datasets[index].data, series));
      });
      axes.value = axisOf(Math.max(0, largest));
      axes.time = timeAxis(next.from, next.to, -60 * new Date(next.to * 1000).getTimezoneOffset());
      Object.assign(options.scales.x, { min: next.from, max: next.to });
      options.scales.y.max = axes.value.top;
      const labels = labelsOf(next.marks, labelWidth(next.marks) * secondsPerPixel());
      options.plugins.annotation.annotations = next.marks.map((mark, index) =>
        lineAt(mark, { color: colors.marker, background: colors.ground, label: labels[index] }),
      );
      chart.options = /** @type {any} */ (options);
      chart.update("none");
      return largest >= 0;
    },
    paint(next) {
      colors = next;
      paint();
    },
    width: plotWidth,
    pixelAt: (unixSeconds) => chart.scales.x.getPixelForValue(unixSeconds),
    timeAt(pixel) {
      const { left, right } = chart.chartArea;
      return pixel < left || pixel > right ? null : (chart.scales.x.getValueForPixel(pixel) ?? null);
    },
  };
}

/**
 * Writes `series` into `points`, and returns the largest value (-1 where there is none).
 *
 * @param {{x: number, y: number}[]} points
 * @param {Series} series
 */
function fill(points, { x, y }) {
  let largest = -1;
  if (points.length > x.length) points.length = x.length;
  for (let index = 0; index < x.length; index += 1) {
    const value = y[index];
    if (value > largest) largest = value;
    const point = points[index];
    if (point === undefined) points.push({ x: x[index], y: value });
    else {
      point.x = x[index];
      point.y = value;
    }
  }
  return largest;
}

/** @param {SeriesSpec} series @param {Palette} palette */
function datasetOf(series, palette) {
  return {
    label: series.label,
    data: /** @type {{x: number, y: number}[]} */ ([]),
    borderDash: DASHES[series.line],
    borderWidth: WIDTHS[series.line],
    pointRadius: 0,
    pointHoverRadius: 3,
    pointHitRadius: 0,
    // A line along the edge of the plot is seen whole.
    clip: { left: 0, top: 3, right: 3, bottom: 3 },
    fill: series.fill === undefined ? false : "origin",
    ...colorsOf(series, palette),
  };
}

/** @param {SeriesSpec} series @param {Palette} palette */
function colorsOf(series, palette) {
  const color = palette[/** @type {keyof Palette} */ (series.color)];
  const backgroundColor = series.fill === undefined ? color : palette[/** @type {keyof Palette} */ (series.fill)];
  return { borderColor: color, backgroundColor, pointHoverBackgroundColor: color, pointHoverBorderColor: color };
}

/** @param {Palette} palette */
function tooltipColors(palette) {
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
function optionsOf(spec, { axes, palette, footer }) {
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
          callback: (/** @type {number} */ value) => (axes.time.step < 60 ? clock(value) : clockShort(value)),
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
          label: (/** @type {any} */ item) => `${item.dataset.label}  ${figure(item.parsed.y, spec.measure)}`,
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

/** @param {Mark[]} marks @param {number} seconds @param {number} reach */
function linesNear(marks, seconds, reach) {
  const near = marks.filter((mark) => Math.abs(mark.at - seconds) <= reach);
  return linesAbout(
    near.flatMap((mark) => mark.tellings),
    MOST_LINES,
  );
}

/** The room that the widest label of these takes, in pixels. @param {Mark[]} marks */
function labelWidth(marks) {
  const newest = Math.max(0, ...marks.map(({ version }) => version));
  const numCharacters = labelOf(newest - 1, newest).length;
  return 0.6 * LABEL_FONT_SIZE * numCharacters + 2 * LABEL_PADDING + LABEL_GAP;
}

/** @param {Mark} mark @param {{color: string, background: string, label: string | null}} look */
function lineAt(mark, { color, background, label }) {
  return {
    type: "line",
    scaleID: "x",
    value: mark.at,
    borderColor: color,
    borderWidth: 1,
    borderDash: [3, 3],
    label: {
      display: label !== null,
      content: label ?? labelOf(mark.first, mark.version),
      position: "start",
      color,
      backgroundColor: background,
      font: { size: LABEL_FONT_SIZE, weight: "normal" },
      padding: { x: LABEL_PADDING, y: 1 },
      borderRadius: 2,
    },
  };
}
