/**
 * What if?, beside a change that is not applied yet: the server simulates it, and its figures are shown here.
 *
 * @typedef {import("../../state.js").State} State
 * @typedef {import("../../types.js").TunableValues} TunableValues
 * @typedef {import("../../types.js").Timers} Timers
 *
 * @typedef {{url: string, part_url: string}} Ordered
 */
import { currentToken } from "../../csrf.js";
import { create, find, setText, show } from "../../dom.js";
import { readPart } from "../../parts.js";

const EVERY_MS = 500;
const OUTDATED = "Of a change as it was before: ask again.";

/**
 * Asks for one prediction at a time, and shows each as it stands until it is over. What is answered to an earlier
 * question is not shown.
 *
 * @param {object} parts
 * @param {(changes: Readonly<TunableValues>) => Promise<Ordered>} parts.order rejects with the server's words
 * @param {(url: string) => Promise<{part: Element, isOver: boolean}>} parts.read
 * @param {Shown} parts.shown
 * @param {Timers} [parts.timers]
 *
 * @typedef {object} Shown
 * @property {(text: string) => void} problem
 * @property {(text: string, url?: string) => void} status
 * @property {(part: Element | null) => void} part
 */
export function createWhatIf({ order, read, shown, timers = globalThis }) {
  let question = 0;
  let asked = "";
  let answered = "";
  let now = "";

  /** @param {Readonly<TunableValues>} changes */
  async function ask(changes) {
    const own = ++question;
    asked = now = JSON.stringify(changes);
    answered = "";
    shown.problem("");
    shown.part(null);
    shown.status("It is ordered…");
    try {
      const ordered = await order(changes);
      if (own === question) await look(own, ordered);
    } catch (error) {
      if (own !== question) return;
      shown.status("");
      shown.problem(error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {number} own @param {Ordered} ordered */
  async function look(own, { url, part_url: partUrl }) {
    const { part, isOver } = await read(partUrl);
    if (own !== question) return;
    shown.part(part);
    if (!isOver) {
      shown.status("It is simulated…", url);
      await new Promise((resolve) => timers.setTimeout(() => resolve(undefined), EVERY_MS));
      if (own === question) await look(own, { url, part_url: partUrl });
      return;
    }
    answered = url;
    tell();
  }

  function tell() {
    if (answered !== "") shown.status(now === asked ? "Predicted; nothing is changed yet." : OUTDATED, answered);
  }

  return {
    ask,
    /** @param {Pick<State, "proposal">} state */
    render({ proposal: { changes } }) {
      const key = JSON.stringify(changes);
      if (key === now) return;
      now = key;
      tell();
    },
  };
}

/**
 * The part of the Tuning page; it does nothing where the user may not ask.
 *
 * @param {HTMLElement | null} root
 * @param {{getState: () => State}} parts
 * @returns {{render: (state: State) => void}}
 */
export function openWhatIf(root, { getState }) {
  if (root === null) return { render: () => undefined };
  const { url = "", pool = "" } = root.dataset;
  const workload = /** @type {HTMLSelectElement} */ (find(root, "#what-if-workload"));
  const whatIf = createWhatIf({
    order: (changes) => orderAt(url, { pool, workload: workload.value, changes }),
    read: readPrediction,
    shown: showIn(root),
  });
  find(root, "#what-if-ask").addEventListener("click", () => {
    const { changes, errors } = getState().proposal;
    const wrong = Object.keys(errors);
    if (wrong.length > 0) showIn(root).problem(`To be corrected first: ${wrong.join(", ")}.`);
    else void whatIf.ask(changes);
  });
  return whatIf;
}

/** @param {HTMLElement} root @returns {Shown} */
function showIn(root) {
  const [problem, answer, status, place] = ["problem", "answer", "status", "part"].map((name) =>
    find(root, `#what-if-${name}`),
  );
  return {
    problem(text) {
      setText(problem, text);
      show(problem, text !== "");
    },
    status(text, url) {
      status.replaceChildren(text, ...(url ? [" ", create("a", { href: url, text: "Its page" })] : []));
      show(answer, text !== "");
    },
    part: (part) => place.replaceChildren(...(part === null ? [] : [document.adoptNode(part)])),
  };
}

/** @param {string} url */
async function readPrediction(url) {
  const part = /** @type {HTMLElement} */ (find(await readPart(url), "#prediction"));
  return { part, isOver: part.dataset["over"] === "true" };
}

/**
 * @param {string} url
 * @param {{pool: string, workload: string, changes: Readonly<TunableValues>}} question
 * @returns {Promise<Ordered>}
 */
async function orderAt(url, { pool, workload, changes }) {
  const body = new URLSearchParams({ pool, workload });
  for (const [name, value] of Object.entries(changes)) body.set(`set.${name}`, String(value));
  const drawn = /** @type {HTMLInputElement | null} */ (document.querySelector("[name=csrfmiddlewaretoken]"));
  const headers = { Accept: "application/json", "X-CSRFToken": currentToken(drawn?.value ?? "") };
  const response = await fetch(url, { method: "POST", body, headers, redirect: "error" }).catch(() => null);
  if (response === null) throw new Error("The server does not answer, or you are signed out: nothing was ordered.");
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new Error(answer?.error?.message ?? `The server answers with status ${response.status}.`);
}
