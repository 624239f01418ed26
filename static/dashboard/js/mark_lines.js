/** What there is to read about the versions that a marker stands for, in the few lines that a tooltip has room for. */
import { labelOf } from "./markers.js";

/** @typedef {{number: number, author: string, changes: string[], reason?: string}} Telling of one version; a line each
 * change */

/**
 * Everything where it fits; otherwise a line a version, and of too many versions the last. A single version's last
 * changes are left out.
 *
 * @param {Telling[]} tellings oldest first
 * @param {number} mostLines
 * @returns {string[]}
 */
export function linesAbout(tellings, mostLines) {
  const whole = tellings.flatMap(wholeOf);
  if (whole.length <= mostLines) return whole;
  if (tellings.length === 1) {
    const shown = whole.slice(0, mostLines - 1);
    return [...shown, `and ${whole.length - shown.length} more`];
  }
  const brief = tellings.map(briefOf);
  if (brief.length <= mostLines) return brief;
  const all = labelOf(tellings[0].number, tellings[tellings.length - 1].number);
  return [`${all}, the last of them:`, ...brief.slice(1 - mostLines)];
}

/** @param {Telling} telling */
export function wholeOf({ number, author, changes, reason = "" }) {
  return [`version ${number}${author ? ` by ${author}` : ""}`, ...changes, ...(reason ? [`“${reason}”`] : [])];
}

/** @param {Telling} telling */
function briefOf({ number, changes }) {
  return `v${number}  ${changes.length === 1 ? changes[0] : `${changes.length} changes`}`;
}
