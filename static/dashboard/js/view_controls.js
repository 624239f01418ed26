/**
 * Pause, the window of the percentiles, how much of the past is shown, and the way back to the present. What is chosen
 * stands in the address, so that a view can be shared, and outlives the page in its tab.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./view.js").View} View
 * @typedef {import("./past.js").Wanted} Wanted
 */
import { byId, chosen, setText, show } from "./dom.js";
import { clock, moment } from "./format.js";
import { keep, kept } from "./kept.js";
import { wantedPast } from "./past.js";
import { readView, writeView } from "./view.js";

const KEY = "view";
const DAY_SECONDS = 86_400;

/**
 * What is chosen: as the address has it, otherwise as it was in this tab, otherwise as the page has it.
 *
 * @returns {View}
 */
export function readChoices() {
  const [windows, span] = [byId("window"), byId("span")];
  const offered = { spans: valuesOf(span), numWindows: valuesOf(windows).length };
  const page = {
    window: Number(chosen(windows)),
    spanSeconds: Number(chosen(span)),
    stretch: null,
    folded: [],
    hidden: [],
  };
  const earlier = kept(KEY);
  const view = readView(location.search, readView(typeof earlier === "string" ? earlier : "", page, offered), offered);
  check(windows, view.window);
  check(span, view.spanSeconds);
  return view;
}

/** @param {HTMLElement} group */
function valuesOf(group) {
  return [...group.querySelectorAll("input")].map(({ value }) => Number(value));
}

/** @param {HTMLElement} group @param {number} value */
function check(group, value) {
  for (const input of group.querySelectorAll("input")) input.checked = Number(input.value) === value;
}

/**
 * @param {(action: Action) => void} dispatch
 * @returns {{render: (state: State) => void, remember: (state: State) => void}} `remember` puts the view into the address
 *   at once: a reload may come before the next frame
 */
export function createViewControls(dispatch) {
  const pause = byId("pause");
  const windows = byId("window");
  const span = byId("span");
  const seen = byId("stretch");
  const words = byId("stretch-words");
  const note = byId("past-note");
  const choice = byId("window-choice");
  let isPaused = false;
  pause.addEventListener("click", () => dispatch(isPaused ? { type: "resume" } : { type: "pause", at: Date.now() }));
  windows.addEventListener("change", () => dispatch({ type: "choose_window", index: Number(chosen(windows)) }));
  span.addEventListener("change", () => dispatch({ type: "choose_span", seconds: Number(chosen(span)) }));
  byId("to-present").addEventListener("click", () => {
    dispatch({ type: "look_at", stretch: null });
    pause.focus();
  });
  return {
    render(state) {
      isPaused = state.paused !== null;
      setText(pause, isPaused ? "Resume" : "Pause");
      show(seen, state.stretch !== null);
      if (state.stretch !== null) setText(words, stretchWords(state.stretch));
      const wanted = wantedPast(state);
      show(choice, wanted === null);
      const text = pastWords(state, wanted);
      setText(note, text);
      show(note, text !== "");
    },
    remember: writeAddress,
  };
}

/** Without a new entry in the browser's history: a view is a place on the page. @param {State} state */
function writeAddress(state) {
  const pausedAt = state.paused?.ring?.newestSeconds ?? null;
  const search = writeView({ ...state, pausedAt });
  if (search === location.search) return;
  history.replaceState(history.state, "", `${location.pathname}${search}${location.hash}`);
  keep(KEY, writeView({ ...state, stretch: null, pausedAt: null }));
}

/** @param {State} state @param {Wanted | null} wanted */
function pastWords({ past, pastFailedAt }, wanted) {
  if (wanted === null) return "";
  if (pastFailedAt !== null) return "The past could not be read; trying again.";
  return past?.key === wanted.key ? `Percentiles over ${spanName(past.seconds)} each` : "Reading the past…";
}

/** `10 s`, `1 m`, `1 h` @param {number} seconds a round number of them */
function spanName(seconds) {
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${seconds / 60} m` : `${seconds / 3600} h`;
}

/** @param {{from: number, to: number}} stretch */
function stretchWords({ from, to }) {
  const isOfToday = Date.now() / 1000 - from < DAY_SECONDS;
  const day = isOfToday ? "" : `${moment(new Date(from * 1000).toISOString()).replace(/ \d\d:\d\d$/, "")}, `;
  return `${day}${clock(from)} – ${clock(to)}`;
}
