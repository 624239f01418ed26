/**
 * Pause, the window of the percentiles, and how much of the past is shown; the latter two outlive the page in its tab.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 */
import { byId, chosen, setText } from "./dom.js";
import { keep, kept } from "./kept.js";

const KEY = "view";

/**
 * What is chosen: as it was before the page was loaded anew, otherwise as the page has it.
 *
 * @returns {{window: number, spanSeconds: number}}
 */
export function readChoices() {
  const [windows, span] = [byId("window"), byId("span")];
  const earlier = /** @type {{window?: unknown, span?: unknown} | null} */ (kept(KEY));
  check(windows, earlier?.window);
  check(span, earlier?.span);
  return { window: Number(chosen(windows)), spanSeconds: Number(chosen(span)) };
}

/** Nothing changes where there is no such choice (any more). @param {HTMLElement} group @param {unknown} value */
function check(group, value) {
  const inputs = /** @type {NodeListOf<HTMLInputElement>} */ (group.querySelectorAll("input"));
  for (const input of inputs) if (input.value === value) input.checked = true;
}

/**
 * @param {(action: Action) => void} dispatch
 * @returns {{render: (state: State) => void}}
 */
export function createViewControls(dispatch) {
  const pause = byId("pause");
  const windows = byId("window");
  const span = byId("span");
  let isPaused = false;
  pause.addEventListener("click", () => dispatch(isPaused ? { type: "resume" } : { type: "pause", at: Date.now() }));
  windows.addEventListener("change", () => dispatch({ type: "choose_window", index: Number(chosen(windows)) }));
  span.addEventListener("change", () => dispatch({ type: "choose_span", seconds: Number(chosen(span)) }));
  for (const group of [windows, span])
    group.addEventListener("change", () => keep(KEY, { window: chosen(windows), span: chosen(span) }));
  return {
    render({ paused }) {
      isPaused = paused !== null;
      setText(pause, isPaused ? "Resume" : "Pause");
    },
  };
}
