/** The Fleet pages keep themselves up to date: the server's own rendering, asked for again while somebody looks. */
import { byId, find, setText } from "./dom.js";
import { morph } from "./morph.js";
import { readPart, SignedOut } from "./parts.js";

const EVERY_MS = 3000;
const SILENT = "the server does not answer as it should. Trying again.";

/**
 * @typedef {object} Parts
 * @property {() => Promise<Element>} load the region as the server renders it now
 * @property {() => boolean} isWatched whether anybody can see the page
 * @property {() => boolean} isHeld whether the region must stay as it is, as while text in it is marked
 * @property {(text: string) => void} say tells how the refreshing goes; "" where all is well
 * @property {(region: Element) => void} show
 * @property {() => string} clock the time of day
 */

/**
 * Refreshes once. What goes wrong is said, and the page stays as it was.
 *
 * @param {Parts & {since: string}} parts
 * @returns {Promise<string>} since when the page is as it is
 */
export async function refreshOnce({ load, isWatched, isHeld, say, show, clock, since }) {
  if (!isWatched() || isHeld()) return since;
  try {
    const region = await load();
    if (isHeld()) return since;
    show(region);
    say("");
    return clock();
  } catch (error) {
    const why = error instanceof SignedOut ? "you are signed out. Reload the page to sign in." : SILENT;
    say(`Not refreshed since ${since}: ${why}`);
    return since;
  }
}

function start() {
  const region = byId("refreshed");
  const status = byId("refresh-status");
  const shown = /** @type {Element} */ (region.firstElementChild);
  const clock = () => new Date().toLocaleTimeString();
  let since = clock();
  /** @type {Promise<unknown> | null} */
  let running = null;

  async function refresh() {
    since = await refreshOnce({
      load: async () => find(await readPart(/** @type {string} */ (region.dataset.url)), `#${shown.id}`),
      isWatched: () => !document.hidden,
      isHeld: () => hasSelection(region),
      say: (text) => setText(status, text),
      show: (fresh) => morph(shown, fresh),
      clock,
      since,
    });
  }
  function refreshAlone() {
    running ??= refresh().finally(() => (running = null));
  }
  setInterval(refreshAlone, EVERY_MS);
  document.addEventListener("visibilitychange", refreshAlone);
}

/** @param {Element} region */
function hasSelection(region) {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && region.contains(selection.anchorNode);
}

if (globalThis.document) start();
