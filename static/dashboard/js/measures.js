/**
 * Figures of the charts by what they measure.
 *
 * @typedef {import("./chart_specs.js").Measure} Measure
 */
import { NOTHING, bytes, compact, count, percent, rate, seconds } from "./format.js";

/**
 * @param {number | null | undefined} value seconds, a ratio or a plain number
 * @param {Measure} measure
 * @returns {string}
 */
export function figure(value, measure) {
  if (measure === "seconds") return seconds(value);
  if (measure === "ratio") return percent(value);
  if (measure === "bytes") return bytes(value);
  return measure === "rate" ? rate(value) : count(value);
}

/**
 * The same at an axis, where values are round and room is scarce: `2.5 s`, `20k`.
 *
 * @param {number} value
 * @param {Measure} measure
 * @returns {string}
 */
export function tick(value, measure) {
  if (measure === "ratio") return percent(value);
  if (measure === "bytes") return value === 0 ? "0" : trimmed(bytes(value).replace("iB", ""));
  if (measure !== "seconds") return value < 10_000 ? String(rounded(value)) : trimmed(compact(value));
  if (value === 0) return "0";
  if (value < 1) return `${rounded(value * 1000)} ms`;
  return value < 120 ? `${rounded(value)} s` : `${rounded(value / 60)} m`;
}

/** Without what adding steps in binary leaves behind. @param {number} value */
function rounded(value) {
  return Number.isFinite(value) ? Number(value.toPrecision(4)) : NOTHING;
}

/** `20.0k` → `20k`, `1.50M` → `1.5M` @param {string} text */
function trimmed(text) {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}
