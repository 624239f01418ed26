/**
 * What stands around the picture: the connection, the figures of what is seen, the engines, and the buttons.
 *
 * @typedef {import("./steps_link.js").Known} Known
 * @typedef {import("./steps_ring.js").StepsRing} StepsRing
 * @typedef {import("./steps_rows.js").Row} Row
 * @typedef {import("./steps_view.js").View} View
 */
import { byId, create, find, setData, setText, show } from "./dom.js";
import { compact, count, duration, milliseconds, percent } from "./format.js";
import { percentileOf, wasteOf } from "./steps_stats.js";
import { seen, WIDTHS } from "./steps_view.js";

const QUIET_MS = 3000;
const NO_ENGINE = "No engine of this pool runs.";
const NO_STEPS = "Nothing has run yet, or not for a quarter of an hour.";
const SPOKEN = {
  connecting: "Connecting",
  live: "Live",
  paused: "Paused",
  lost: "Connection lost: the picture is stale",
  signed_out: "Signed out",
  refused: "Connection refused",
};

/**
 * @param {HTMLElement} root
 * @param {{onRetry: () => void, onPause: () => void, onZoom: (by: number) => void}} actions
 */
export function createHead(root, { onRetry, onPause, onZoom }) {
  const [badge, badgeText, retry] = [byId("badge"), byId("badge-text"), byId("retry")];
  const pause = byId("pause");
  const wider = /** @type {HTMLButtonElement} */ (byId("wider"));
  const narrower = /** @type {HTMLButtonElement} */ (byId("narrower"));
  const figures = byId("figures");
  let spoken = "";
  let shownEngines = "";
  let figuresOf = "";

  pause.addEventListener("click", onPause);
  wider.addEventListener("click", () => onZoom(1));
  narrower.addEventListener("click", () => onZoom(-1));
  // Whoever is signed out is led to the sign-in, and from there back to this page.
  retry.addEventListener("click", () => (spoken === "signed_out" ? location.reload() : onRetry()));

  /** @param {Known} known @param {View} view */
  function renderStatus(known, view) {
    const kind = kindOf(known, view);
    setData(badge, "state", kind);
    setText(badgeText, wordsOf(kind, known));
    show(retry, kind === "lost" || kind === "signed_out");
    setText(retry, kind === "signed_out" ? "Sign in" : "Retry now");
    setData(root, "stale", String(kind !== "live" && kind !== "paused"));
    if (kind !== spoken) setText(byId("announcer"), SPOKEN[kind]);
    spoken = kind;
  }

  /** @param {Known} known */
  function renderNotes({ ring, hasHistory, hasGone, engine }) {
    const isEmpty = ring === null || ring.end === ring.first;
    show(byId("picture-none"), isEmpty && (hasHistory || engine === null));
    setText(find(byId("picture-none"), "p"), engine === null ? NO_ENGINE : NO_STEPS);
    show(byId("engine-gone"), hasGone);
    const lost = ring === null ? 0 : ring.numMissing;
    show(byId("lost"), lost > 0);
    setText(byId("lost"), `${count(lost)} ${lost === 1 ? "step" : "steps"} lost on the way here`);
    byId("lost").title = `The engine itself had to drop ${count(ring?.numDropped)} since its start`;
  }

  /** @param {Known} known */
  function renderEngines({ engines, engine }) {
    const key = [engine, ...engines.map(({ engine_id: id }) => id)].join();
    if (key === shownEngines) return;
    shownEngines = key;
    const nav = byId("engines");
    const isAmbiguous = new Set(engines.map(({ name }) => name)).size < engines.length;
    show(nav, engines.length > 1);
    nav.replaceChildren(
      ...engines.map(({ engine_id: id, name }) => {
        const link = create("a", { href: `?engine=${encodeURIComponent(id)}`, text: isAmbiguous ? id : name });
        if (id === engine) link.setAttribute("aria-current", "true");
        return link;
      }),
    );
  }

  /** @param {StepsRing} ring @param {View} view */
  function renderFigures(ring, view) {
    const { from, to } = seen(view, ring);
    const key = `${from},${to},${ring.lastStep}`;
    if (key === figuresOf) return;
    figuresOf = key;
    const rows = [];
    for (let number = from; number < to; number += 1) {
      const row = ring.at(number)?.row;
      if (row) rows.push(row);
    }
    for (const [name, value] of Object.entries(figuresFrom(rows))) {
      const element = find(figures, `[data-figure="${name}"]`);
      show(element, value !== "");
      setText(find(element, "dd"), value);
    }
  }

  return {
    /** @param {Known} known @param {View} view */
    render(known, view) {
      renderStatus(known, view);
      renderNotes(known);
      renderEngines(known);
      setText(pause, view.right === null ? "Pause" : "To newest");
      setText(byId("zoom"), `${view.columnWidth} px`);
      narrower.disabled = view.columnWidth === WIDTHS[0];
      wider.disabled = view.columnWidth === WIDTHS[WIDTHS.length - 1];
      if (known.ring !== null) renderFigures(known.ring, view);
    },
  };
}

/** What the steps in sight come to. @param {Row[]} rows @returns {Record<string, string>} */
export function figuresFrom(rows) {
  if (rows.length === 0) return { steps: "–", time: "–", batch: "–", rate: "–", waste: "" };
  const times = rows.map(({ totalMs }) => totalMs).sort((one, other) => one - other);
  const totalMs = times.reduce((sum, ms) => sum + ms, 0);
  const sizes = rows.map(({ parts }) => parts.length);
  const meanSize = sizes.reduce((sum, size) => sum + size, 0) / sizes.length;
  const generated = rows.reduce((sum, { decodeTokens }) => sum + decodeTokens, 0);
  const waste = wasteOf(rows);
  return {
    steps: count(rows.length),
    time: `${milliseconds(percentileOf(times, 50))}, p95 ${milliseconds(percentileOf(times, 95))}`,
    batch: `${meanSize.toFixed(1)}, up to ${count(Math.max(...sizes))}`,
    rate: totalMs > 0 ? `${compact((1000 * generated) / totalMs)}/s` : "–",
    waste: waste === null ? "" : `${percent(waste.ratio)} of all places`,
  };
}

/** @param {Known} known @param {View} view @returns {keyof typeof SPOKEN} */
function kindOf({ socket, hasHistory, engine }, view) {
  const { state, attempt } = socket;
  if (state === "signed_out" || state === "refused") return state;
  if (state === "lost" || (state === "connecting" && attempt > 0)) return "lost";
  if (state === "connecting" || (!hasHistory && engine !== null)) return "connecting";
  return view.right === null ? "live" : "paused";
}

/** @param {keyof typeof SPOKEN} kind @param {Known} known */
function wordsOf(kind, { socket, steppedAt }) {
  const now = Date.now();
  if (kind === "lost") {
    const seconds = socket.retryAt === null ? 0 : Math.ceil((socket.retryAt - now) / 1000);
    return seconds > 0 ? `reconnecting in ${seconds} s` : "reconnecting";
  }
  if (kind === "signed_out") return "signed out";
  if (kind === "refused") return socket.code === 4404 ? "pool not configured" : "not allowed";
  if (kind !== "live" || steppedAt === null || now - steppedAt < QUIET_MS) return kind;
  return `live, no step for ${duration((now - steppedAt) / 1000)}`;
}
