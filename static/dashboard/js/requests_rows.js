/** The log's rows as they come: which are new, how long their bars are, when nobody wants them to move. Pure. */

/** Bars of one column on a scale of their own, in percent. @param {number[]} seconds @returns {number[]} */
export function widthsOf(seconds) {
  const longest = Math.max(0, ...seconds);
  return seconds.map((value) => (longest > 0 ? Math.round((10000 * value) / longest) / 100 : 0));
}

/**
 * Rows that are not shown yet, in their order.
 *
 * @template {{dataset: DOMStringMap}} Row
 * @param {Iterable<Row>} came
 * @param {Iterable<Row>} shown
 * @returns {Row[]}
 */
export function newRows(came, shown) {
  const known = new Set([...shown].map(numberOf));
  return [...came].filter((row) => !known.has(numberOf(row)));
}

/** @param {{dataset: DOMStringMap}} row */
function numberOf(row) {
  return Number(row.dataset.pk);
}

/**
 * Why the log must not move now; empty where it may.
 *
 * @param {{isHovered: boolean, isFocused: boolean, isScrolledPast: boolean}} reader
 * @returns {string}
 */
export function pausedBy({ isHovered, isFocused, isScrolledPast }) {
  if (isScrolledPast) return "paused while you have scrolled down";
  if (isHovered) return "paused while you point at it";
  if (isFocused) return "paused while you are in it";
  return "";
}

/**
 * An address with one more parameter.
 *
 * @param {string} address
 * @param {string} name
 * @param {string | number} value
 */
export function withParameter(address, name, value) {
  return `${address}${address.includes("?") ? "&" : "?"}${name}=${encodeURIComponent(value)}`;
}
