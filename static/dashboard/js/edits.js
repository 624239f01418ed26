/**
 * Edits against the values that they change. Pure.
 *
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValues} TunableValues
 */
import { parseValue } from "./tunables.js";

/**
 * @typedef {object} Edits
 * @property {Readonly<Record<string, string>>} texts as typed, by lever: what an edited lever shows
 * @property {Readonly<TunableValues>} changes valid values that differ from the base's
 * @property {Readonly<Record<string, string>>} errors by lever
 */

/** @type {Edits} */
export const NO_EDITS = Object.freeze({ texts: {}, changes: {}, errors: {} });

/**
 * Changes and errors anew for the levers in `specs`; the others' stay. A value equal to the base's is no change; its
 * text is kept while it is written differently (`32.` on the way to `32.5`).
 *
 * @param {Edits} edits
 * @param {TunableSpec[]} specs each of a lever that has a text
 * @param {TunableValues} values the base's
 * @returns {Edits}
 */
export function compare(edits, specs, values) {
  let { texts, changes, errors } = edits;
  for (const spec of specs) {
    const { name } = spec;
    const text = texts[name];
    const parsed = parseValue(spec, text);
    changes = without(changes, name);
    errors = without(errors, name);
    if ("error" in parsed) errors = { ...errors, [name]: parsed.error };
    else if (parsed.value !== values[name]) changes = { ...changes, [name]: parsed.value };
    else if (text === String(parsed.value)) texts = without(texts, name);
  }
  return { texts, changes, errors };
}

/**
 * The edits without one lever's.
 *
 * @param {Edits} edits
 * @param {string} name
 * @returns {Edits}
 */
export function withdrawn({ texts, changes, errors }, name) {
  return { texts: without(texts, name), changes: without(changes, name), errors: without(errors, name) };
}

/**
 * Whether there is a change, or what is meant as one.
 *
 * @param {Edits} edits
 * @returns {boolean}
 */
export function hasEdits({ changes, errors }) {
  return Object.keys(changes).length > 0 || Object.keys(errors).length > 0;
}

/**
 * @template Value
 * @param {Readonly<Record<string, Value>>} record
 * @param {string} name
 * @returns {Readonly<Record<string, Value>>}
 */
function without(record, name) {
  const { [name]: _, ...rest } = record;
  return rest;
}
