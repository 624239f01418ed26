/** One request's waterfall: pointing at a bar, or moving through time by the arrow keys, tells what it is. */
import { byId, setText } from "./dom.js";

/**
 * The bar that a key leads to from `chosen` (none: -1), or null where the key means nothing here.
 *
 * @param {string} key
 * @param {{chosen: number, count: number}} bars
 * @returns {number | null}
 */
export function moved(key, { chosen, count }) {
  const last = count - 1;
  switch (key) {
    case "ArrowRight":
      return Math.min(last, chosen + 1);
    case "ArrowLeft":
      return chosen < 0 ? last : Math.max(0, chosen - 1);
    case "Home":
      return Math.min(0, last);
    case "End":
      return last;
    case "Escape":
      return -1;
    default:
      return null;
  }
}

function start() {
  const figure = byId("waterfall");
  const lanes = /** @type {HTMLElement} */ (figure.querySelector(".lanes"));
  const said = byId("waterfall-said");
  const summary = said.textContent ?? "";
  const bars = /** @type {SVGElement[]} */ ([...figure.querySelectorAll(".segment")]);
  bars.sort((one, other) => Number(one.dataset.index) - Number(other.dataset.index));
  const rows = byId("spans").querySelectorAll("tbody tr");
  let chosen = -1;

  /** @param {number} index */
  const choose = (index) => {
    bars[chosen]?.classList.remove("is-chosen");
    rows[chosen]?.classList.remove("is-chosen");
    chosen = index;
    bars[chosen]?.classList.add("is-chosen");
    rows[chosen]?.classList.add("is-chosen");
    setText(said, bars[chosen]?.dataset.words ?? summary);
  };

  lanes.tabIndex = 0;
  lanes.setAttribute("aria-label", `${lanes.getAttribute("aria-label")}; the arrow keys go through it`);
  lanes.addEventListener("keydown", (event) => {
    const next = moved(event.key, { chosen, count: bars.length });
    if (next === null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(next);
  });
  lanes.addEventListener("focusout", () => choose(-1));
  for (const bar of bars) bar.addEventListener("pointerenter", () => choose(bars.indexOf(bar)));
  lanes.addEventListener("pointerleave", () => choose(-1));
}

if (globalThis.document) start();
