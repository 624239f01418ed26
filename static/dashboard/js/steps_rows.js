/**
 * Steps as the server sends them, read into rows: pure, and the same whichever fields come in which order.
 *
 * @typedef {{requestId: string, choice: number}} SequenceName
 *
 * @typedef {object} Sequence one choice of a request, the same object in all rows
 * @property {string} requestId
 * @property {number} choice
 * @property {number} lane the row of the picture that it has now, -1 where it has none
 * @property {"new" | "waiting" | "running" | "preempted"} state as of the last row
 *
 * @typedef {object} Part what a sequence was in a step for
 * @property {Sequence} sequence
 * @property {"prefill" | "decode" | "preempted"} kind
 * @property {number} tokens
 *
 * @typedef {object} Row one step; times in milliseconds, `at` in unix seconds
 * @property {number} step
 * @property {number} at
 * @property {number} totalMs
 * @property {number[]} phasesMs in the order of `PHASES`
 * @property {number} prefillTokens
 * @property {number} decodeTokens
 * @property {number} paddedTokens
 * @property {number} budget
 * @property {number} numRunning
 * @property {number} numWaiting
 * @property {number} version of the tunables
 * @property {boolean} isStatic
 * @property {boolean} failed
 * @property {Part[]} parts
 * @property {Sequence[]} ended
 * @property {Sequence[]} waiting
 *
 * @typedef {{sequences: [string, number][], rows: any[][], num_dropped: number}} Batch
 */

export const PHASES = /** @type {const} */ (["schedule", "prepare", "forward", "sample", "update"]);
const KINDS = /** @type {const} */ (["prefill", "decode", "preempted"]);
const MOST_KNOWN = 4096;

/**
 * Reads batches; a sequence that several name is one object. `fields` are what each place of a row means.
 *
 * @param {readonly string[]} fields
 */
export function createRowReader(fields) {
  /** @type {Map<string, Sequence>} */
  let known = new Map();
  /** @type {Map<string, Sequence>} */
  let before = new Map();
  const places = Object.fromEntries(fields.map((field, place) => [field, place]));

  /** @param {[string, number]} name @returns {Sequence} */
  function sequenceOf([requestId, choice]) {
    const key = `${requestId} ${choice}`;
    const sequence = known.get(key) ?? before.get(key) ?? newSequence(requestId, choice);
    known.set(key, sequence);
    return sequence;
  }

  /** @param {any[]} row @param {Sequence[]} sequences @returns {Row} */
  function rowOf(row, sequences) {
    const value = (/** @type {string} */ field) => row[places[field]];
    const listed = (/** @type {string} */ field) => value(field).map((/** @type {number} */ place) => sequences[place]);
    return {
      step: value("step"),
      at: value("unix_seconds"),
      totalMs: value("total_ms"),
      phasesMs: PHASES.map((phase) => value(`${phase}_ms`)),
      prefillTokens: value("num_prefill_tokens"),
      decodeTokens: value("num_decode_tokens"),
      paddedTokens: value("num_padded_tokens"),
      budget: value("max_batch_tokens"),
      numRunning: value("num_running"),
      numWaiting: value("num_waiting"),
      version: value("tunables_version"),
      isStatic: value("is_static"),
      failed: value("failed"),
      parts: [
        ...listed("decoding").map((/** @type {Sequence} */ sequence) => ({ sequence, kind: "decode", tokens: 1 })),
        ...partsOf(value("others"), sequences),
      ],
      ended: listed("ended"),
      waiting: listed("waiting"),
    };
  }

  return {
    /** @param {Batch} batch @returns {Row[]} */
    read({ sequences: names, rows }) {
      // What was not named for as long as it takes to name so many others is forgotten.
      if (known.size > MOST_KNOWN) {
        before = known;
        known = new Map();
      }
      const sequences = names.map(sequenceOf);
      return rows.map((row) => rowOf(row, sequences));
    },
  };
}

/** @param {string} requestId @param {number} choice @returns {Sequence} */
function newSequence(requestId, choice) {
  return { requestId, choice, lane: -1, state: "new" };
}

/** @param {number[]} triples @param {Sequence[]} sequences @returns {Part[]} */
function partsOf(triples, sequences) {
  const parts = [];
  for (let at = 0; at < triples.length; at += 3) {
    parts.push({ sequence: sequences[triples[at]], kind: KINDS[triples[at + 1]], tokens: triples[at + 2] });
  }
  return parts;
}

/** How a sequence is called where room is short: `1f3a9c`, `1f3a9c·2` @param {SequenceName} sequence */
export function shortName({ requestId, choice }) {
  const [, digits = requestId, rest = ""] = /^req_([0-9a-f]{6})[0-9a-f]*(-\d+)?$/.exec(requestId) ?? [];
  return `${digits.slice(0, 12)}${rest}${choice === 0 ? "" : `·${choice}`}`;
}
