/**
 * What one lever admits: the same rules and the same words as the server's (`serving/contracts/tunables.py`), which
 * checks again.
 *
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValue} TunableValue
 */

const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const GROUPED = /^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$/;
const POOL_NAME = /^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$/;
const LONGEST_QUOTE = 80;

/**
 * The admitted values in words.
 *
 * @param {TunableSpec} spec
 * @returns {string}
 */
export function boundsOf(spec) {
  if (spec.kind === "choice") return `one of ${spec.choices.join(", ")}`;
  if (spec.kind === "name")
    return "empty, or the name of a pool: 1 to 64 letters, digits, '_', '-' or, not first, '.'";
  return `${spec.kind === "integer" ? "an integer" : "a number"} from ${spec.low} to ${spec.high}`;
}

/**
 * The value that `text` stands for, or an error that names field, value and bounds. Commas are read where they part
 * groups of three, as the page itself writes them: `1,5` means two things to two people.
 *
 * @param {TunableSpec} spec
 * @param {string} text as typed
 * @returns {{value: TunableValue} | {error: string}}
 */
export function parseValue(spec, text) {
  const trimmed = text.trim();
  if (spec.kind === "choice") {
    return spec.choices.includes(trimmed) ? { value: trimmed } : refuse(spec, quote(trimmed));
  }
  if (spec.kind === "name") {
    return trimmed === "" || POOL_NAME.test(trimmed) ? { value: trimmed } : refuse(spec, quote(trimmed));
  }
  const digits = GROUPED.test(trimmed) ? trimmed.replaceAll(",", "") : trimmed;
  if (!DECIMAL.test(digits)) return refuse(spec, quote(trimmed));
  const value = Number(digits);
  const isWithin = (spec.low === null || value >= spec.low) && (spec.high === null || value <= spec.high);
  const isRightKind = spec.kind === "number" ? Number.isFinite(value) : Number.isSafeInteger(value);
  // `+ 0` makes a negative zero plain.
  return isWithin && isRightKind ? { value: value + 0 } : refuse(spec, shorten(trimmed));
}

/** @param {TunableSpec} spec @param {string} given */
function refuse(spec, given) {
  return { error: `${spec.name} must be ${boundsOf(spec)}, not ${given}` };
}

/** @param {string} text */
function quote(text) {
  return text === "" ? "empty" : shorten(`'${text}'`);
}

/** @param {string} text */
function shorten(text) {
  return text.length <= LONGEST_QUOTE ? text : `${text.slice(0, LONGEST_QUOTE - 1)}…`;
}
