/**
 * Pause, the window of the percentiles, and how much of the past is shown.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 */
import { byId, chosen, setText, show } from "./dom.js";
import { duration } from "./format.js";

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
  return {
    render({ paused, hello }) {
      isPaused = paused !== null;
      setText(pause, isPaused ? "Resume" : "Pause");
      pause.setAttribute("aria-pressed", String(isPaused));
      if (hello) nameWindows(windows, hello.windows_seconds);
    },
  };
}

/** The server says which windows there are. @param {HTMLElement} windows @param {number[]} windowsSeconds */
function nameWindows(windows, windowsSeconds) {
  windows.querySelectorAll("label").forEach((label, index) => {
    const seconds = windowsSeconds[index];
    show(label, seconds !== undefined);
    if (seconds !== undefined && label.lastElementChild)
      setText(label.lastElementChild, duration(seconds).replace(" 00 s", ""));
  });
}
