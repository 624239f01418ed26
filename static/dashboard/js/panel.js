/**
 * One chart with its head: the figures over it, the crosshair through it, and what it says where it has nothing.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_options.js").Palette} Palette
 * @typedef {import("./charts.js").ChartView} ChartView
 * @typedef {import("./marks.js").Mark} Mark
 * @typedef {import("./objectives.js").Objective} Objective
 * @typedef {import("./ring.js").Series} Series
 * @typedef {import("./source.js").Source} Source
 *
 * @typedef {object} Panel
 * @property {ChartSpec} spec
 * @property {string} title
 * @property {HTMLElement} element
 * @property {HTMLElement} body
 * @property {HTMLCanvasElement} canvas
 * @property {HTMLElement} crosshair
 * @property {HTMLElement} none what is said where there is nothing to draw
 * @property {HTMLElement[]} legends one a place for a series
 * @property {HTMLElement[]} figures likewise
 * @property {string[]} told what they say, as to ask them costs more than all the rest
 * @property {HTMLElement} objective the objective's figure
 * @property {ChartView} view
 * @property {Series[]} series what is to be seen
 * @property {string[]} labels one a series
 * @property {boolean} isTold whether points tell of it at all
 * @property {boolean} isAbsent whether there is no use for it
 * @property {Objective[]} objectives
 * @property {boolean} isMain
 * @property {boolean} isVisible
 * @property {string} shows what the last drawing showed, but for its points
 * @property {string} revision of its source when it was drawn
 * @property {number} drawnAt milliseconds
 */
import { createChart } from "./charts.js";
import { create, find, setData, setText, show } from "./dom.js";
import { clock } from "./format.js";
import { figure } from "./measures.js";
import { objectiveAt } from "./objectives.js";
import { NOTHING, placeAt } from "./source.js";

/**
 * @param {HTMLElement} root
 * @param {ChartSpec} spec
 * @param {Palette} palette
 * @returns {Panel}
 */
export function createPanel(root, spec, palette) {
  const element = find(root, `[data-chart="${spec.id}"]`);
  const list = find(element, ".figures");
  const legends = spec.series.map(({ label, color, line }) =>
    create("dt", { text: label, data: { series: color, line } }),
  );
  const figures = legends.map((legend) => {
    const value = create("dd", { text: "–" });
    list.append(create("div", {}, [legend, value]));
    return value;
  });
  const canvas = /** @type {HTMLCanvasElement} */ (find(element, "canvas"));
  return {
    spec,
    title: find(element, "h3").textContent ?? "",
    element,
    body: find(element, ".chart-body"),
    canvas,
    crosshair: find(element, ".crosshair"),
    none: find(element, ".chart-none"),
    legends,
    figures,
    told: [],
    objective: find(element, ".chart-objective"),
    view: createChart(canvas, spec, palette),
    series: [],
    labels: [],
    isTold: true,
    isAbsent: false,
    objectives: [],
    isMain: element.classList.contains("chart-main"),
    isVisible: true,
    shows: "",
    revision: "",
    drawnAt: 0,
  };
}

/**
 * @param {Panel} panel
 * @param {{source: Source, marks: Mark[], isKnown: boolean}} what `isKnown`: that there is nothing can be said
 */
export function drawPanel(panel, { source, marks, isKnown }) {
  const { series, labels, objectives, view } = panel;
  const hasValues = view.draw({ ...source.stretch, series, labels, objectives, marks });
  show(panel.none, !hasValues && isKnown && panel.isTold);
}

/** @param {Panel} panel @param {{second: number | null, step: number}} when the latest where `second` is null */
export function renderFigures(panel, { second, step }) {
  const { spec, series, figures, objectives, told, objective: line } = panel;
  if (spec.named !== undefined) renderLegends(panel);
  const objective = spec.objective === undefined ? null : objectiveAt(objectives, second);
  series.forEach((one, index) => {
    const value = valueAt(one, { second, step });
    const isMissed = objective !== null && value !== undefined && value > objective;
    const text = figure(value, spec.measure);
    if (told[index] === `${text} ${isMissed}`) return;
    told[index] = `${text} ${isMissed}`;
    setText(figures[index], text);
    // Told by a sign too, which the style sheet puts before it.
    setData(figures[index], "missed", String(isMissed));
  });
  if (spec.objective === undefined) return;
  show(line, objective !== null);
  setText(line, `SLO ${figure(objective, "seconds")}`);
}

/** Which names take which places. @param {Panel} panel */
function renderLegends({ legends, labels }) {
  legends.forEach((legend, index) => {
    setText(legend, labels[index] ?? "");
    show(/** @type {HTMLElement} */ (legend.parentElement), index < labels.length);
  });
}

/** @param {Panel} panel @param {number | null} second */
export function renderCrosshair({ crosshair, view }, second) {
  show(crosshair, second !== null);
  if (second !== null) crosshair.style.transform = `translateX(${Math.round(view.pixelAt(second))}px)`;
}

/**
 * What a chart shows at a moment, in words: `TTFT, 14:03:12: p50 12 ms, p95 80 ms`.
 *
 * @param {Panel} panel
 * @param {{second: number, step: number}} when
 */
export function spoken({ spec, title, series, labels }, { second, step }) {
  const said = labels.map(
    (label, index) => `${label} ${figure(valueAt(series[index] ?? NOTHING, { second, step }), spec.measure)}`,
  );
  return `${title}, ${clock(second)}: ${said.join(", ") || "nothing"}`;
}

/** @param {Series} series @param {{second: number | null, step: number}} when */
function valueAt(series, { second, step }) {
  const place = second === null ? lastKnown(series) : placeAt(series, second, step);
  return place < 0 ? undefined : series.y[place];
}

/** The last stretch of a past has no value yet. @param {Series} series */
function lastKnown({ y }) {
  return Number.isNaN(y[y.length - 1]) && !Number.isNaN(y[y.length - 2]) ? y.length - 2 : y.length - 1;
}
