/**
 * What a chart shows of a source: a series for each label. Pure.
 *
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./ring.js").Series} Series
 * @typedef {import("./source.js").Source} Source
 *
 * @typedef {object} Figures
 * @property {string[]} labels
 * @property {Series[]} series one a label
 * @property {boolean} isTold whether points tell of it at all; an older monitor's may not
 * @property {boolean} isAbsent whether there is no use for the chart
 */
import { isTold, mostAtOnce, partsOf } from "./named.js";

/**
 * As many names as the chart has places for, or all that there are.
 *
 * @param {Pick<ChartSpec, "named" | "series">} spec
 * @param {Source} source
 * @param {{mostNames?: number}} [bounds]
 * @returns {Figures}
 */
export function figuresOf({ named, series }, source, { mostNames = series.length } = {}) {
  if (named === undefined) {
    const labels = series.map(({ label }) => label);
    return { labels, series: series.map(source.read), isTold: true, isAbsent: false };
  }
  const table = source.readNamed(named);
  const isAbsent = named.leastNames !== undefined && mostAtOnce(table) < named.leastNames;
  const parts = isAbsent ? [] : partsOf(table, named, mostNames);
  return {
    labels: parts.map(({ label }) => label),
    series: parts.map((part) => part.series),
    isTold: isTold(table),
    isAbsent,
  };
}
