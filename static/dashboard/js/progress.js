/**
 * *proposed → stored → applied on k of n*, told to a screen reader as it changes.
 *
 * @typedef {import("./state.js").State} State
 */
import { byId, find, setData, setText, show } from "./dom.js";
import { isUnanswered } from "./proposal.js";
import { enginesApplied } from "./selectors.js";

const NEWS_FOR_MS = 60_000;

/** @returns {{render: (state: State) => boolean}} whether there is progress to show */
export function createProgress() {
  const list = byId("progress");
  const [proposed, stored, applied] = ["proposed", "stored", "applied"].map((step) =>
    find(list, `[data-step="${step}"]`),
  );
  const spoken = byId("proposal-status");
  /** @type {{number: number, at: number} | null} */
  let done = null;

  /** An applied change is news for a while. @param {State} state */
  function isOld({ proposal: { phase, stored: version }, now }) {
    if (phase !== "applied" || version === null) return false;
    if (done?.number !== version.number) done = { number: version.number, at: now };
    return now - done.at > NEWS_FOR_MS;
  }

  return {
    render(state) {
      const { phase, stored: version } = state.proposal;
      const isSent = isUnanswered(state.proposal);
      const isShown = isSent || ((phase === "stored" || phase === "applied") && !isOld(state));
      show(list, isShown);
      setData(proposed, "done", "true");
      setData(stored, "done", isSent ? "now" : "true");
      setText(stored, isSent || version === null ? "storing" : `stored as version ${version.number}`);
      show(applied, !isSent);
      setData(applied, "done", phase === "applied" ? "true" : "now");
      setText(applied, appliedWords(state));
      setText(spoken, !isShown ? "" : isSent ? "Storing" : `${stored.textContent}, ${applied.textContent}`);
      return isShown;
    },
  };
}

/**
 * On how many engines the change runs. What was applied stays so, whatever becomes of the engines; what one of them
 * tries waits for nobody.
 *
 * @param {State} state
 * @returns {string}
 */
export function appliedWords(state) {
  const { phase, stored, appliedOn } = state.proposal;
  const trial = state.frame?.trial;
  if (trial && trial.version === stored?.number) return `tried on ${trial.engine_id} alone until it is taken to all, or back`;
  const { applied, total } =
    phase === "applied" ? { applied: appliedOn, total: appliedOn } : enginesApplied(state, stored?.number ?? null);
  if (total === 0) return "no engine runs";
  return `applied on ${applied} of ${total} ${total === 1 ? "engine" : "engines"}`;
}
