/**
 * Changes of tunables as text. Pure.
 *
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValue} TunableValue
 */
import { diff, plain } from "./format.js";

/**
 * A change in one line of text.
 *
 * @param {{name: string, from: TunableValue, to: TunableValue}} change
 * @param {TunableSpec[]} specs
 * @returns {string}
 */
export function lineOf({ name, from, to }, specs) {
  const spec = specs.find((candidate) => candidate.name === name);
  return spec ? diff(spec, from, to) : `${name} ${plain(from)} → ${plain(to)}`;
}
