/**
 * A plot as Chart.js wants it. Pure.
 *
 * @typedef {import("./plots.js").Plot} Plot
 * @typedef {import("./plots.js").PlotSeries} PlotSeries
 * @typedef {import("./plots.js").Palette} Palette
 */

const IN_TURN = ["chart-load", "chart-wait", "chart-prompt", "chart-p95", "chart-p50", "chart-rest"];

/**
 * @param {Plot} plot
 * @param {Palette} palette
 */
export function dataOf(plot, palette) {
  return { datasets: plot.series.map((series, index) => datasetOf(series, palette, IN_TURN[index % IN_TURN.length])) };
}

/**
 * @param {PlotSeries} series
 * @param {Palette} palette
 * @param {string} colorInTurn
 */
function datasetOf(series, palette, colorInTurn) {
  const color = palette[series.color ?? colorInTurn] ?? palette["chart-load"];
  const style = series.style ?? "line";
  const isBars = style === "bars";
  return {
    type: isBars ? "bar" : "line",
    label: series.label,
    data: series.points,
    borderColor: color,
    backgroundColor: isBars || style === "points" ? color : (palette[`${series.color ?? colorInTurn}-fill`] ?? "transparent"),
    borderWidth: isBars ? 0 : 1.5,
    borderDash: series.dashed ? [5, 4] : [],
    showLine: style !== "points",
    stepped: style === "steps" ? "before" : false,
    fill: style === "area",
    pointRadius: style === "points" ? 4 : series.points.length > 60 ? 0 : 2.5,
    pointHitRadius: 8,
    barPercentage: 1,
    categoryPercentage: 0.95,
    grouped: false,
    order: isBars ? 1 : 0,
  };
}

/**
 * @param {Plot} plot
 * @param {Palette} palette
 */
export function optionsOf(plot, palette) {
  return {
    animation: false,
    maintainAspectRatio: false,
    interaction: { mode: "nearest", axis: "x", intersect: false },
    scales: { x: axisOf(plot.x, palette), y: axisOf({ zero: true, ...plot.y }, palette) },
    plugins: {
      legend: {
        display: plot.series.length > 1,
        position: "bottom",
        labels: { color: palette["chart-ink"], boxWidth: 12, boxHeight: 3 },
      },
      tooltip: {
        backgroundColor: palette["surface"],
        borderColor: palette["line"],
        borderWidth: 1,
        titleColor: palette["ink"],
        bodyColor: palette["ink"],
        callbacks: { label: labelOf },
      },
      annotation: { annotations: (plot.lines ?? []).map((line) => annotationOf(line, palette)) },
    },
  };
}

/**
 * @param {{ dataset: { label?: string }, raw: unknown, formattedValue: string }} item
 */
function labelOf(item) {
  const point = /** @type {{ label?: string, low?: number, high?: number }} */ (item.raw);
  const range = point.low === undefined || point.high === undefined ? "" : ` (${round(point.low)} to ${round(point.high)})`;
  return `${item.dataset.label}: ${item.formattedValue}${range}${point.label ? `, ${point.label}` : ""}`;
}

/** @param {number} value */
function round(value) {
  return Number(value.toPrecision(4));
}

/**
 * @param {import("./plots.js").Axis} axis
 * @param {Palette} palette
 */
function axisOf(axis, palette) {
  const text = axis.unit ? `${axis.label}, ${axis.unit}` : axis.label;
  return {
    type: axis.logarithmic ? "logarithmic" : "linear",
    beginAtZero: axis.zero ?? false,
    title: { display: true, text, color: palette["chart-ink"] },
    grid: { color: palette["chart-grid"] },
    border: { color: palette["chart-grid"] },
    ticks: { color: palette["chart-ink"], maxTicksLimit: 7 },
  };
}

/**
 * @param {import("./plots.js").PlotLine} line
 * @param {Palette} palette
 */
function annotationOf(line, palette) {
  const color = palette[line.color ?? "chart-objective"];
  const place = line.axis === "x" ? { xMin: line.value, xMax: line.value } : { yMin: line.value, yMax: line.value };
  return {
    type: "line",
    ...place,
    borderColor: color,
    borderWidth: 1.5,
    borderDash: [4, 3],
    label: { display: true, content: line.label, color, backgroundColor: palette["surface"], font: { size: 10 }, position: "start" },
  };
}
