/**
 * The Live page's word for a version that one engine tries.
 *
 * @typedef {import("./state.js").State} State
 */
import { setText, show } from "./dom.js";
import { duration } from "./format.js";
import { shown } from "./selectors.js";

/**
 * @param {HTMLElement} notice
 * @param {HTMLElement} words
 * @returns {{render: (state: State) => void}}
 */
export function createTrialNotice(notice, words) {
  return {
    render(state) {
      const text = trialInWords(state);
      show(notice, text !== "");
      if (text !== "") setText(words, text);
    },
  };
}

/** Empty where nothing is tried. @param {State} state @returns {string} */
export function trialInWords(state) {
  const view = shown(state);
  const trial = view.frame?.trial;
  if (!trial) return "";
  // By the server's clock, as the trial's beginning is.
  const at = view.ring?.newestSeconds ?? state.now / 1000;
  const minutes = Math.floor((at - trial.since) / 60);
  const lasted = minutes < 1 ? "since just now" : `for ${minutes < 60 ? `${minutes} m` : duration(60 * minutes)}`;
  return `Version ${trial.version} is tried on ${trial.engine_id} alone ${lasted}; the other engines run what is in force.`;
}
