/**
 * A step or a request that the page's address points at: `#step=1234`, `#request=req_…`. Pure.
 *
 * @typedef {import("./steps_ring.js").StepsRing} StepsRing
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {{step: number} | {request: string}} Place
 */

/** What an address points at; null where it points at nothing. @param {string} hash @returns {Place | null} */
export function placeIn(hash) {
  const [, name, value = ""] = /^#(step|request)=([\w-]{1,100})$/.exec(hash) ?? [];
  if (name === "request") return { request: value };
  return name === "step" && /^\d{1,15}$/.test(value) ? { step: Number(value) } : null;
}

/** The address of a step, and that of no step. @param {number | null} step */
export function hashOf(step) {
  return step === null ? "" : `#step=${step}`;
}

/**
 * The first column of it, and its lane where it has one; null where it is not there, or no longer.
 *
 * @param {Pick<StepsRing, "at" | "first" | "end">} ring
 * @param {Place} place
 * @returns {{column: number, lane: number} | null}
 */
export function find(ring, place) {
  for (let number = ring.first; number < ring.end; number += 1) {
    const column = /** @type {Column} */ (ring.at(number));
    if ("step" in place) {
      if (column.row?.step === place.step) return { column: number, lane: 0 };
      continue;
    }
    const part = column.row?.parts.find(({ sequence }) => sequence.requestId === place.request);
    if (part) return { column: number, lane: Math.max(0, column.sequences.indexOf(part.sequence)) };
  }
  return null;
}
