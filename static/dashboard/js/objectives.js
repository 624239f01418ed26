/**
 * The objectives over time: an operator changes them, so their line has steps. Pure.
 *
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./ring.js").Series} Series
 *
 * @typedef {{from: number, to: number, seconds: number}} Objective what was to be kept in a stretch (unix seconds)
 */

/**
 * @param {Series} inForce the version by time
 * @param {{name: string, step: number, known: VersionInfo[]}} what `name` is a tunable in milliseconds
 * @returns {Objective[]} oldest first; nothing where no version, or none that is known, was in force
 */
export function objectivesOf({ x, y }, { name, step, known }) {
  const values = new Map(known.map(({ number, values }) => [number, values[name]]));
  /** @type {Objective[]} */
  const found = [];
  for (let index = 0; index < x.length; index += 1) {
    const value = values.get(y[index]);
    if (typeof value !== "number") continue;
    const last = found[found.length - 1];
    const seconds = value / 1000;
    if (last !== undefined && last.seconds === seconds && x[index] - last.to <= step) last.to = x[index];
    else found.push({ from: last !== undefined && x[index] - last.to <= step ? last.to : x[index], to: x[index], seconds });
  }
  return found;
}

/**
 * What was to be kept at a moment; null where that is not known.
 *
 * @param {Objective[]} objectives
 * @param {number | null} second the latest where null
 */
export function objectiveAt(objectives, second) {
  const found =
    second === null ? objectives.at(-1) : objectives.find(({ from, to }) => from <= second && second <= to + 1);
  return found?.seconds ?? null;
}
