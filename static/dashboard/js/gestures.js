/**
 * What an operator does on a chart: point, drag over a stretch, or the same by keys.
 *
 * @typedef {import("./panel.js").Panel} Panel
 *
 * @typedef {object} Gestures
 * @property {(panel: Panel, unixSeconds: number | null) => void} point
 * @property {(from: number, to: number) => void} select a stretch that was dragged over
 * @property {() => void} back to the present
 * @property {(panel: Panel, key: string, hasShift: boolean) => boolean} press false where the key means nothing
 */
import { find, show } from "./dom.js";

const LEAST_DRAG_PIXELS = 6;

/** @param {Panel} panel @param {Gestures} gestures */
export function watchGestures(panel, { point, select, back, press }) {
  const { body, canvas, view } = panel;
  const selection = find(body, ".selection");
  /** @type {number | null} */
  let began = null;

  /** @param {PointerEvent} event */
  function pixelOf(event) {
    return Math.min(canvas.clientWidth, Math.max(0, event.clientX - canvas.getBoundingClientRect().left));
  }

  /** @param {number} pixel the nearest that there is a time for */
  function timeNear(pixel) {
    return view.timeAt(pixel) ?? view.timeAt(pixel < canvas.clientWidth / 2 ? view.left() : view.right());
  }

  /** @param {number} pixel */
  function mark(pixel) {
    if (began === null) return;
    selection.style.transform = `translateX(${Math.min(began, pixel)}px)`;
    selection.style.width = `${Math.abs(pixel - began)}px`;
    show(selection, Math.abs(pixel - began) >= LEAST_DRAG_PIXELS);
  }

  function cancel() {
    began = null;
    show(selection, false);
  }

  body.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || view.timeAt(pixelOf(event)) === null) return;
    began = pixelOf(event);
    body.setPointerCapture(event.pointerId);
  });
  body.addEventListener("pointermove", (event) => {
    point(panel, view.timeAt(pixelOf(event)));
    mark(pixelOf(event));
  });
  body.addEventListener("pointerup", (event) => {
    const [from, end] = [began, pixelOf(event)];
    cancel();
    if (from === null || Math.abs(end - from) < LEAST_DRAG_PIXELS) return;
    const times = [timeNear(from), timeNear(end)];
    if (times[0] !== null && times[1] !== null) select(times[0], times[1]);
  });
  body.addEventListener("pointercancel", cancel);
  body.addEventListener("pointerleave", () => {
    if (began === null) point(panel, null);
  });
  body.addEventListener("dblclick", back);
  body.addEventListener("blur", () => point(panel, null));
  body.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && began !== null) cancel();
    else if (!press(panel, event.key, event.shiftKey)) return;
    event.preventDefault();
  });
}
