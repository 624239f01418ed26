/**
 * What of a proposal fights what else, as the server tells it while the proposal is edited: the rules are there alone.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").TunableValues} TunableValues
 * @typedef {import("./types.js").Timers} Timers
 *
 * @typedef {{fields: string[], message: string}} Conflict
 */
import { create } from "./dom.js";

const PAUSE_MS = 250;

/**
 * @param {object} parts
 * @param {(changes: Readonly<TunableValues>) => Promise<Conflict[]>} parts.ask
 * @param {(conflicts: Conflict[]) => void} parts.show
 * @param {Timers} [parts.timers]
 * @returns {{render: (state: Pick<State, "proposal" | "frame">) => void}}
 */
export function createLeverConflicts({ ask, show, timers = globalThis }) {
  let asked = "";
  /** @type {unknown} */
  let timer = null;

  /** @param {string} key @param {Readonly<TunableValues>} changes */
  async function look(key, changes) {
    let found = /** @type {Conflict[]} */ ([]);
    try {
      found = await ask(changes);
    } catch {
      // Without an answer nothing is known to be wrong; the server checks a change again.
    }
    // An answer to what was typed before says nothing of what is typed now.
    if (key === asked) show(found);
  }

  return {
    render({ proposal: { changes }, frame }) {
      const isEmpty = Object.keys(changes).length === 0;
      // Another version in force may fight, or fight no longer, what was typed before it.
      const key = isEmpty ? "" : JSON.stringify([changes, frame?.announced_version]);
      if (key === asked) return;
      asked = key;
      timers.clearTimeout(timer);
      if (isEmpty) show([]);
      else timer = timers.setTimeout(() => void look(key, changes), PAUSE_MS);
    },
  };
}

/**
 * Shows conflicts in `box`; where there is none, as nothing may be proposed, nowhere.
 *
 * @param {HTMLElement | null} box
 * @returns {(conflicts: Conflict[]) => void}
 */
export function showIn(box) {
  return (conflicts) => {
    const list = conflicts.length === 0 ? [] : [create("ul", { className: "conflicts" }, conflicts.map(itemOf))];
    box?.replaceChildren(...list);
  };
}

/**
 * Asks the server at `url`.
 *
 * @param {string} url
 * @returns {(changes: Readonly<TunableValues>) => Promise<Conflict[]>}
 */
export function askAt(url) {
  return async (changes) => {
    const query = new URLSearchParams(Object.entries(changes).map(([name, value]) => [name, String(value)]));
    const response = await fetch(`${url}?${query}`, { headers: { Accept: "application/json" } });
    if (!response.ok) return [];
    return (await response.json()).conflicts;
  };
}

/** @param {Conflict} conflict */
function itemOf({ fields, message }) {
  const mark = create("span", { className: "conflict-mark", ariaHidden: "true", text: "▲" });
  const names = fields.flatMap((name) => [create("code", { text: name }), " "]);
  return create("li", {}, [mark, " ", message, " ", create("span", { className: "conflict-fields" }, names)]);
}
