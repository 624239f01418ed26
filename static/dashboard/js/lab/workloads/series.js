/**
 * What charts of workloads draw, as numbers. Pure functions.
 *
 * @typedef {object} LengthsChart shares of all lengths, a bin each; null where there is nothing
 * @property {string} name
 * @property {number[]} edges in tokens, one more than there are bins
 * @property {number[] | null} measured
 * @property {number[] | null} fitted
 * @property {number[]} played
 *
 * @typedef {object} ArrivalsChart
 * @property {number} seconds of one part
 * @property {number[] | null} measured requests a second
 * @property {number[] | null} played requests a second
 */

/** @param {number[]} edges @returns {string[]} a label for each bin */
export function binLabels(edges) {
  return edges.slice(1).map((next, index) => (next - 1 > edges[index] ? `${edges[index]}–${next - 1}` : `${edges[index]}`));
}

/** @param {number[]} shares @returns {number[]} the share of all up to each bin's end */
export function cumulative(shares) {
  let sum = 0;
  return shares.map((share) => (sum = Math.min(1, sum + share))); // each was rounded
}

/** @param {number} seconds @param {number} count @returns {string[]} when each part begins */
export function timeLabels(seconds, count) {
  return Array.from({ length: count }, (_, index) => timeLabel(index * seconds));
}

/** @param {number} seconds */
function timeLabel(seconds) {
  if (seconds < 120) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Number((seconds / 3600).toFixed(1))} h`;
}
