/** The list of requests: what is in flight is read anew, and the log grows at its top while somebody wants it to. */
import { byId, find, setText, show } from "./dom.js";
import { morph } from "./morph.js";
import { readOften, readPart } from "./parts.js";
import { newRows, pausedBy, widthsOf, withParameter } from "./requests_rows.js";

const FRAGMENT = "#tail";

/** Keeps the part about requests in flight as the server has it; neither the focus nor the scrolled place is lost. */
function watchRunning() {
  const part = byId("running");
  const state = byId("running-state");
  readOften(
    async () => {
      const came = await readPart(part.dataset.url ?? "");
      const hadFocus = part.contains(document.activeElement);
      morph(find(part, "#running-body"), find(came, "#running-body"));
      const isLost = hadFocus && !part.contains(document.activeElement);
      if (isLost) /** @type {HTMLElement | null} */ (part.querySelector(".running-scroll"))?.focus({ preventScroll: true });
    },
    { say: (text) => setText(state, text) },
  );
}

/** Lets the log grow at its top while the box is ticked. */
function offerTail() {
  const part = byId("tail");
  if (!part.dataset.tail) return;
  const [box, state, log] = [/** @type {HTMLInputElement} */ (byId("tail-on")), byId("tail-state"), byId("log")];
  const address = part.dataset.url ?? "";
  const mostRows = Number(part.dataset.rows);
  let tail = Number(part.dataset.tail);
  show(part, true);
  box.checked = location.hash === FRAGMENT;
  box.addEventListener("change", () => {
    history.replaceState(history.state, "", box.checked ? FRAGMENT : location.pathname + location.search);
    setText(state, box.checked ? "new requests come in at the top" : "");
  });
  readOften(
    async () => {
      if (!box.checked) return;
      const paused = pausedBy(readerOf(log));
      setText(state, paused || "new requests come in at the top");
      if (paused) return;
      const came = await readPart(withParameter(address, "tail", tail));
      const shown = /** @type {HTMLElement[]} */ ([...log.querySelectorAll("[data-pk]")]);
      const fresh = newRows(/** @type {HTMLElement[]} */ ([...came.querySelectorAll("[data-pk]")]), shown);
      // What was stored meanwhile and is not to be shown is not gone through again.
      tail = Math.max(tail, Number(find(came, "[data-tail]").dataset.tail));
      if (fresh.length) putOnTop(log, fresh, mostRows);
    },
    { say: (text) => text && box.checked && setText(state, text) },
  );
}

/** @param {HTMLElement} log */
function readerOf(log) {
  return {
    isHovered: log.matches(":hover"),
    isFocused: log.contains(document.activeElement),
    isScrolledPast: byId("log-heading").getBoundingClientRect().bottom < 0,
  };
}

/** @param {HTMLElement} log @param {HTMLElement[]} rows @param {number} mostRows */
function putOnTop(log, rows, mostRows) {
  const fresh = rows.map((row) => document.importNode(row, true));
  for (const row of fresh) row.classList.add("is-new");
  log.prepend(...fresh);
  const all = [...log.querySelectorAll("[data-pk]")];
  for (const row of all.slice(mostRows)) row.remove();
  document.getElementById("log-empty")?.remove();
  rescale(log);
}

/** All bars of a column on one scale again. @param {HTMLElement} log */
function rescale(log) {
  const rows = [...log.querySelectorAll("[data-pk]")].map((row) => [...row.querySelectorAll(".interval")]);
  for (let column = 0; column < (rows[0]?.length ?? 0); column += 1) {
    const bars = /** @type {SVGElement[]} */ (rows.map((cells) => cells[column]?.querySelector("svg")).filter(Boolean));
    const widths = widthsOf(bars.map((bar) => Number(bar.dataset.seconds)));
    bars.forEach((bar, index) => bar.querySelector("rect")?.setAttribute("width", `${widths[index]}%`));
  }
}

watchRunning();
offerTail();
