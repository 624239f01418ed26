/**
 * Where a change of the tunables took effect, as the points tell it.
 *
 * @typedef {import("./ring.js").Series} Series
 */

/**
 * `at` is the second (unix) from which every engine ran `version`. `first` is the earliest version that took effect in
 * it: versions are numbered without gaps, and two may come within one second.
 *
 * @typedef {{at: number, first: number, version: number}} Marker
 */

/**
 * The changes from `since` on, oldest first. The version is unknown while no engine lives: coming back with the same one
 * is no change. Nor is the first known version, since nobody can tell when it began.
 *
 * @param {Series} inForce the version by time
 * @param {{since?: number}} [range]
 * @returns {Marker[]}
 */
export function markersOf({ x, y }, { since = -Infinity } = {}) {
  /** @type {Marker[]} */
  const markers = [];
  let known = NaN;
  for (let index = 0; index < y.length; index += 1) {
    const version = y[index];
    if (Number.isNaN(version) || version === known) continue;
    if (!Number.isNaN(known) && x[index] >= since)
      markers.push({ at: x[index], first: Math.min(known + 1, version), version });
    known = version;
  }
  return markers;
}

/**
 * `v4`, or `v4–v7`.
 *
 * @param {number} first
 * @param {number} last
 * @returns {string}
 */
export function labelOf(first, last) {
  return first === last ? `v${last}` : `v${first}–v${last}`;
}

/**
 * The labels of markers of which some stand too close to be labelled singly: a run of those is labelled as one, over
 * the last of them. Labels are at least `room` apart; null where a marker has none.
 *
 * @param {Pick<Marker, "at" | "first" | "version">[]} markers oldest first
 * @param {number} room in seconds
 * @returns {(string | null)[]}
 */
export function labelsOf(markers, room) {
  /** @type {(string | null)[]} */
  const labels = markers.map(() => null);
  let last = markers.length - 1;
  for (let index = last; index >= 0; index -= 1) {
    const isRunsFirst = index === 0 || markers[last].at - markers[index - 1].at >= room;
    if (!isRunsFirst) continue;
    labels[last] = labelOf(markers[index].first, markers[last].version);
    last = index - 1;
  }
  return labels;
}
