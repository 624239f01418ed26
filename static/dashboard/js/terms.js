/**
 * What a change is to be stored with: a guardrail and a canary, as their fields say.
 *
 * @typedef {import("./types.js").Terms} Terms
 */
import { find, setText, show } from "./dom.js";

/**
 * @typedef {object} Typed
 * @property {boolean} guarded
 * @property {string} metric
 * @property {string} bound
 * @property {string} window
 * @property {string} watch
 * @property {boolean} canary
 * @property {string} engine that tries the change; empty where none may be chosen
 */

/**
 * The terms, or an error that names the field that is no number. Bounds are the server's to check.
 *
 * @param {Typed} typed
 * @returns {{terms: Terms} | {error: string, field: "bound" | "window" | "watch"}}
 */
export function readTerms({ guarded, metric, bound, window, watch, canary, engine }) {
  /** @type {Terms} */
  const terms = canary ? { canary: true, ...(engine ? { canary_engine: engine } : {}) } : {};
  if (!guarded) return { terms };
  for (const [field, text] of /** @type {const} */ ([["bound", bound], ["window", window], ["watch", watch]])) {
    if (text.trim() === "" || !Number.isFinite(Number(text)))
      return { error: `guardrail ${field} must be a number, not ${text.trim() === "" ? "empty" : `'${text}'`}`, field };
  }
  const guardrail = { metric, bound: Number(bound), window_seconds: Number(window), watch_seconds: Number(watch) };
  return { terms: { ...terms, guardrail } };
}

/**
 * @param {HTMLElement | null} root null where the user may not change anything
 * @returns {{read: () => Terms | null, reset: () => void}} `read` gives null where a field is wrong, which then is said
 */
export function createTerms(root) {
  if (root === null) return { read: () => ({}), reset: () => undefined };
  const problem = find(root, "#terms-error");
  const field = (/** @type {string} */ name) =>
    /** @type {HTMLInputElement | null} */ (root.querySelector(`[name="${name}"]`));

  root.addEventListener("input", () => show(problem, false));

  return {
    read() {
      const text = (/** @type {string} */ name) => field(name)?.value ?? "";
      const found = readTerms({
        guarded: field("guardrail")?.checked ?? false,
        metric: text("metric"),
        bound: text("bound"),
        window: text("window"),
        watch: text("watch"),
        canary: field("canary")?.checked ?? false,
        engine: text("canary_engine"),
      });
      if ("terms" in found) return found.terms;
      setText(problem, found.error);
      show(problem, true);
      field(found.field)?.focus();
      return null;
    },
    reset() {
      for (const name of ["guardrail", "canary"]) {
        const box = field(name);
        if (box !== null) box.checked = false;
      }
    },
  };
}
