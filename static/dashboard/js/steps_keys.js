/**
 * What keys and wheel do to the view. Pure.
 *
 * @typedef {import("./steps_view.js").View} View
 * @typedef {import("./steps_view.js").Kept} Kept
 */
import { following, room, scrolledBy, selectedIn, selecting, stopped, zoomed } from "./steps_view.js";

const MANY = 10;
const LINE_PIXELS = 16;

/**
 * The view after a key; null for a key that means nothing here.
 *
 * @param {Pick<KeyboardEvent, "key" | "shiftKey">} event
 * @param {View} view
 * @param {{ring: Kept, numLanes: number}} known
 * @returns {View | null}
 */
export function actOfKey({ key, shiftKey }, view, { ring, numLanes }) {
  const at = selectedIn(view, ring);
  const step = shiftKey ? MANY : 1;
  // Where nothing is selected yet, the first key selects the newest.
  const by = (/** @type {number} */ columns) => selecting(view, at === null ? ring.end - 1 : at + columns, ring);
  switch (key) {
    case "ArrowLeft":
      return by(-step);
    case "ArrowRight":
      return by(step);
    case "PageUp":
      return by(-room(view));
    case "PageDown":
      return by(room(view));
    case "Home":
      return selecting(view, ring.first, ring);
    case "End":
      return selecting(view, ring.end - 1, ring);
    case "ArrowUp":
      return { ...by(0), lane: Math.max(0, view.lane - step) };
    case "ArrowDown":
      return { ...by(0), lane: Math.min(numLanes - 1, view.lane + step) };
    case "+":
    case "=":
      return zoomed(view, 1, ring);
    case "-":
      return zoomed(view, -1, ring);
    case " ":
      return view.right === null ? stopped(view, ring) : following(view);
    case "Escape":
      return following(view);
    default:
      return null;
  }
}

/**
 * The view after the wheel; null where it changes nothing, as at either end. With Ctrl it zooms, as a pinch does.
 *
 * @param {Pick<WheelEvent, "deltaX" | "deltaY" | "deltaMode" | "ctrlKey">} event
 * @param {View} view
 * @param {{ring: Kept, x: number}} known
 * @returns {View | null}
 */
export function actOfWheel({ deltaX, deltaY, deltaMode, ctrlKey }, view, { ring, x }) {
  const delta = (Math.abs(deltaX) > Math.abs(deltaY) ? deltaX : deltaY) * (deltaMode === 0 ? 1 : LINE_PIXELS);
  if (delta === 0) return null;
  const away = Math.sign(delta) * Math.max(1, Math.abs(delta) / view.columnWidth);
  const next = ctrlKey ? zoomed(view, -Math.sign(delta), ring, x) : scrolledBy(view, away, ring);
  return next.right === view.right && next.columnWidth === view.columnWidth ? null : next;
}
