/**
 * Charts that stand on a page of the Lab, drawn from JSON beside them, each with its figures as a table for who cannot
 * see it.
 *
 * @typedef {{ label: string, unit?: string, logarithmic?: boolean, zero?: boolean }} Axis
 * @typedef {{ x: number, y: number | null, low?: number, high?: number, label?: string }} PlotPoint
 * @typedef {object} PlotSeries
 * @property {string} label
 * @property {PlotPoint[]} points
 * @property {string} [color] a chart colour, as `chart-load`
 * @property {"line" | "bars" | "points" | "steps" | "area"} [style] line where it is left out
 * @property {boolean} [dashed]
 * @typedef {{ axis: "x" | "y", value: number, label: string, color?: string }} PlotLine
 * @typedef {object} Plot
 * @property {string} id
 * @property {string} title
 * @property {Axis} x
 * @property {Axis} y
 * @property {PlotSeries[]} series
 * @property {PlotLine[]} [lines]
 */
import { create } from "../dom.js";
import { onThemeChange, readColors } from "../theme.js";
import { Chart } from "../vendor.js";
import { dataOf, optionsOf } from "./plot_options.js";

export const COLORS = /** @type {const} */ ([
  "chart-load",
  "chart-load-fill",
  "chart-wait",
  "chart-wait-fill",
  "chart-prompt",
  "chart-rest",
  "chart-p50",
  "chart-p95",
  "chart-p99",
  "chart-percentile-fill",
  "chart-grid",
  "chart-ink",
  "chart-marker",
  "chart-objective",
  "surface",
  "line",
  "ink",
  "problem",
]);

/** @typedef {Record<string, string>} Palette */

/**
 * Draws plots into a container, in their order. Drawn again with others, charts of the same ids are kept and updated.
 *
 * @param {HTMLElement} container
 */
export function plotBoard(container) {
  /** @type {Map<string, { figure: HTMLElement, chart: import("chart.js").Chart, plot: Plot }>} */
  const drawn = new Map();

  /** @param {Plot} plot */
  function draw(plot) {
    const palette = readColors(COLORS);
    const known = drawn.get(plot.id);
    if (known) {
      known.plot = plot;
      known.chart.data = /** @type {any} */ (dataOf(plot, palette));
      known.chart.options = /** @type {any} */ (optionsOf(plot, palette));
      known.chart.update("none");
      known.figure.querySelector("details")?.replaceWith(tableOf(plot, known.figure.querySelector("details")?.open));
      return;
    }
    const canvas = /** @type {HTMLCanvasElement} */ (create("canvas", { role: "img", ariaLabel: plot.title }));
    const area = create("div", { className: "plot-area" }, [canvas]);
    const caption = create("figcaption", { text: plot.title });
    const figure = create("figure", { className: "plot", id: plot.id }, [caption, area, tableOf(plot, false)]);
    container.append(figure);
    const config = { type: "scatter", data: dataOf(plot, palette), options: optionsOf(plot, palette) };
    drawn.set(plot.id, { figure, chart: new Chart(canvas, /** @type {any} */ (config)), plot });
  }

  onThemeChange(() => {
    for (const { plot } of drawn.values()) draw(plot);
  });

  return {
    /** @param {Plot[]} plots */
    draw(plots) {
      const wanted = new Set(plots.map((plot) => plot.id));
      for (const [id, { figure, chart }] of drawn) {
        if (wanted.has(id)) continue;
        chart.destroy();
        figure.remove();
        drawn.delete(id);
      }
      for (const plot of plots) draw(plot);
    },
  };
}

/**
 * @param {Plot} plot
 * @param {boolean | undefined} isOpen
 */
function tableOf(plot, isOpen) {
  const heads = [plot.x.label, ...plot.series.map((series) => series.label)];
  const places = [...new Set(plot.series.flatMap((series) => series.points.map((point) => point.x)))].sort((a, b) => a - b);
  const columns = plot.series.map((series) => new Map(series.points.map((point) => [point.x, point.y])));
  const head = create("tr", {}, heads.map((text) => create("th", { text, scope: "col" })));
  const rows = places.map((x) =>
    create("tr", {}, [
      create("th", { text: shown(x), scope: "row" }),
      ...columns.map((column) => create("td", { text: shown(column.get(x)), className: "num" })),
    ]),
  );
  const table = create("table", { className: "table" }, [create("thead", {}, [head]), create("tbody", {}, rows)]);
  const box = create("div", { className: "scroll", role: "region", tabIndex: 0, ariaLabel: `Figures: ${plot.title}` }, [table]);
  const details = /** @type {HTMLDetailsElement} */ (create("details", {}, [create("summary", { text: "Figures" }), box]));
  details.open = isOpen ?? false;
  return details;
}

/** @param {number | null | undefined} value */
function shown(value) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(5)));
}

/**
 * Draws what stands as JSON in the element `source` into `container`, where both are there.
 *
 * @param {string} source id of the script element
 * @param {string} container id of the element for the charts
 */
export function drawFromPage(source, container) {
  const script = document.getElementById(source);
  const place = document.getElementById(container);
  if (!script || !place) return;
  plotBoard(place).draw(JSON.parse(script.textContent || "[]"));
}
