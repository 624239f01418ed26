/**
 * What keys do on a chart. Pure.
 *
 * @typedef {import("./view.js").Stretch} Stretch
 *
 * @typedef {{kind: "point", second: number}
 *   | {kind: "look_at", stretch: Stretch}
 *   | {kind: "leave"}} Deed `leave`: the crosshair, or else the stretch
 */
import { moved, zoomed } from "./view.js";

const STEPS_ACROSS = 60;
const PAN_SHARE = 0.25;
const ZOOM_FACTOR = 0.5;

/**
 * Arrows move the crosshair, with Shift the stretch; + and - show less and more; Home and End go to its ends.
 *
 * @param {string} key
 * @param {object} present
 * @param {boolean} present.hasShift
 * @param {number | null} present.second where the crosshair is
 * @param {Stretch} present.stretch
 * @param {number} present.step seconds from place to place
 * @param {number} present.newest the latest that there is to see
 * @returns {Deed | null} null where the key means nothing
 */
export function deedOf(key, { hasShift, second, stretch, step, newest }) {
  const { from, to } = stretch;
  const at = second ?? to;
  const direction = key === "ArrowLeft" ? -1 : 1;
  switch (key) {
    case "ArrowLeft":
    case "ArrowRight": {
      if (hasShift) return { kind: "look_at", stretch: moved(stretch, { share: direction * PAN_SHARE, newest }) };
      const stride = step * Math.max(1, Math.round((to - from) / STEPS_ACROSS / step));
      return { kind: "point", second: Math.min(to, Math.max(from, at + direction * stride)) };
    }
    case "Home":
      return { kind: "point", second: from };
    case "End":
      return { kind: "point", second: to };
    case "+":
    case "=":
      return { kind: "look_at", stretch: zoomed(stretch, { factor: ZOOM_FACTOR, about: at, newest }) };
    case "-":
    case "_":
      return { kind: "look_at", stretch: zoomed(stretch, { factor: 1 / ZOOM_FACTOR, about: at, newest }) };
    case "Escape":
      return { kind: "leave" };
    default:
      return null;
  }
}
