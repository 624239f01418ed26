/**
 * The picture on the page: a canvas that is drawn when there is something new, and one above it for what the pointer
 * and the keyboard are on. It changes the view; what is drawn is the ring's.
 *
 * @typedef {import("./steps_ring.js").StepsRing} StepsRing
 * @typedef {import("./steps_view.js").View} View
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_rows.js").Sequence} Sequence
 * @typedef {import("./steps_paint.js").Palette} Palette
 */
import { find, setText, show } from "./dom.js";
import { clock } from "./format.js";
import { createBrush } from "./steps_brush.js";
import { actOfKey, actOfWheel } from "./steps_keys.js";
import { lastPlace, NOTHING, NUM_LANES } from "./steps_layout.js";
import { COLORS, LANES_TOP, laneAt, laneHeight, paint, pictureHeight } from "./steps_paint.js";
import { columnAt, leftOf, scrolledBy, seen, selectedIn, stopped } from "./steps_view.js";
import { cellWords, spoken, timeOf, titleOf, workOf } from "./steps_words.js";
import { onThemeChange, readColors } from "./theme.js";

const DRAG_PIXELS = 4;
const LEAST_LANES = 8;
const TIP_GAP = 14;

/**
 * @param {HTMLElement} root focusable, with two canvases and a tip
 * @param {object} parts
 * @param {() => StepsRing | null} parts.getRing
 * @param {() => View} parts.getView
 * @param {(view: View) => void} parts.setView
 * @param {(sequence: Sequence, inNewTab: boolean) => boolean} parts.open false where it may not be
 */
export function createPicture(root, { getRing, getView, setView, open }) {
  const [base, over] = /** @type {HTMLCanvasElement[]} */ ([...root.querySelectorAll("canvas")]);
  const brushes = [base, over].map((canvas) =>
    createBrush(/** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"))),
  );
  const tip = find(root, ".steps-tip");
  let palette = /** @type {Palette} */ (readColors(COLORS));
  let numLanes = LEAST_LANES;
  let looked = 0;
  let drawn = "";
  let described = `null,${getView().lane}`;
  let revision = 0;
  /** @type {{x: number, y: number} | null} */
  let pointer = null;
  /** @type {{x: number, y: number, view: View, isMoving: boolean} | null} */
  let grip = null;

  new ResizeObserver(() => setView({ ...getView(), width: root.clientWidth })).observe(root);
  onThemeChange(() => {
    palette = /** @type {Palette} */ (readColors(COLORS));
    revision += 1;
    setView(getView());
  });
  matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", () => setView({ ...getView() }));

  root.addEventListener("pointermove", (event) => {
    pointer = placeOf(event);
    if (grip !== null) drag(event, grip);
    setView(getView());
  });
  root.addEventListener("pointerleave", () => {
    pointer = null;
    setView(getView());
  });
  root.addEventListener("pointerdown", (event) => {
    if (event.button === 0) grip = { ...placeOf(event), view: getView(), isMoving: false };
  });
  root.addEventListener("pointerup", (event) => {
    const wasMoving = grip?.isMoving ?? true;
    grip = null;
    root.classList.remove("is-dragged");
    if (!wasMoving) press(event);
  });
  root.addEventListener("pointercancel", () => {
    grip = null;
    root.classList.remove("is-dragged");
  });
  root.addEventListener("auxclick", (event) => {
    if (event.button === 1) press(event);
  });
  root.addEventListener(
    "wheel",
    (event) => {
      const ring = getRing();
      const next = ring && actOfWheel(event, getView(), { ring, x: placeOf(event).x });
      // At either end the page goes on.
      if (!next) return;
      event.preventDefault();
      setView(next);
    },
    { passive: false },
  );
  root.addEventListener("keydown", (event) => {
    const ring = getRing();
    if (ring === null || event.altKey || event.metaKey || event.ctrlKey) return;
    if (event.key === "Enter") {
      openSelected(ring);
      return;
    }
    const next = actOfKey(event, getView(), { ring, numLanes });
    if (next === null) return;
    event.preventDefault();
    setView(next);
  });

  /** @param {MouseEvent} event */
  function placeOf(event) {
    const box = root.getBoundingClientRect();
    return { x: event.clientX - box.left - root.clientLeft, y: event.clientY - box.top - root.clientTop };
  }

  /** @param {PointerEvent} event @param {NonNullable<typeof grip>} held */
  function drag(event, held) {
    const ring = getRing();
    const moved = placeOf(event).x - held.x;
    if (ring === null || (!held.isMoving && Math.abs(moved) < DRAG_PIXELS)) return;
    if (!held.isMoving) {
      held.isMoving = true;
      held.view = stopped(held.view, ring);
      root.setPointerCapture(event.pointerId);
      root.classList.add("is-dragged");
    }
    setView(scrolledBy(held.view, -moved / held.view.columnWidth, ring));
  }

  /** @param {MouseEvent} event */
  function press(event) {
    const ring = getRing();
    const { x, y } = placeOf(event);
    const number = ring && columnAt(x, getView(), ring);
    if (ring === null || number === null) return;
    const lane = laneAt(y, numLanes);
    const sequence = lane === null ? null : ring.at(number)?.sequences[lane];
    const isFinger = /** @type {PointerEvent} */ (event).pointerType === "touch";
    // A finger cannot hover: it selects first, and the table below has the way to each request.
    if (sequence && !isFinger && open(sequence, event.button === 1 || event.ctrlKey || event.metaKey)) return;
    if (event.button !== 0) return;
    setView({ ...stopped(getView(), ring), selected: number, lane: lane ?? getView().lane });
  }

  /** @param {StepsRing} ring */
  function openSelected(ring) {
    const { lane } = getView();
    const selected = selectedIn(getView(), ring);
    const sequence = selected === null ? null : ring.at(selected)?.sequences[lane];
    if (sequence) open(sequence, false);
  }

  /** Tells those who hear the picture what is selected, not what comes. @param {StepsRing} ring @param {View} view */
  function describe(ring, view) {
    const selected = selectedIn(view, ring);
    const about = `${selected},${view.lane}`;
    if (about === described) return;
    described = about;
    const column = selected === null ? null : ring.at(selected);
    const last = ring.at(ring.end - 1);
    root.setAttribute("aria-valuemin", String(ring.at(ring.first)?.row?.step ?? 0));
    root.setAttribute("aria-valuemax", String(last?.row?.step ?? 0));
    root.setAttribute("aria-valuenow", String(column?.row?.step ?? last?.row?.step ?? 0));
    root.setAttribute("aria-valuetext", column ? spoken(column, view.lane) : "the newest step, as it comes");
  }

  /** @param {StepsRing} ring */
  function growLanes(ring) {
    for (let number = Math.max(looked, ring.first); number < ring.end; number += 1) {
      const used = lastPlace(ring.at(number)?.cells ?? [], (cell) => cell !== NOTHING);
      while (used >= numLanes && numLanes < NUM_LANES) numLanes += LEAST_LANES;
    }
    looked = ring.end;
  }

  /** Fits the canvases to the page; gives whether they changed, and so are empty. @param {View} view */
  function fit(view) {
    const height = pictureHeight(numLanes);
    const [width, deep] = [Math.round(view.width * devicePixelRatio), Math.round(height * devicePixelRatio)];
    if (base.width === width && base.height === deep) return;
    root.style.height = `${height + 2}px`;
    for (const canvas of [base, over]) Object.assign(canvas, { width, height: deep });
    drawn = "";
  }

  /** @param {StepsRing} ring @param {View} view */
  function renderOver(ring, view) {
    const brush = brushes[1];
    const height = pictureHeight(numLanes);
    brush.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    brush.context.clearRect(0, 0, view.width, height);
    const selected = selectedIn(view, ring);
    if (selected !== null) {
      const x = leftOf(selected, view, ring);
      const lane = laneHeight(numLanes);
      frame(brush.context, palette.ink, x, 1, view.columnWidth, height - 2);
      const y = LANES_TOP + view.lane * lane - 1;
      if (view.lane < numLanes) frame(brush.context, palette.ink, x - 2, y, view.columnWidth + 4, lane + 1);
    }
    const number = pointer === null || grip?.isMoving ? null : columnAt(pointer.x, view, ring);
    const column = number === null ? null : ring.at(number);
    show(tip, column !== null);
    root.classList.remove("is-on-request");
    if (pointer === null || number === null || column === null) return;
    const lane = laneAt(pointer.y, numLanes);
    frame(brush.context, palette["ink-quiet"], leftOf(number, view, ring), 1, view.columnWidth, height - 2);
    const isOnRequest = lane !== null && column.sequences[lane] !== null && column.cells[lane] !== NOTHING;
    root.classList.toggle("is-on-request", isOnRequest);
    renderTip(column, lane, pointer);
  }

  /** @param {Column} column @param {number | null} lane @param {{x: number, y: number}} at */
  function renderTip(column, lane, { x, y }) {
    const { row } = column;
    const cell = lane === null ? "" : cellWords(column, lane);
    const lines = row === null ? [] : [timeOf(row), workOf(row)];
    setText(find(tip, "strong"), row === null ? titleOf(column) : `${titleOf(column)} · ${clock(row.at)}`);
    setText(find(tip, ".steps-tip-step"), lines.join("\n"));
    setText(find(tip, ".steps-tip-cell"), cell);
    show(find(tip, ".steps-tip-cell"), cell !== "");
    const left = x + TIP_GAP + tip.offsetWidth > root.clientWidth ? x - TIP_GAP - tip.offsetWidth : x + TIP_GAP;
    const top = Math.min(y + TIP_GAP, root.clientHeight - tip.offsetHeight - 2);
    tip.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${Math.max(0, Math.round(top))}px)`;
  }

  return {
    /** Draws what changed. @param {View} view */
    render(view) {
      const ring = getRing();
      if (ring === null) return;
      growLanes(ring);
      fit(view);
      const { from, to } = seen(view, ring);
      const shows = [from, to, view.columnWidth, view.width, numLanes, revision].join();
      if (shows !== drawn) {
        drawn = shows;
        brushes[0].context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
        paint(brushes[0], { ring, view, numLanes, palette });
      }
      renderOver(ring, view);
      describe(ring, view);
    },
    /** Forgets what it has drawn: there is another ring. */
    restart() {
      looked = 0;
      revision += 1;
    },
  };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} color
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 */
function frame(context, color, x, y, width, height) {
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.strokeRect(Math.floor(x) + 0.5, Math.floor(y) + 0.5, Math.max(2, width - 1), height);
}
