/**
 * What part of the columns is seen, and which step and lane are selected. Pure: every act gives a new view.
 *
 * @typedef {{first: number, end: number}} Kept numbers of the oldest column and of the one after the newest
 *
 * @typedef {object} View
 * @property {number} columnWidth in CSS pixels, one of `WIDTHS`
 * @property {number} width of the picture, likewise
 * @property {number | null} right number of the column after the last that is seen; null follows the newest
 * @property {number | null} selected number of a column
 * @property {number} lane the lane that the keyboard is on
 */

export const WIDTHS = [1, 2, 3, 4, 6, 8, 12, 18];
const USUAL_WIDTH = 6;

/** @returns {View} */
export function initialView() {
  return { columnWidth: USUAL_WIDTH, width: 600, right: null, selected: null, lane: 0 };
}

/** How many columns there is room for, the last perhaps in part. @param {View} view */
export function room({ width, columnWidth }) {
  return Math.max(1, Math.floor(width / columnWidth));
}

/**
 * Numbers of the columns that are seen: from `from`, before `to`. Whoever has stopped sees the same until it is gone.
 *
 * @param {View} view
 * @param {Kept} kept
 */
export function seen(view, kept) {
  const stopped = view.right !== null && view.right <= kept.first ? kept.first + room(view) : view.right;
  const to = Math.min(kept.end, stopped ?? kept.end);
  return { from: Math.max(kept.first, to - room(view)), to };
}

/** The left edge of a column. @param {number} column @param {View} view @param {Kept} kept */
export function leftOf(column, view, kept) {
  return (column - seen(view, kept).from) * view.columnWidth;
}

/**
 * The column under a place of the picture; null where there is none.
 *
 * @param {number} x
 * @param {View} view
 * @param {Kept} kept
 */
export function columnAt(x, view, kept) {
  const { from, to } = seen(view, kept);
  const column = from + Math.floor(x / view.columnWidth);
  return x >= 0 && column < to ? column : null;
}

/**
 * Moves by so many columns, later ones where positive; at the newest it follows.
 *
 * @param {View} view
 * @param {number} columns
 * @param {Kept} kept
 * @returns {View}
 */
export function scrolledBy(view, columns, kept) {
  const { to } = seen(view, kept);
  return scrolledTo(view, to + Math.round(columns), kept);
}

/** @param {View} view @param {number} right @param {Kept} kept @returns {View} */
function scrolledTo(view, right, kept) {
  if (right >= kept.end) return { ...view, right: null };
  return { ...view, right: Math.max(right, Math.min(kept.end, kept.first + room(view))) };
}

/** Stops where it is, so that what comes does not move it. @param {View} view @param {Kept} kept @returns {View} */
export function stopped(view, kept) {
  return view.right === null ? { ...view, right: kept.end } : view;
}

/** @param {View} view @returns {View} */
export function following(view) {
  return { ...view, right: null, selected: null };
}

/**
 * Wider (`by` 1) or narrower (-1) columns. What is at `x` stays there, without it what is last; whoever has stopped
 * does not follow the newest for that.
 *
 * @param {View} view
 * @param {number} by
 * @param {Kept} kept
 * @param {number} [x]
 * @returns {View}
 */
export function zoomed(view, by, kept, x) {
  const index = WIDTHS.indexOf(view.columnWidth);
  const columnWidth = WIDTHS[Math.min(WIDTHS.length - 1, Math.max(0, index + by))];
  const next = { ...view, columnWidth };
  const { from, to } = seen(view, kept);
  if (view.right === null || x === undefined || to - from < room(view)) return next;
  const stays = from + x / view.columnWidth;
  const right = Math.round(stays - x / columnWidth) + room(next);
  return { ...next, right: Math.min(kept.end, Math.max(right, kept.first + room(next))) };
}

/**
 * Selects a column and brings it into sight; what follows is no longer followed.
 *
 * @param {View} view
 * @param {number} column
 * @param {Kept} kept
 * @returns {View}
 */
export function selecting(view, column, kept) {
  if (kept.end === kept.first) return view;
  const selected = Math.min(kept.end - 1, Math.max(kept.first, column));
  const next = { ...stopped(view, kept), selected };
  const { from, to } = seen(next, kept);
  if (selected < from) return { ...next, right: selected + room(view) };
  return selected >= to ? { ...next, right: selected + 1 } : next;
}

/** The selected column, or none once it is no longer kept. @param {View} view @param {Kept} kept */
export function selectedIn({ selected }, kept) {
  return selected !== null && selected >= kept.first && selected < kept.end ? selected : null;
}
