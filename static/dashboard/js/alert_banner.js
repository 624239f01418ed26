/** What every page says of alerts that go on: asked for now and then while the page is in sight. */
import { create, find, show } from "./dom.js";

const EVERY_MS = 5000;
const MOST_SHOWN = 3;

/** @typedef {{name: string, pool: string, text: string}} Alert */

/**
 * What the banner says: at most three alerts, and how many more there are.
 *
 * @param {Alert[]} alerts
 * @returns {string[]}
 */
export function linesOf(alerts) {
  const lines = alerts.slice(0, MOST_SHOWN).map(({ name, pool, text }) => `${name} (${pool}): ${text}`);
  return alerts.length > MOST_SHOWN ? [...lines, `and ${alerts.length - MOST_SHOWN} more`] : lines;
}

/**
 * Nothing is drawn anew where nothing changed: a screen reader is told of changes alone. What was told last stays,
 * marked so, while nobody knows (null).
 *
 * @param {HTMLElement} banner
 * @returns {(alerts: Alert[] | null) => void}
 */
export function createBanner(banner) {
  const list = find(banner, "ul");
  const stale = create("span", { className: "stale", text: "not up to date", hidden: true });
  list.after(stale);
  let told = "";
  return (alerts) => {
    show(stale, alerts === null);
    if (alerts === null) return;
    const lines = linesOf(alerts);
    if (lines.join("\n") === told) return;
    told = lines.join("\n");
    list.replaceChildren(...lines.map((text) => create("li", { text })));
    show(banner, lines.length > 0);
  };
}

/** @param {HTMLElement} banner */
function watch(banner) {
  const render = createBanner(banner);
  const ask = async () => {
    if (document.visibilityState !== "visible") return;
    try {
      const answer = await fetch(banner.dataset.url ?? "", { headers: { accept: "application/json" } });
      // Who is signed out is sent to another page, and without Redis nobody knows.
      const { alerts } = answer.ok && !answer.redirected ? await answer.json() : { alerts: null };
      render(alerts);
    } catch {
      render(null); // The server is away: the next time tells.
    }
  };
  ask();
  setInterval(ask, EVERY_MS);
  document.addEventListener("visibilitychange", ask);
}

const banner = globalThis.document?.getElementById("alert-banner");
if (banner) watch(banner);
