/**
 * The change that an operator prepares with the levers, from the first edit to the engines' word that it is in force.
 *
 * idle → editing → sending → stored → applied; a refusal leads back to editing. `unknown`: the answer was lost, and
 * the versions will tell whether the change was stored. Pure functions; nothing that was typed is lost by a frame, a
 * lost socket or another operator's change.
 *
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValue} TunableValue
 * @typedef {import("./types.js").TunableValues} TunableValues
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 */
import { compare, hasEdits, NO_EDITS, withdrawn } from "./edits.js";

/** @typedef {"idle" | "editing" | "sending" | "unknown" | "stored" | "applied"} Phase */
/** @typedef {{number: number, values: TunableValues}} Base */

/**
 * @typedef {object} Proposal
 * @property {Phase} phase
 * @property {Base | null} base the version that the edits change: the newest at the first of them
 * @property {Readonly<Record<string, string>>} texts as typed, by lever: what an edited lever shows
 * @property {Readonly<TunableValues>} changes valid values that differ from the base's
 * @property {Readonly<Record<string, string>>} errors by lever
 * @property {string} reason
 * @property {{newer: VersionInfo[]} | null} conflict what others stored after the base, newest first
 * @property {{code: string, message: string, param: string | null} | null} refusal the server's, until the next edit
 * @property {string | null} notice one line for the operator, until the next edit
 * @property {VersionInfo | null} stored what became of the change
 * @property {number} appliedOn engines that ran it when all of them did
 * @property {number | null} commandId
 * @property {Sent | null} sent kept until it is known what became of it
 */
/** @typedef {{changes: TunableValues, texts: Record<string, string>, reason: string, basedOn: number}} Sent */
/** @typedef {{texts: Readonly<Record<string, string>>, reason: string, basedOn: number}} Kept what outlives the page */

/** @type {Proposal} */
export const NO_PROPOSAL = Object.freeze({
  phase: "idle",
  base: null,
  ...NO_EDITS,
  reason: "",
  conflict: null,
  refusal: null,
  notice: null,
  stored: null,
  appliedOn: 0,
  commandId: null,
  sent: null,
});

/**
 * A lever was moved, or typed into.
 *
 * @param {Proposal} proposal
 * @param {{spec: TunableSpec, text: string, newest: Base}} edit `newest` is the newest stored version
 * @returns {Proposal}
 */
export function propose(proposal, { spec, text, newest }) {
  const begun = isEditing(proposal) || isUnanswered(proposal) ? proposal : { ...proposal, base: newest, stored: null };
  const base = begun.base ?? newest;
  const edits = compare({ ...begun, texts: { ...begun.texts, [spec.name]: text } }, [spec], base.values);
  const next = settled({ ...begun, ...edits, base, refusal: null, notice: null });
  // A number passes its old value while it is typed; a choice that is back at it was taken back.
  return spec.kind === "choice" ? withoutIdleReason(next) : next;
}

/**
 * Takes one lever's edit back; with the last of them, the reason that was meant for it.
 *
 * @param {Proposal} proposal
 * @param {string} name
 * @returns {Proposal}
 */
export function withdraw(proposal, name) {
  return withoutIdleReason(settled({ ...proposal, ...withdrawn(proposal, name), refusal: null, notice: null }));
}

/**
 * @param {Proposal} proposal
 * @param {string} reason
 * @returns {Proposal}
 */
export function setReason(proposal, reason) {
  return { ...proposal, reason };
}

/**
 * Takes all edits back; a change that was sent and not answered stays watched.
 *
 * @param {Proposal} proposal
 * @returns {Proposal}
 */
export function discard(proposal) {
  if (!isUnanswered(proposal)) return NO_PROPOSAL;
  return { ...proposal, ...NO_EDITS, reason: "", conflict: null };
}

/**
 * The edits on top of the newest version that is in conflict with them; those that it has made already drop out.
 *
 * @param {Proposal} proposal
 * @param {TunableSpec[]} specs
 * @returns {Proposal}
 */
export function rebase(proposal, specs) {
  if (proposal.conflict === null) return proposal;
  const { number, values } = proposal.conflict.newer[0];
  const base = { number, values };
  const edited = specs.filter((spec) => spec.name in proposal.texts);
  const edits = compare(proposal, edited, values);
  return withoutIdleReason(settled({ ...proposal, ...edits, base, conflict: null, refusal: null, notice: null }));
}

/**
 * A proposal as a page that is gone left it. Where its base is no longer known, the oldest known version takes its
 * place, so that what came since stands against it. What makes no sense here leaves `proposal` as it is.
 *
 * @param {Proposal} proposal
 * @param {Kept} kept
 * @param {{versions: VersionInfo[], specs: TunableSpec[]}} known newest first
 * @returns {Proposal}
 */
export function restore(proposal, { texts, reason, basedOn }, { versions, specs }) {
  const base = versions.find(({ number }) => number <= basedOn) ?? versions.at(-1);
  const edited = specs.filter(({ name }) => name in texts);
  if (hasEdits(proposal) || base === undefined || basedOn > versions[0].number || edited.length === 0) return proposal;
  const own = Object.fromEntries(edited.map(({ name }) => [name, texts[name]]));
  const { number, values } = base;
  const edits = compare({ ...NO_EDITS, texts: own }, edited, values);
  return settled({ ...NO_PROPOSAL, ...edits, base: { number, values }, reason: hasEdits(edits) ? reason : "" });
}

/**
 * Whether there is something to send, and nothing that forbids it.
 *
 * @param {Proposal} proposal
 * @returns {boolean}
 */
export function canSend(proposal) {
  const hasChanges = Object.keys(proposal.changes).length > 0;
  const hasErrors = Object.keys(proposal.errors).length > 0;
  return proposal.phase === "editing" && hasChanges && !hasErrors && proposal.conflict === null;
}

/**
 * What Apply would do, a line a lever, in the order of `specs` or of the edits.
 *
 * @param {Proposal} proposal
 * @param {TunableSpec[]} [specs]
 * @returns {{name: string, from: TunableValue, to: TunableValue}[]}
 */
export function changesOf({ changes, base }, specs) {
  const names = specs ? specs.map((spec) => spec.name).filter((name) => name in changes) : Object.keys(changes);
  return names.map((name) => ({ name, from: base?.values[name] ?? "", to: changes[name] }));
}

/**
 * The edits went out as the command `id`. Those made from now on are not part of it.
 *
 * @param {Proposal} proposal
 * @param {number} id
 * @returns {Proposal}
 */
export function markSent(proposal, id) {
  if (proposal.base === null) return proposal;
  const { changes, texts, reason, base } = proposal;
  const sent = { changes, texts, reason, basedOn: base.number };
  return { ...proposal, phase: "sending", commandId: id, sent, refusal: null, notice: null };
}

/** @param {Proposal} proposal */
function isEditing(proposal) {
  return proposal.phase === "editing";
}

/**
 * Whether a change is on its way, its outcome not known.
 *
 * @param {Proposal} proposal
 * @returns {boolean}
 */
export function isUnanswered(proposal) {
  return proposal.phase === "sending" || proposal.phase === "unknown";
}

/** A reason for nothing would stick to the next change. @param {Proposal} proposal @returns {Proposal} */
function withoutIdleReason(proposal) {
  return hasEdits(proposal) || isUnanswered(proposal) ? proposal : { ...proposal, reason: "" };
}

/**
 * The phase that follows from the edits, where no answer is awaited. Without an edit there is nothing to conflict with.
 *
 * @param {Proposal} proposal
 * @returns {Proposal}
 */
export function settled(proposal) {
  if (isUnanswered(proposal)) return proposal;
  if (hasEdits(proposal)) return { ...proposal, phase: "editing" };
  const phase = proposal.stored === null ? "idle" : proposal.phase === "applied" ? "applied" : "stored";
  return { ...proposal, phase, base: null, conflict: null, commandId: null };
}
