/**
 * What an operator proposed outlives a reload, and the way through the sign-in. A tab's own and a pool's own; what
 * cannot be read, or was left by another user, is as if it were not there.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./store.js").Store} Store
 * @typedef {import("./proposal.js").Kept} Kept
 */
import { keep, kept } from "./kept.js";

/**
 * What was kept comes back with the server's first hello: an edit is one of a known value. From then on every change
 * of the proposal is kept.
 *
 * @param {{pool: string, store: Store}} parts
 */
export function keepProposal({ pool, store }) {
  const key = `proposal ${pool}`;
  /** @type {State["proposal"] | null} */
  let last = null;

  store.subscribe((state) => {
    const { hello, proposal } = state;
    if (hello === null || proposal === last) return;
    const isFirst = last === null;
    last = proposal;
    const earlier = isFirst && hello.may_steer ? proposalIn(kept(key), hello.user) : null;
    if (earlier !== null) store.dispatch({ type: "restore", kept: earlier });
    else keep(key, { user: hello.user, ...essence(state) });
  });
}

/** @param {State} state @returns {Kept | {}} */
function essence({ proposal: { texts, reason, base } }) {
  return base === null ? {} : { texts, reason, basedOn: base.number };
}

/** @param {unknown} found @param {string} user @returns {Kept | null} */
function proposalIn(found, user) {
  if (!isRecord(found) || found.user !== user) return null;
  const { texts, reason, basedOn } = found;
  if (!isRecord(texts) || typeof reason !== "string" || !Number.isSafeInteger(basedOn)) return null;
  const readable = Object.entries(texts).filter(([, text]) => typeof text === "string");
  return /** @type {Kept} */ ({ texts: Object.fromEntries(readable), reason, basedOn });
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
