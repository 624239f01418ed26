/**
 * Counts of now by name, as bars: who waits by priority, and why requests were refused.
 *
 * @typedef {import("./state.js").State} State
 */
import { create, setText, show } from "./dom.js";
import { count } from "./format.js";
import { refusalsWithin, wantedPast } from "./past.js";
import { shown } from "./selectors.js";
import { stretchShown } from "./source.js";

const MOST_BARS = 6;
const REJECTED = /^rejected:/;

/** @typedef {{name: string, label: string, value: number}} Bar */

/**
 * Who waits, the most urgent first.
 *
 * @param {Record<string, number>} byPriority
 * @returns {Bar[]}
 */
export function priorityBars(byPriority) {
  const named = Object.entries(byPriority).map(([name, value]) => ({
    name,
    label: name === "other" ? "other" : Number(name) < 0 ? `${name} urgent` : name,
    value,
  }));
  const rank = (/** @type {Bar} */ { name }) => (name === "other" ? Infinity : Number(name));
  return cut(named.sort((one, other) => rank(one) - rank(other)));
}

/**
 * Why requests were refused, the commonest first. What was refused before any pool was known says so.
 *
 * @param {Record<string, number>} refusals by code
 * @returns {Bar[]}
 */
export function refusalBars(refusals) {
  const named = Object.entries(refusals).map(([name, value]) => ({
    name,
    label: REJECTED.test(name) ? `${words(name.replace(REJECTED, ""))} (any pool)` : words(name),
    value,
  }));
  return cut(named.sort((one, other) => other.value - one.value || one.name.localeCompare(other.name)));
}

/** @param {string} code */
function words(code) {
  return code.replaceAll("_", " ");
}

/** Those without a count are left out, and the last are one. @param {Bar[]} bars @returns {Bar[]} */
function cut(bars) {
  const counted = bars.filter(({ value }) => value > 0);
  if (counted.length <= MOST_BARS) return counted;
  const rest = counted.slice(MOST_BARS - 1);
  const value = rest.reduce((sum, bar) => sum + bar.value, 0);
  return [...counted.slice(0, MOST_BARS - 1), { name: "…", label: `${rest.length} others`, value }];
}

/**
 * @param {HTMLElement} root
 * @param {(state: State) => Bar[] | null} read null where nothing is known
 * @returns {{render: (state: State) => void}}
 */
function createBars(root, read) {
  const list = /** @type {HTMLElement} */ (root.querySelector("ol"));
  const none = /** @type {HTMLElement} */ (root.querySelector(".chart-none"));
  /** @type {{name: string, label: HTMLElement, fill: HTMLElement, value: HTMLElement, row: HTMLElement}[]} */
  let rows = [];
  return {
    render(state) {
      const bars = read(state);
      show(none, bars !== null && bars.length === 0);
      if ((bars ?? []).map(({ name }) => name).join() !== rows.map(({ name }) => name).join()) {
        rows = (bars ?? []).map(createRow);
        list.replaceChildren(...rows.map(({ row }) => row));
      }
      const largest = Math.max(...(bars ?? []).map(({ value }) => value));
      (bars ?? []).forEach(({ label, value }, index) => {
        setText(rows[index].label, label);
        setText(rows[index].value, count(value));
        rows[index].fill.style.transform = `scaleX(${(value / largest).toFixed(3)})`;
      });
    },
  };
}

/** @param {Bar} bar */
function createRow({ name }) {
  const [label, fill, value] = [create("span"), create("i"), create("b", { className: "num" })];
  const track = create("span", { className: "bar-track", ariaHidden: "true" }, [fill]);
  return { name, label, fill, value, row: create("li", {}, [label, track, value]) };
}

/** @param {HTMLElement} root */
export function createPriorities(root) {
  return createBars(root, (state) => {
    const { frame } = shown(state);
    return frame === null ? null : priorityBars(frame.waiting_by_priority ?? {});
  });
}

/** Of the last minute, or of all that is in view where that lies further back. @param {HTMLElement} root */
export function createRefusals(root) {
  const unit = /** @type {HTMLElement} */ (root.querySelector(".figures"));
  const bars = createBars(root, (state) => {
    const refusals = refusalsOf(state);
    return refusals === null ? null : refusalBars(refusals);
  });
  return {
    /** @param {State} state */
    render(state) {
      setText(unit, wantedPast(state) === null ? "last minute" : "in view");
      bars.render(state);
    },
  };
}

/** @param {State} state @returns {Record<string, number> | null} */
function refusalsOf(state) {
  if (wantedPast(state) === null) return shown(state).frame?.refusals ?? null;
  return state.past === null ? null : refusalsWithin(state.past, stretchShown(state));
}
