/**
 * What becomes of a proposal that was sent, and of one that others overtake. Pure, as `proposal.js`, whose second half
 * this is.
 *
 * @typedef {import("./types.js").EngineSnapshot} EngineSnapshot
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./types.js").Stored} Stored
 * @typedef {import("./types.js").Refused} Refused
 * @typedef {import("./proposal.js").Proposal} Proposal
 * @typedef {import("./proposal.js").Sent} Sent
 */
import { compare, NO_EDITS } from "./edits.js";
import { isUnanswered, settled } from "./proposal.js";

const NOT_SENT = "Not connected: the change was not sent.";
const NO_ANSWER = "No answer came: whether the change was stored shows when the connection is back.";
const NOT_STORED = "The connection was lost before the change was stored. Nothing was applied.";
const UNKNOWABLE = "The connection was lost, and too many versions came since to tell whether the change was stored.";

/**
 * The server's `stored`. Edits made since the change was sent stay, on top of the new version.
 *
 * @param {Proposal} proposal
 * @param {Pick<Stored, "id" | "version">} answer
 * @param {TunableSpec[]} specs
 * @returns {Proposal}
 */
export function acceptStored(proposal, { id, version }, specs) {
  if (proposal.sent === null || proposal.commandId !== id) return proposal;
  return takeOver(proposal, proposal.sent, version, specs);
}

/**
 * The server's `refused`: back to the edits, all of them, with what stands against them. A server that failed may have
 * stored the change before it did.
 *
 * @param {Proposal} proposal
 * @param {Pick<Refused, "id" | "code" | "message" | "param" | "newer">} answer
 * @returns {Proposal}
 */
export function acceptRefused(proposal, { id, code, message, param, newer }) {
  if (proposal.sent === null || proposal.commandId !== id) return proposal;
  const back = settled({
    ...proposal,
    phase: "editing",
    refusal: { code, message, param },
    notice: null,
    commandId: null,
    sent: code === "internal_error" ? proposal.sent : null,
  });
  return withConflict(back, newer);
}

/**
 * No answer will come, or none came in time.
 *
 * @param {Proposal} proposal
 * @param {{id: number, wasSent: boolean}} loss
 * @returns {Proposal}
 */
export function loseAnswer(proposal, { id, wasSent }) {
  if (proposal.phase !== "sending" || proposal.commandId !== id) return proposal;
  if (wasSent) return { ...proposal, phase: "unknown", notice: NO_ANSWER };
  return settled({ ...proposal, phase: "editing", notice: NOT_SENT, commandId: null, sent: null });
}

/**
 * The versions that are stored. `isComplete` says that they were read anew, so that what is not among them was not
 * stored when they were read.
 *
 * A change whose answer is awaited or lost is recognised by its number (the server stores it only as the one after that
 * which it is based on), author and content, even when it turns up after its operator was told that it was not stored.
 *
 * @param {Proposal} proposal
 * @param {{versions: VersionInfo[], user: string, specs: TunableSpec[], isComplete: boolean}} known newest first
 * @returns {Proposal}
 */
export function observeVersions(proposal, { versions, user, specs, isComplete }) {
  const found = findSent(proposal, versions, user);
  if (found !== null && proposal.sent !== null) {
    return withConflict(takeOver(proposal, proposal.sent, found, specs), versions);
  }
  if (proposal.phase === "unknown" && isComplete) {
    const notice = isBeyond(proposal.sent, versions) ? UNKNOWABLE : NOT_STORED;
    return withConflict(settled({ ...proposal, phase: "editing", notice }), versions);
  }
  if (proposal.phase === "editing") return withConflict(proposal, versions);
  if (isUnanswered(proposal)) return proposal;
  const hasTexts = Object.keys(proposal.texts).length > 0;
  return forgetOvertaken(hasTexts ? { ...proposal, texts: {} } : proposal, versions);
}

/**
 * What the engines run: a stored change is applied once all of them run it, or a later one.
 *
 * @param {Proposal} proposal
 * @param {EngineSnapshot[]} engines
 * @returns {Proposal}
 */
export function observeEngines(proposal, engines) {
  const { phase, stored } = proposal;
  if (phase !== "stored" || stored === null || engines.length === 0) return proposal;
  const isApplied = engines.every((engine) => engine.tunables_version >= stored.number);
  return isApplied ? { ...proposal, phase: "applied", appliedOn: engines.length } : proposal;
}

/**
 * An applied change is no news once a later version came.
 *
 * @param {Proposal} proposal
 * @param {VersionInfo[]} versions
 */
function forgetOvertaken(proposal, versions) {
  const { phase, stored } = proposal;
  const isOvertaken = phase === "applied" && stored !== null && versions.some(({ number }) => number > stored.number);
  return isOvertaken ? settled({ ...proposal, phase: "idle", stored: null }) : proposal;
}

/**
 * @param {Proposal} proposal
 * @param {Sent} sent
 * @param {VersionInfo} version what it became
 * @param {TunableSpec[]} specs
 * @returns {Proposal}
 */
function takeOver(proposal, sent, version, specs) {
  const { number, values } = version;
  const since = specs.filter(({ name }) => name in proposal.texts && proposal.texts[name] !== sent.texts[name]);
  const texts = Object.fromEntries(since.map(({ name }) => [name, proposal.texts[name]]));
  return settled({
    ...proposal,
    ...compare({ ...NO_EDITS, texts }, since, values),
    phase: "stored",
    base: { number, values },
    reason: proposal.reason === sent.reason ? "" : proposal.reason,
    stored: version,
    conflict: null,
    refusal: null,
    notice: null,
    commandId: null,
    sent: null,
  });
}

/**
 * @param {Proposal} proposal
 * @param {VersionInfo[]} versions
 * @returns {Proposal}
 */
function withConflict(proposal, versions) {
  const { phase, base, conflict } = proposal;
  if (phase !== "editing" || base === null) return proposal;
  const newer = versions.filter((version) => version.number > base.number);
  if (newer.length === 0) return proposal;
  if (conflict !== null && conflict.newer[0].number >= newer[0].number) return proposal;
  return { ...proposal, conflict: { newer } };
}

/** @param {Proposal} proposal @param {VersionInfo[]} versions @param {string} user @returns {VersionInfo | null} */
function findSent({ sent }, versions, user) {
  if (sent === null) return null;
  const next = versions.find((version) => version.number === sent.basedOn + 1);
  return next !== undefined && next.author === user && isSameChange(sent, next) ? next : null;
}

/** @param {Sent} sent @param {VersionInfo} version */
function isSameChange({ changes }, version) {
  const names = Object.keys(changes);
  if (names.length !== Object.keys(version.changes).length) return false;
  return names.every((name) => version.changes[name]?.[1] === changes[name]);
}

/**
 * Whether the list begins after the place where the change would be.
 *
 * @param {Sent | null} sent
 * @param {VersionInfo[]} versions
 */
function isBeyond(sent, versions) {
  const oldest = versions.at(-1);
  return sent !== null && oldest !== undefined && oldest.number > sent.basedOn + 1;
}
