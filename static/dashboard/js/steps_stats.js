/**
 * What the batch's size does to a step, from the very steps that are shown: where more batch stops paying.
 *
 * @typedef {import("./steps_rows.js").Row} Row
 *
 * @typedef {object} SizeStats steps that decode so many sequences and do nothing else
 * @property {number} size
 * @property {number} numSteps
 * @property {number} medianMs
 * @property {number} p95Ms
 * @property {number} tokensPerSecond in the median step
 *
 * @typedef {object} Knee doubling from `size` gains less than a tenth
 * @property {number} size
 * @property {number} larger the size that it was compared with
 * @property {number} gain of tokens a second from one to the other, 0.06 for 6 %
 * @property {number} slowdown how many times as long a step takes
 */
import { count, percent } from "./format.js";

export const LEAST_STEPS = 8;
const LEAST_GAIN = 0.1;

/** By size, smallest first; sizes of too few steps are left out. @param {Iterable<Row>} rows @returns {SizeStats[]} */
export function sizesOf(rows) {
  /** @type {Map<number, number[]>} */
  const bySize = new Map();
  for (const row of rows) {
    if (row.failed || row.prefillTokens > 0 || row.decodeTokens === 0 || row.totalMs <= 0) continue;
    const times = bySize.get(row.decodeTokens);
    if (times === undefined) bySize.set(row.decodeTokens, [row.totalMs]);
    else times.push(row.totalMs);
  }
  return [...bySize]
    .filter(([, times]) => times.length >= LEAST_STEPS)
    .sort(([one], [other]) => one - other)
    .map(([size, times]) => {
      times.sort((one, other) => one - other);
      const medianMs = percentileOf(times, 50);
      return {
        size,
        numSteps: times.length,
        medianMs,
        p95Ms: percentileOf(times, 95),
        tokensPerSecond: (1000 * size) / medianMs,
      };
    });
}

/** The smallest value that so many percent do not exceed. @param {number[]} ordered @param {number} percent */
export function percentileOf(ordered, percent) {
  return ordered[Math.max(0, Math.ceil((ordered.length * percent) / 100) - 1)];
}

/**
 * The smallest size from which on doubling gains less than a tenth, wherever it can be seen; null where none is.
 *
 * @param {SizeStats[]} sizes
 * @returns {Knee | null}
 */
export function kneeOf(sizes) {
  /** @type {Knee | null} */
  let knee = null;
  // From the largest down: at the first that still pays, the search is over.
  for (const small of [...sizes].reverse()) {
    const large = twiceOf(small, sizes);
    if (large === null) continue;
    const gain = large.tokensPerSecond / small.tokensPerSecond - 1;
    const perDoubling = (1 + gain) ** (1 / Math.log2(large.size / small.size)) - 1;
    if (perDoubling >= LEAST_GAIN) break;
    knee = { size: small.size, larger: large.size, gain, slowdown: large.medianMs / small.medianMs };
  }
  return knee;
}

/**
 * The size nearest to twice this one, if there is any that near.
 *
 * @param {SizeStats} small
 * @param {SizeStats[]} sizes
 */
function twiceOf(small, sizes) {
  const near = sizes.filter(({ size }) => size >= 1.5 * small.size && size <= 3 * small.size);
  near.sort((one, other) => Math.abs(one.size - 2 * small.size) - Math.abs(other.size - 2 * small.size));
  return near[0] ?? null;
}

/** What the two charts say, in a sentence. @param {SizeStats[]} sizes @returns {string} */
export function sentenceAbout(sizes) {
  const canCompare = sizes.some((size) => twiceOf(size, sizes) !== null);
  if (!canCompare) {
    const wanted = `it takes ${LEAST_STEPS} steps that only decode of one size, and of about twice as many`;
    return `Too few different batch sizes yet: ${wanted}.`;
  }
  const knee = kneeOf(sizes);
  if (knee === null) {
    const largest = sizes[sizes.length - 1];
    const gain = "twice as many give at least a tenth more tokens a second";
    return `More batch still pays: up to ${count(largest.size)} sequences, ${gain}.`;
  }
  const { size, larger, gain, slowdown } = knee;
  const change = gain > 0 ? `${percent(gain)} more` : `${gain > -0.005 ? "no more" : `${percent(-gain)} fewer`}`;
  const where = `${count(size)} ${size === 1 ? "sequence" : "sequences"}`;
  const cost = `each step takes ${slowdown.toFixed(1)} times as long`;
  return `More batch stops paying at about ${where}: ${count(larger)} give ${change} tokens a second, and ${cost}.`;
}

/**
 * What static batches wasted: the share of a rectangular batch's places that held no token; null where no step was
 * static.
 *
 * @param {Iterable<Row>} rows
 * @returns {{ratio: number, padded: number} | null}
 */
export function wasteOf(rows) {
  let padded = 0;
  let computed = 0;
  for (const row of rows) {
    if (!row.isStatic) continue;
    padded += row.paddedTokens;
    computed += row.prefillTokens + row.decodeTokens;
  }
  return padded + computed === 0 ? null : { ratio: padded / (padded + computed), padded };
}
