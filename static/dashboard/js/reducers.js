/**
 * `reduce(state, action)`: the next state. Pure but for the ring, which is mutable so that a point costs no copy of
 * all others.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./state.js").Connection} Connection
 * @typedef {import("./proposal.js").Proposal} Proposal
 */
import { loseAnswer, observeVersions } from "./answers.js";
import { discard, markSent, propose, rebase, restore, setReason, withdraw } from "./proposal.js";
import { receive } from "./receiving.js";
import { STALE_AFTER_MS } from "./state.js";
import { reduceView } from "./viewing.js";

/**
 * @param {State} state
 * @param {Action} action
 * @returns {State}
 */
export function reduce(state, action) {
  switch (action.type) {
    case "received":
      return receive(state, action.message, action.at);
    case "connection":
      return { ...state, connection: nextConnection(state.connection, action) };
    case "tick":
      return tick(state, action.at);
    case "pause":
      return pause(state, action.at);
    case "resume":
      return state.paused === null ? state : { ...state, paused: null };
    default: {
      const seen = reduceView(state, action);
      if (seen !== null) return seen;
      const proposal = reduceProposal(state, action);
      return proposal === state.proposal ? state : { ...state, proposal };
    }
  }
}

/** @param {State} state @param {Action} action */
function reduceProposal(state, action) {
  const { proposal } = state;
  const specs = state.hello?.tunables ?? [];
  switch (action.type) {
    case "edit": {
      const spec = specs.find(({ name }) => name === action.name);
      const newest = state.versions[0];
      if (spec === undefined || newest === undefined) return proposal;
      const { number, values } = newest;
      return propose(proposal, { spec, text: action.text, newest: { number, values } });
    }
    case "withdraw":
      return withdraw(proposal, action.name);
    case "edit_reason":
      return setReason(proposal, action.text);
    case "discard":
      return discard(proposal);
    case "rebase":
      return rebase(proposal, specs);
    case "restore":
      return seeVersions(state, restore(proposal, action.kept, { versions: state.versions, specs }));
    case "sent":
      return markSent(proposal, action.id);
    case "answer_lost":
      return seeVersions(state, loseAnswer(proposal, action));
    default:
      return proposal;
  }
}

/**
 * What others stored while the answer was awaited, or the page away, stands against the edits now.
 *
 * @param {State} state
 * @param {Proposal} proposal
 */
function seeVersions({ hello, versions }, proposal) {
  if (hello === null) return proposal;
  return observeVersions(proposal, { versions, user: hello.user, specs: hello.tunables, isComplete: false });
}

/**
 * `since` says how long the page has been with or without a server, however often it tried.
 *
 * @param {Connection} current
 * @param {Extract<Action, {type: "connection"}>} action
 * @returns {Connection}
 */
function nextConnection(current, { state, at, attempt, retryAt, code }) {
  const next = state === "open" ? "connecting" : state;
  const isTrying = (/** @type {string} */ name) => name === "connecting" || name === "lost";
  const goesOn = isTrying(next) && isTrying(current.state);
  return { state: next, since: goesOn ? current.since : at, attempt, retryAt, code: code ?? current.code };
}

/** @param {State} state @param {number} at @returns {State} */
function tick(state, at) {
  // A clock that was set back must not keep a dead page looking alive.
  const lastFrameAt = state.lastFrameAt === null ? null : Math.min(state.lastFrameAt, at);
  const isStale = at - (lastFrameAt ?? state.connection.since) > STALE_AFTER_MS;
  const isSameSecond = Math.floor(at / 1000) === Math.floor(state.now / 1000);
  if (isSameSecond && isStale === state.isStale && lastFrameAt === state.lastFrameAt) return state;
  return { ...state, now: at, lastFrameAt, isStale };
}

/** @param {State} state @param {number} at @returns {State} */
function pause(state, at) {
  const { frame, ring, versions, storedVersion, past } = state;
  if (state.paused !== null || ring === null) return state;
  return { ...state, paused: { at, frame, ring: ring.copy(), versions, storedVersion, past } };
}
