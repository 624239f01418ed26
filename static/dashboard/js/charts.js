/**
 * One chart: a thin hand on Chart.js. What it draws comes in whole each time; nothing is animated, nothing is kept but
 * the objects that points are written into, so that drawing leaves no garbage.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_options.js").Palette} Palette
 * @typedef {import("./chart_options.js").PlottedPoint} PlottedPoint
 * @typedef {import("./marks.js").Mark} Mark
 * @typedef {import("./objectives.js").Objective} Objective
 * @typedef {import("./ring.js").Series} Series
 *
 * @typedef {object} Drawing `from` and `to` are unix seconds
 * @property {number} from
 * @property {number} to
 * @property {Series[]} series
 * @property {string[]} labels one a series
 * @property {Mark[]} marks
 * @property {Objective[]} objectives
 *
 * @typedef {object} ChartView
 * @property {(drawing: Drawing) => boolean} draw false where there was nothing to see
 * @property {(palette: Palette) => void} paint takes other colours, from the next drawing on
 * @property {() => number} width of the plot, in pixels
 * @property {() => number} left edge of the plot, in pixels from the canvas's
 * @property {() => number} right edge likewise
 * @property {(unixSeconds: number) => number} pixelAt from the canvas's left edge
 * @property {(pixel: number) => number | null} timeAt null outside the plot
 */
import { colorsOf, datasetOf, optionsOf, tooltipColors } from "./chart_options.js";
import { annotationsOf } from "./mark_annotations.js";
import { linesNear } from "./marks.js";
import { axisReach, createObjectiveLine } from "./objective_line.js";
import { byteAxis, durationAxis, timeAxis, valueAxis } from "./scale.js";
import { NOTHING, stackedUp } from "./source.js";
import { Chart } from "./vendor.js";

const MARK_REACH = 5;
const LEAST_LABELLED_HEIGHT = 130;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ChartSpec} spec
 * @param {Palette} palette
 * @returns {ChartView}
 */
export function createChart(canvas, spec, palette) {
  let colors = palette;
  /** @type {Drawing} */
  let drawing = { from: 0, to: 1, series: [], labels: [], marks: [], objectives: [] };
  const makeAxis = { seconds: durationAxis, bytes: byteAxis }[/** @type {string} */ (spec.measure)] ?? valueAxis;
  const axisOf = (/** @type {number} */ largest) => makeAxis(largest, spec);
  const axes = { value: axisOf(0), time: timeAxis(0, 1, 0) };
  const datasets = spec.series.map((series) => datasetOf(series, palette));
  const options = optionsOf(spec, {
    axes,
    palette,
    footer: (second) => linesNear(drawing.marks, { second, reach: MARK_REACH * secondsPerPixel() }),
  });
  const chart = new Chart(canvas, {
    type: "line",
    data: { datasets },
    options: /** @type {any} */ (options),
    plugins: spec.objective === undefined ? [] : [createObjectiveLine(() => ({ ...drawing, color: colors.objective }))],
  });

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
      const places = spec.stacked ? stackedUp(next.series) : next.series;
      let largest = -1;
      datasets.forEach((dataset, index) => {
        dataset.label = next.labels[index] ?? "";
        largest = Math.max(largest, fill(dataset.data, places[index] ?? NOTHING, next.series[index] ?? NOTHING));
      });
      // Shares that are rounded come to a little more than the whole.
      const reach = spec.measure === "ratio" ? Math.min(1, largest) : largest;
      axes.value = axisOf(axisReach(Math.max(0, reach), next.objectives));
      axes.time = timeAxis(next.from, next.to, -60 * new Date(next.to * 1000).getTimezoneOffset());
      Object.assign(options.scales.x, { min: next.from, max: next.to });
      options.scales.y.max = axes.value.top;
      options.plugins.annotation.annotations = annotationsOf(next.marks, {
        palette: colors,
        secondsPerPixel: secondsPerPixel(),
        hasRoom: chart.height >= LEAST_LABELLED_HEIGHT,
      });
      chart.options = /** @type {any} */ (options);
      chart.update("none");
      return spec.isNothingAtZero ? largest > 0 : largest >= 0;
    },
    paint(next) {
      colors = next;
      paint();
    },
    width: plotWidth,
    left: () => chart.chartArea.left,
    right: () => chart.chartArea.right,
    pixelAt: (unixSeconds) => chart.scales.x.getPixelForValue(unixSeconds),
    timeAt(pixel) {
      const { left, right } = chart.chartArea;
      return pixel < left || pixel > right ? null : (chart.scales.x.getValueForPixel(pixel) ?? null);
    },
  };
}

/**
 * Writes a series into `points`, and returns the largest place (-1 where there is none).
 *
 * @param {PlottedPoint[]} points
 * @param {Series} places where it is drawn
 * @param {Series} own its values
 */
function fill(points, { x, y }, { y: values }) {
  let largest = -1;
  if (points.length > x.length) points.length = x.length;
  for (let index = 0; index < x.length; index += 1) {
    const place = y[index];
    if (place > largest) largest = place;
    const point = points[index];
    if (point === undefined) points.push({ x: x[index], y: place, own: values[index] });
    else {
      point.x = x[index];
      point.y = place;
      point.own = values[index];
    }
  }
  return largest;
}
