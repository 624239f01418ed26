/** The button that sends sample traffic: while any is sent, how much longer, and a button that stops it. */
import { find, setText, show } from "./dom.js";

const LOOK_MS = 2000;
const LOOK_AGAIN_MS = 5000;
const ADVICE = "Short chats, six at a time, for half a minute.";

/** @typedef {{author?: string, seconds_left?: number}} Sent */

/**
 * @param {Sent} sent what the server says
 * @returns {string}
 */
export function inWords({ author, seconds_left: left }) {
  return left === undefined ? ADVICE : `${author} sends sample traffic, for ${Math.ceil(left)} more s.`;
}

/** @param {HTMLFormElement} form */
function follow(form) {
  const [start, stop] = ["start", "stop"].map((value) => find(form, `[value="${value}"]`));
  const words = find(form, "[data-sample-state]");
  const state = form.dataset.sample ?? "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  async function look() {
    clearTimeout(timer);
    const sent = await read(state);
    // What was told last stays until the server says otherwise.
    if (sent === null) return lookIn(LOOK_AGAIN_MS);
    const isSent = sent.seconds_left !== undefined;
    show(start, !isSent);
    show(stop, isSent);
    setText(words, inWords(sent));
    // Somebody else may begin at any moment, but nobody needs to know at once.
    if (isSent) lookIn(LOOK_MS);
  }

  /** @param {number} ms */
  function lookIn(ms) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(look, ms);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void look();
  });
  void look();
}

/**
 * @param {string} address
 * @param {typeof globalThis.fetch} [fetch]
 * @returns {Promise<Sent | null>} null where the server does not say
 */
export async function read(address, fetch = globalThis.fetch) {
  try {
    const response = await fetch(address, { headers: { Accept: "application/json" } });
    return response.ok && !response.redirected ? await response.json() : null;
  } catch {
    return null;
  }
}

if (globalThis.document) {
  for (const form of document.querySelectorAll("form[data-sample]")) follow(/** @type {HTMLFormElement} */ (form));
}
