/**
 * Draws columns on a canvas: step times above, tokens below them, then a lane a sequence. All of it is drawn each time,
 * as a few paths of many rectangles, so that 64 lanes of 600 steps take some milliseconds.
 *
 * @typedef {import("./steps_ring.js").StepsRing} StepsRing
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_view.js").View} View
 * @typedef {import("./steps_brush.js").Brush} Brush
 *
 * @typedef {object} Scene
 * @property {Pick<StepsRing, "at" | "first" | "end">} ring
 * @property {View} view
 * @property {number} numLanes that are drawn
 * @property {Palette} palette
 */
import { BAND_GAP, paintTimes, paintTokens, TIMES_HEIGHT, TOKENS_HEIGHT } from "./steps_bands.js";
import { paintLanes } from "./steps_lanes.js";
import { seen } from "./steps_view.js";

export const COLORS = /** @type {const} */ ([
  "surface",
  "sunk",
  "line",
  "line-strong",
  "ink",
  "ink-quiet",
  "problem",
  "chart-load",
  "chart-wait",
  "chart-prompt",
  "chart-ink",
  "chart-grid",
  "chart-p95",
  "chart-p99",
  "chart-marker",
]);
/** @typedef {Record<typeof COLORS[number], string>} Palette */

export const LANES_TOP = TIMES_HEIGHT + TOKENS_HEIGHT + 2 * BAND_GAP;
export const AXIS_HEIGHT = 18;
const TICK_PIXELS = 90;
const TICK_ROOM = 40;
const IDLE_SECONDS = 0.25;

/** Height of one of so many lanes, in CSS pixels. @param {number} numLanes */
export function laneHeight(numLanes) {
  return numLanes <= 16 ? 16 : numLanes <= 32 ? 11 : 8;
}

/** Height of the whole picture. @param {number} numLanes */
export function pictureHeight(numLanes) {
  return LANES_TOP + numLanes * laneHeight(numLanes) + AXIS_HEIGHT;
}

/** The lane at a height of the picture; null where there is none. @param {number} y @param {number} numLanes */
export function laneAt(y, numLanes) {
  const lane = Math.floor((y - LANES_TOP) / laneHeight(numLanes));
  return lane >= 0 && lane < numLanes ? lane : null;
}

/** @param {Brush} brush @param {Scene} scene */
export function paint(brush, scene) {
  const { ring, view, numLanes, palette } = scene;
  brush.bar(palette.surface, 0, 0, view.width, pictureHeight(numLanes));
  const { from, to } = seen(view, ring);
  const columns = [];
  for (let number = from; number < to; number += 1) columns.push(/** @type {Column} */ (ring.at(number)));
  paintTimes(brush, scene, columns);
  paintTokens(brush, scene, columns);
  paintLanes(brush, scene, columns, { top: LANES_TOP, lane: laneHeight(numLanes) });
  paintSeams(brush, scene, columns);
  paintAxis(brush, scene, columns);
}

/**
 * Holes in the record, pauses in which nothing ran, steps that failed, and changes of the tunables.
 *
 * @param {Brush} brush
 * @param {Scene} scene
 * @param {Column[]} columns
 */
function paintSeams(brush, { view, numLanes, palette }, columns) {
  const { columnWidth } = view;
  const bottom = pictureHeight(numLanes) - AXIS_HEIGHT;
  columns.forEach(({ row, missing }, place) => {
    const x = place * columnWidth;
    if (row === null) {
      brush.hatch(palette.problem, () => brush.context.rect(x, 0, Math.max(2, columnWidth), bottom));
      brush.write(palette.problem, `${missing} lost`, x + columnWidth + 3, bottom - 3, palette.surface);
      return;
    }
    if (row.failed) brush.bar(palette.problem, x, 0, Math.max(2, columnWidth - 1), 3);
    const before = columns[place - 1]?.row;
    if (!before) return;
    if (row.at - before.at - before.totalMs / 1000 > IDLE_SECONDS) {
      brush.bar(palette["line-strong"], x - 0.5, 0, 1, bottom);
    }
    if (row.version !== before.version) {
      for (let y = 0; y < bottom; y += 6) brush.bar(palette["chart-marker"], x - 0.5, y, 1, 3);
      brush.write(palette["chart-marker"], `version ${row.version}`, x + 3, LANES_TOP - 2, palette.surface);
    }
  });
}

/** @param {Brush} brush @param {Scene} scene @param {Column[]} columns */
function paintAxis(brush, { view, numLanes, palette }, columns) {
  const every = roundSteps(TICK_PIXELS / view.columnWidth);
  const height = pictureHeight(numLanes);
  columns.forEach(({ row }, place) => {
    const x = place * view.columnWidth;
    if (row === null || row.step % every !== 0 || x > view.width - TICK_ROOM) return;
    brush.bar(palette["line-strong"], x, height - AXIS_HEIGHT, 1, 4);
    brush.write(palette["chart-ink"], String(row.step), x + 3, height - 5);
  });
}

/** The least of 1, 2, 5, 10, 20, … that is not below `least`. @param {number} least */
export function roundSteps(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}
