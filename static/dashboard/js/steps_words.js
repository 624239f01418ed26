/**
 * Steps in words: for the tip under the pointer, for the selected step, and for those who hear the picture.
 *
 * @typedef {import("./steps_rows.js").Row} Row
 * @typedef {import("./steps_rows.js").Sequence} Sequence
 * @typedef {import("./steps_layout.js").Column} Column
 *
 * @typedef {object} Member one line about a sequence in a step
 * @property {Sequence} sequence
 * @property {string} kind of the legend, for its sign
 * @property {string} words
 * @property {number | null} tokens null where none were computed
 */
import { count, milliseconds, tokens as tokenWords } from "./format.js";
import { DECODE, ENDED, HELD, IDLE, KIND_BITS, PADDED, PREEMPTED, PREFILL, WAITING } from "./steps_layout.js";
import { PHASES, shortName } from "./steps_rows.js";

const CELLS = new Map([
  [WAITING, "waiting"],
  [PREFILL, "prefill"],
  [DECODE, "decode"],
  [HELD, "running, nothing computed"],
  [PREEMPTED, "preempted"],
  [IDLE, "idle place of a static batch"],
]);
const SHARE_WORTH_TELLING = 0.01;

/** `Step 1,234` or what a hole is. @param {Column} column */
export function titleOf({ row, missing }) {
  return row === null ? `${count(missing)} ${missing === 1 ? "step" : "steps"} lost` : `Step ${count(row.step)}`;
}

/** What the step computed: `8 decode, 128 prefill tokens, 3 waiting`. @param {Row} row */
export function workOf(row) {
  const numDecode = row.parts.filter(({ kind }) => kind === "decode").length;
  const numPrefill = row.parts.filter(({ kind }) => kind === "prefill").length;
  const numPreempted = row.parts.filter(({ kind }) => kind === "preempted").length;
  const words = [];
  if (row.failed) words.push("failed");
  if (numDecode > 0) words.push(`${count(numDecode)} decode`);
  if (numPrefill > 0) words.push(`${count(numPrefill)} prefill (${tokenWords(row.prefillTokens)})`);
  if (numPreempted > 0) words.push(`${count(numPreempted)} preempted`);
  if (row.ended.length > 0) words.push(`${count(row.ended.length)} finished`);
  if (row.paddedTokens > 0) words.push(`${count(row.paddedTokens)} padded or idle`);
  words.push(`${count(row.numWaiting)} waiting`);
  return words.join(", ");
}

/** Where its time went: `12.3 ms: forward 10.1 ms, sample 1.2 ms`. @param {Row} row */
export function timeOf(row) {
  const phases = PHASES.map((phase, index) => ({ phase, ms: row.phasesMs[index] }))
    .filter(({ ms }) => ms > SHARE_WORTH_TELLING * row.totalMs)
    .sort((one, other) => other.ms - one.ms)
    .map(({ phase, ms }) => `${phase} ${milliseconds(ms)}`);
  return [milliseconds(row.totalMs), phases.join(", ")].filter((words) => words !== "").join(": ");
}

/**
 * What a lane shows: `1f3a9c: prefill, 128 tokens, finished`; empty where it shows nothing.
 *
 * @param {Column} column
 * @param {number} lane
 */
export function cellWords({ row, cells, sequences }, lane) {
  const cell = cells[lane];
  const sequence = sequences[lane];
  if (row === null || cell === 0) return "";
  const tokens = row.parts.find((part) => part.sequence === sequence)?.tokens ?? 0;
  const words = [CELLS.get(cell & KIND_BITS) ?? "", tokens > 0 ? tokenWords(tokens) : ""];
  if (cell & PADDED) words.push("padded to the longest");
  if (cell & ENDED) words.push("finished");
  const told = words.filter((word) => word !== "").join(", ");
  return sequence === null ? told : `${shortName(sequence)}: ${told}`;
}

/** All that a screen reader is told of a selected step. @param {Column} column @param {number} lane */
export function spoken(column, lane) {
  const { row } = column;
  if (row === null) return titleOf(column);
  const cell = cellWords(column, lane);
  const about = `${titleOf(column)}, ${milliseconds(row.totalMs)}, ${workOf(row)}`;
  return cell === "" ? about : `${about}. Lane ${lane + 1}: ${cell}`;
}

/** Everyone in a step or waiting as it ended, as the picture has them. @param {Row} row @returns {Member[]} */
export function membersOf({ parts, ended, waiting }) {
  const gone = new Set(ended);
  const told = new Set(parts.map(({ sequence }) => sequence));
  return [
    ...parts.map(({ sequence, kind, tokens }) => ({
      sequence,
      kind,
      words: gone.has(sequence) ? `${kind}, then finished` : kind,
      tokens: kind === "preempted" ? null : tokens,
    })),
    ...ended
      .filter((sequence) => !told.has(sequence))
      .map((sequence) => ({ sequence, kind: "finished", words: "finished before it", tokens: null })),
    ...waiting
      .filter((sequence) => !told.has(sequence))
      .map((sequence) => ({ sequence, kind: "waiting", words: "waiting", tokens: null })),
  ];
}
