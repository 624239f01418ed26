/**
 * Where a change of the tunables took effect, as the points tell it.
 *
 * @typedef {import("./ring.js").Ring} Ring
 * @typedef {import("./ring.js").Range} Range
 */

/** `at` is the second (unix) from which every engine ran `version`. @typedef {{at: number, version: number}} Marker */

/**
 * The changes within `range`, oldest first. The version is unknown while no engine lives: coming back with the same one
 * is no change. Nor is the first known version, since nobody can tell when it began.
 *
 * @param {Ring} ring
 * @param {Range} [range]
 * @returns {Marker[]}
 */
export function markersOf(ring, { since = -Infinity, until } = {}) {
  const { x, y } = ring.series("tunables_version", { until });
  /** @type {Marker[]} */
  const markers = [];
  let known = NaN;
  for (let index = 0; index < y.length; index += 1) {
    const version = y[index];
    if (Number.isNaN(version) || version === known) continue;
    if (!Number.isNaN(known) && x[index] >= since) markers.push({ at: x[index], version });
    known = version;
  }
  return markers;
}
