/**
 * What an operator looks at, and what was read for it: the part of `reduce` that is about the view. Pure.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./types.js").PoolEvent} PoolEvent
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 */
import { createPast } from "./past.js";
import { withName } from "./view.js";

const MOST_EVENTS = 500;
const MOST_VERSIONS = 400;

/**
 * @param {State} state
 * @param {Action} action
 * @returns {State | null} null where the action is about something else
 */
export function reduceView(state, action) {
  switch (action.type) {
    case "choose_window":
      return { ...state, window: action.index };
    case "choose_span":
      return { ...state, spanSeconds: action.seconds, stretch: null };
    case "look_at":
      return { ...state, stretch: action.stretch };
    case "fold":
      return { ...state, folded: withName(state.folded, action.group, { isIn: action.isFolded }) };
    case "hide":
      return { ...state, hidden: withName(state.hidden, action.chart, { isIn: action.isHidden }) };
    case "past_read":
      return readPast(state, action);
    case "past_failed":
      return { ...state, pastFailedAt: action.at };
    default:
      return null;
  }
}

/** @param {State} state @param {Extract<Action, {type: "past_read"}>} action @returns {State} */
function readPast(state, { answer, wanted, at }) {
  const { hello } = state;
  if (hello === null) return state;
  const measures = { intervals: hello.interval_names, percentiles: hello.percentiles };
  return {
    ...state,
    past: createPast(answer, { wanted, earlier: state.past, measures, readAt: at }),
    pastFailedAt: null,
    pastVersions: withVersions(state.pastVersions, answer.versions),
    events: withEvents(state.events, answer.events),
  };
}

/**
 * The events known with those that were told of now, newest first; the same array where none is new.
 *
 * @param {PoolEvent[]} known
 * @param {PoolEvent[]} told
 */
export function withEvents(known, told) {
  const ids = new Set(known.map(({ event_id }) => event_id));
  const added = told.filter(({ event_id }) => !ids.has(event_id));
  if (added.length === 0) return known;
  return [...added, ...known].sort((one, other) => other.at - one.at).slice(0, MOST_EVENTS);
}

/** @param {VersionInfo[]} known @param {VersionInfo[]} told */
function withVersions(known, told) {
  const numbers = new Set(told.map(({ number }) => number));
  const all = [...told, ...known.filter(({ number }) => !numbers.has(number))];
  return all.sort((one, other) => other.number - one.number).slice(0, MOST_VERSIONS);
}
