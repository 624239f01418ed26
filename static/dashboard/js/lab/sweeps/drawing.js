/**
 * Throughput against latency, in Chart.js's words: one line a dimension of a sweep, its points in the order played.
 *
 * @typedef {object} SweptPoint
 * @property {string} label the dimension and its value
 * @property {number} x output tokens a second
 * @property {number} y p95 in milliseconds; `low` and `high` bound its confidence interval
 * @property {number} low
 * @property {number} high
 * @property {boolean} keeps whether it keeps the SLO
 * @property {string[]} marks words that single it out
 *
 * @typedef {{title: string, latency: string, slo_ms: number | null, points: SweptPoint[]}} SweptLeg
 *
 * @typedef {Record<typeof COLORS[number], string>} Palette
 */

export const COLORS = /** @type {const} */ ([
  "chart-load",
  "chart-objective",
  "chart-grid",
  "chart-ink",
  "problem",
  "surface",
  "raised",
  "line",
  "ink",
]);

const SINGLED_OUT = ["proposed", "best", "knee"];

/** What a chart of one dimension is made of. @param {SweptLeg} leg @param {Palette} palette */
export function chartOf(leg, palette) {
  return { type: "line", data: { datasets: [pointsOf(leg, palette)] }, options: optionsOf(leg, palette) };
}

/** A leg in a sentence, for who does not see the chart. @param {SweptLeg} leg @returns {string} */
export function spoken({ title, latency, slo_ms: slo, points }) {
  const found = points
    .filter(({ marks }) => marks.some((mark) => SINGLED_OUT.includes(mark)))
    .map(({ label, marks }) => `${label}: ${marks.filter((mark) => SINGLED_OUT.includes(mark)).join(", ")}`);
  const line = slo === null ? "" : `, the SLO at ${slo} ms`;
  return `Throughput against ${latency} over ${title}: ${points.length} points${line}. ${found.join("; ")}`.trim();
}

/** @param {SweptLeg} leg @param {Palette} palette */
function pointsOf(leg, palette) {
  const color = (/** @type {SweptPoint} */ point) => (point.keeps ? palette["chart-load"] : palette.problem);
  return {
    label: leg.title,
    data: leg.points,
    showLine: true,
    borderColor: palette["chart-load"],
    borderWidth: 1,
    pointStyle: leg.points.map(({ keeps }) => (keeps ? "circle" : "crossRot")),
    pointRadius: leg.points.map(({ marks }) => (marks.some((mark) => SINGLED_OUT.includes(mark)) ? 7 : 4)),
    pointBorderWidth: leg.points.map(({ keeps }) => (keeps ? 1 : 2)),
    pointBorderColor: leg.points.map(color),
    pointBackgroundColor: leg.points.map(color),
  };
}

/** @param {SweptLeg} leg @param {Palette} palette */
function optionsOf(leg, palette) {
  const ticks = { color: palette["chart-ink"], font: { size: 10 }, maxRotation: 0 };
  const axis = (/** @type {string} */ text) => ({
    type: "linear",
    beginAtZero: true,
    grid: { color: palette["chart-grid"], drawTicks: false },
    border: { display: false },
    ticks,
    title: { display: true, text, color: palette["chart-ink"], font: { size: 11 } },
  });
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    parsing: false,
    layout: { padding: { top: 16, right: 16 } },
    interaction: { mode: "nearest", intersect: false },
    scales: { x: axis("output tokens/s"), y: { ...axis(`${leg.latency}, ms`), suggestedMax: leg.slo_ms ?? undefined } },
    plugins: {
      legend: { display: false },
      annotation: { animations: false, annotations: annotationsOf(leg, palette) },
      tooltip: {
        animation: false,
        displayColors: false,
        backgroundColor: palette.raised,
        borderColor: palette.line,
        borderWidth: 1,
        titleColor: palette.ink,
        bodyColor: palette.ink,
        callbacks: {
          title: (/** @type {any[]} */ items) => (items.length ? items[0].raw.label : ""),
          label: (/** @type {any} */ item) => wordsOf(item.raw),
        },
      },
    },
  };
}

/** A point's figures, a line each. @param {SweptPoint} point @returns {string[]} */
export function wordsOf({ x, y, low, high, marks }) {
  const figures = [`${x.toFixed(1)} tokens/s`, `${y.toFixed(1)} ms (${low.toFixed(1)} to ${high.toFixed(1)})`];
  return marks.length ? [...figures, marks.join(", ")] : figures;
}

/** The SLO's line, what bounds each point's confidence interval, and words at those that are singled out. @param {SweptLeg} leg @param {Palette} palette */
export function annotationsOf(leg, palette) {
  const line = { type: "line", borderColor: palette["chart-objective"], borderWidth: 1.5, borderDash: [6, 4] };
  const label = { display: true, content: "SLO", position: "start", backgroundColor: palette.surface, color: palette["chart-objective"], font: { size: 10 }, padding: 2 };
  const slo = leg.slo_ms === null ? [] : [{ ...line, yMin: leg.slo_ms, yMax: leg.slo_ms, label }];
  const spans = leg.points.map(({ x, low, high }) => ({ type: "line", xMin: x, xMax: x, yMin: low, yMax: high, borderColor: palette["chart-ink"], borderWidth: 1 }));
  const words = leg.points
    .map(({ x, y, marks }) => ({ x, y, content: marks.filter((mark) => SINGLED_OUT.includes(mark)).join(", ") }))
    .filter(({ content }) => content !== "")
    .map(({ x, y, content }) => ({ type: "label", xValue: x, yValue: y, content, color: palette.ink, font: { size: 11 }, yAdjust: -16 }));
  return [...slo, ...spans, ...words];
}
