/** Round axes: where they end and where they are marked. */

const ROUND_STEPS = [1, 2, 2.5, 5, 10];
const TIME_STEPS_SECONDS = [1, 2, 5, 15, 30, 60, 120, 180, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200];
const LONGEST_TIME_STEP_SECONDS = 86_400;

/**
 * The least round step (of a power of ten) of which `numSteps` reach `largest`.
 *
 * @param {number} largest
 * @param {{numSteps: number, leastStep?: number}} options
 * @returns {number}
 */
export function roundStep(largest, { numSteps, leastStep = 0 }) {
  const wanted = Math.max(largest / numSteps, leastStep);
  if (!(wanted > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const factor = ROUND_STEPS.find((step) => step * power >= wanted * (1 - 1e-9) && isWhole(step * power, leastStep));
  return (factor ?? 10) * power;
}

/** @param {number} step @param {number} leastStep */
function isWhole(step, leastStep) {
  return leastStep < 1 || Number.isInteger(step);
}

/**
 * An axis from 0 that `largest` fits on: its end and its marks. Counts (`leastStep` 1) are marked at whole numbers.
 *
 * @param {number} largest
 * @param {{leastStep?: number, leastTop?: number}} [options]
 * @returns {{top: number, ticks: number[]}}
 */
export function valueAxis(largest, { leastStep = 0, leastTop = 0 } = {}) {
  const reach = Math.max(largest, leastTop);
  const step = roundStep(reach, { numSteps: 4, leastStep });
  const numSteps = Math.max(1, Math.ceil(reach / step - 1e-9));
  return { top: numSteps * step, ticks: Array.from({ length: numSteps + 1 }, (_, index) => index * step) };
}

/**
 * The same for durations in seconds: beyond two minutes, marked at round minutes.
 *
 * @param {number} largest
 * @param {{leastTop?: number}} [options]
 * @returns {{top: number, ticks: number[]}}
 */
export function durationAxis(largest, options = {}) {
  if (largest <= 120) return valueAxis(largest, options);
  const { top, ticks } = valueAxis(largest / 60);
  return { top: top * 60, ticks: ticks.map((tick) => tick * 60) };
}

/**
 * The same for bytes: marked at round numbers of the largest binary unit that fits.
 *
 * @param {number} largest
 * @param {{leastTop?: number}} [options]
 * @returns {{top: number, ticks: number[]}}
 */
export function byteAxis(largest, { leastTop = 0 } = {}) {
  const reach = Math.max(largest, leastTop, 1);
  const unit = 1024 ** Math.floor(Math.log2(reach) / 10);
  const { top, ticks } = valueAxis(reach / unit);
  return { top: top * unit, ticks: ticks.map((tick) => tick * unit) };
}

/**
 * Marks of a time axis at round moments of the local clock, about four of them.
 *
 * @param {number} from unix seconds
 * @param {number} to unix seconds
 * @param {number} offsetSeconds what the local clock is ahead of UTC
 * @returns {{step: number, ticks: number[]}}
 */
export function timeAxis(from, to, offsetSeconds) {
  const span = to - from;
  const step = TIME_STEPS_SECONDS.find((candidate) => span / candidate <= 5) ?? LONGEST_TIME_STEP_SECONDS;
  const ticks = [];
  const first = Math.ceil((from + offsetSeconds) / step) * step - offsetSeconds;
  for (let tick = first; tick <= to; tick += step) ticks.push(tick);
  return { step, ticks };
}
