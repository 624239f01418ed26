/**
 * Where each sequence is drawn: every one has a lane from when it is first seen to its end, and lanes are used again.
 * Pure: rows in, columns out, one after the other.
 *
 * @typedef {import("./steps_rows.js").Row} Row
 * @typedef {import("./steps_rows.js").Part} Part
 * @typedef {import("./steps_rows.js").Sequence} Sequence
 *
 * @typedef {object} Column one step, or a hole of `missing` steps whose records were lost
 * @property {Row | null} row null for a hole
 * @property {number} missing
 * @property {Uint8Array} cells what each lane shows, a kind and perhaps flags
 * @property {(Sequence | null)[]} sequences whose lane it is; null also where a place is kept idle
 * @property {number} numHidden sequences that found no lane
 */

export const NUM_LANES = 64;

export const NOTHING = 0;
export const WAITING = 1;
export const PREFILL = 2;
export const DECODE = 3;
/** It runs, and no token of it was computed in this step. */
export const HELD = 4;
export const PREEMPTED = 5;
/** A place of a static batch that stays empty until the batch has run to its end. */
export const IDLE = 6;
/** Flag: it ended with this step. */
export const ENDED = 8;
/** Flag: a rectangular batch would have padded it to the longest. */
export const PADDED = 16;
export const KIND_BITS = 7;

const KIND_OF = { prefill: PREFILL, decode: DECODE, preempted: PREEMPTED };

export function createLayout({ numLanes = NUM_LANES } = {}) {
  /** Who has each lane, null where it is free. @type {(Sequence | null)[]} */
  const lanes = new Array(numLanes).fill(null);
  /** Lanes of a static batch whose sequence ended before it. @type {Set<number>} */
  const idle = new Set();
  let lastStep = 0;
  let inStaticBatch = false;

  /** @param {Sequence} sequence */
  function release(sequence) {
    if (sequence.lane >= 0 && lanes[sequence.lane] === sequence) lanes[sequence.lane] = null;
    sequence.lane = -1;
    sequence.state = "new";
  }

  /**
   * A lane for it, whether or not there is one; runners may take that of one that only waits.
   *
   * @param {Sequence} sequence
   * @param {boolean} runs
   */
  function settle(sequence, runs) {
    if (sequence.lane >= 0) return;
    let lane = lanes.findIndex((holder, index) => holder === null && !idle.has(index));
    if (lane < 0 && runs) lane = lastPlace(lanes, (holder) => holder?.state === "waiting");
    if (lane < 0) return;
    const holder = lanes[lane];
    if (holder !== null) release(holder);
    lanes[lane] = sequence;
    sequence.lane = lane;
  }

  /** @param {Row} row @returns {Column} */
  function place(row) {
    noteStaticBatch(row);
    const cells = new Uint8Array(numLanes);
    let numHidden = 0;
    /** @param {Sequence} sequence @param {number} cell */
    const draw = (sequence, cell) => {
      if (sequence.lane < 0) numHidden += 1;
      else cells[sequence.lane] = cell;
    };
    // Contexts are padded as the batch forms; while it decodes, places are idle.
    const longest = inStaticBatch && row.decodeTokens === 0 ? Math.max(0, ...row.parts.map(prefillTokens)) : 0;
    for (const { sequence, kind, tokens } of row.parts) {
      settle(sequence, true);
      const isPadded = row.paddedTokens > 0 && kind === "prefill" && tokens < longest;
      draw(sequence, KIND_OF[kind] | (isPadded ? PADDED : 0));
      sequence.state = kind === "preempted" ? "preempted" : "running";
    }
    const drawn = new Set(row.parts.map(({ sequence }) => sequence));
    for (const sequence of row.waiting) {
      if (drawn.has(sequence)) continue;
      drawn.add(sequence);
      settle(sequence, false);
      draw(sequence, WAITING);
      if (sequence.state === "new") sequence.state = "waiting";
    }
    for (const sequence of lanes) {
      if (sequence === null || drawn.has(sequence)) continue;
      if (sequence.state === "running") cells[sequence.lane] = HELD;
      else if (sequence.state === "preempted") cells[sequence.lane] = WAITING;
      else if (!row.ended.includes(sequence)) release(sequence);
    }
    if (inStaticBatch && row.paddedTokens > 0 && row.decodeTokens > 0) {
      for (const lane of idle) if (cells[lane] === NOTHING) cells[lane] = IDLE;
    }
    for (const sequence of row.ended) if (sequence.lane >= 0) cells[sequence.lane] |= ENDED;
    const column = { row, missing: 0, cells, sequences: [...lanes], numHidden };
    for (const sequence of row.ended) {
      if (inStaticBatch && sequence.state === "running" && sequence.lane >= 0) idle.add(sequence.lane);
      release(sequence);
    }
    return column;
  }

  /** A batch begins where nobody ran before, and ends where its last sequence has. @param {Row} row */
  function noteStaticBatch(row) {
    const isOver = !lanes.some((holder) => holder?.state === "running" || holder?.state === "preempted");
    if (!row.isStatic || isOver) idle.clear();
    inStaticBatch = row.isStatic;
  }

  /**
   * What was lost between: whoever is not seen after it may have ended in it.
   *
   * @param {number} missing
   * @param {Row} next
   * @returns {Column}
   */
  function hole(missing, next) {
    const seen = new Set([...next.parts.map(({ sequence }) => sequence), ...next.waiting]);
    for (const sequence of lanes) if (sequence !== null && !seen.has(sequence)) release(sequence);
    idle.clear();
    return {
      row: null,
      missing,
      cells: new Uint8Array(numLanes),
      sequences: new Array(numLanes).fill(null),
      numHidden: 0,
    };
  }

  return {
    /** The columns that a row adds: none for a step that was there already. @param {Row} row @returns {Column[]} */
    add(row) {
      if (row.step <= lastStep) return [];
      const missing = lastStep === 0 ? 0 : row.step - lastStep - 1;
      lastStep = row.step;
      return missing > 0 ? [hole(missing, row), place(row)] : [place(row)];
    },
    get lastStep() {
      return lastStep;
    },
  };
}

/**
 * The last place whose value is wanted, -1 where there is none.
 *
 * @template Value
 * @param {ArrayLike<Value>} values
 * @param {(value: Value) => boolean} isWanted
 */
export function lastPlace(values, isWanted) {
  for (let place = values.length - 1; place >= 0; place -= 1) if (isWanted(values[place])) return place;
  return -1;
}

/** @param {Part} part */
function prefillTokens({ kind, tokens }) {
  return kind === "prefill" ? tokens : 0;
}
