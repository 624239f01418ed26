import assert from "node:assert/strict";
import { test } from "node:test";

import { scaleTop } from "../../static/dashboard/js/steps_bands.js";
import { actOfKey, actOfWheel } from "../../static/dashboard/js/steps_keys.js";
import { laneAt, pictureHeight, roundSteps } from "../../static/dashboard/js/steps_paint.js";
import {
  columnAt,
  following,
  initialView,
  leftOf,
  scrolledBy,
  seen,
  selectedIn,
  selecting,
  stopped,
  WIDTHS,
  zoomed,
} from "../../static/dashboard/js/steps_view.js";

const KEPT = { first: 1000, end: 2000 };
const VIEW = { ...initialView(), width: 600, columnWidth: 6 };

test("the newest columns are seen, and followed as they come", () => {
  assert.deepEqual(seen(VIEW, KEPT), { from: 1900, to: 2000 });
  assert.deepEqual(seen(VIEW, { first: 1000, end: 2010 }), { from: 1910, to: 2010 });
  assert.deepEqual(seen(VIEW, { first: 0, end: 7 }), { from: 0, to: 7 });
});

test("whoever has stopped stays where they are until what they see is gone", () => {
  const view = stopped(VIEW, KEPT);
  assert.deepEqual(seen(view, { first: 1000, end: 2500 }), { from: 1900, to: 2000 });
  assert.deepEqual(seen(view, { first: 1950, end: 2950 }), { from: 1950, to: 2000 });
  assert.deepEqual(seen(view, { first: 2000, end: 3000 }), { from: 2000, to: 2100 });
  assert.deepEqual(seen(stopped(VIEW, { first: 0, end: 7 }), { first: 0, end: 50 }), { from: 0, to: 7 });
});

test("scrolling ends at the oldest, and at the newest it follows again", () => {
  const back = scrolledBy(VIEW, -250, KEPT);
  assert.deepEqual(seen(back, KEPT), { from: 1650, to: 1750 });
  assert.deepEqual(seen(scrolledBy(back, -1e6, KEPT), KEPT), { from: 1000, to: 1100 });
  assert.equal(scrolledBy(back, 250, KEPT).right, null);
});

test("zooming keeps what is under the pointer there", () => {
  const view = scrolledBy(VIEW, -400, KEPT);
  const before = columnAt(300, view, KEPT);
  const closer = zoomed(view, 1, KEPT, 300);
  assert.equal(closer.columnWidth, 8);
  assert.ok(Math.abs(columnAt(300, closer, KEPT) - before) <= 1);
  assert.equal(zoomed({ ...VIEW, columnWidth: WIDTHS[0] }, -1, KEPT).columnWidth, WIDTHS[0]);
  assert.equal(zoomed(VIEW, 1, KEPT).right, null);
  for (const x of [undefined, 0, 600]) {
    const still = stopped(VIEW, KEPT);
    assert.notEqual(zoomed(still, 1, KEPT, x).right, null, `zooming at ${x} does not follow again`);
    const few = stopped(VIEW, { first: 0, end: 9 });
    assert.deepEqual(seen(zoomed(few, -1, { first: 0, end: 50 }, x), { first: 0, end: 50 }), { from: 0, to: 9 });
  }
});

test("places of the picture and columns are one another's", () => {
  const view = scrolledBy(VIEW, -100, KEPT);
  for (const column of [1800, 1850, 1899]) assert.equal(columnAt(leftOf(column, view, KEPT), view, KEPT), column);
  assert.equal(columnAt(-1, view, KEPT), null);
  assert.equal(columnAt(100, VIEW, { first: 0, end: 7 }), null);
});

test("a selected step is brought into sight and is gone with its column", () => {
  const view = selecting(VIEW, 1200, KEPT);
  const { from, to } = seen(view, KEPT);
  assert.ok(from <= 1200 && 1200 < to);
  assert.equal(selectedIn(view, KEPT), 1200);
  assert.equal(selectedIn(view, { first: 1300, end: 2300 }), null);
  assert.equal(following(view).selected, null);
});

test("keys select, move, zoom and pause", () => {
  const known = { ring: KEPT, numLanes: 8 };
  const press = (view, key, shiftKey = false) => actOfKey({ key, shiftKey }, view, known);
  const newest = press(VIEW, "ArrowLeft");
  assert.equal(newest.selected, 1999);
  assert.equal(press(newest, "ArrowLeft").selected, 1998);
  assert.equal(press(newest, "ArrowLeft", true).selected, 1989);
  assert.equal(press(newest, "PageUp").selected, 1899);
  assert.equal(press(newest, "Home").selected, 1000);
  assert.equal(press(newest, "ArrowDown").lane, 1);
  assert.equal(press({ ...newest, lane: 7 }, "ArrowDown").lane, 7);
  assert.equal(press(newest, "Escape").right, null);
  assert.equal(press(VIEW, " ").right, 2000);
  assert.equal(press(VIEW, "+").columnWidth, 8);
  assert.equal(press(VIEW, "x"), null);
});

test("the wheel goes back, and at the newest leaves the page to scroll", () => {
  const still = { deltaX: 0, deltaY: 0, deltaMode: 0, ctrlKey: false };
  const wheel = (view, event) => actOfWheel({ ...still, ...event }, view, { ring: KEPT, x: 0 });
  const back = wheel(VIEW, { deltaY: -120 });
  assert.deepEqual(seen(back, KEPT), { from: 1880, to: 1980 });
  assert.equal(wheel(VIEW, { deltaY: 120 }), null);
  assert.equal(wheel(VIEW, { deltaY: -3, deltaMode: 1 }).right, 1992);
  assert.equal(wheel(VIEW, { deltaY: -1, ctrlKey: true }).columnWidth, 8);
});

test("lanes are found by height, whatever there is above and below them", () => {
  for (const numLanes of [8, 16, 32, 64]) {
    const lanes = Array.from({ length: pictureHeight(numLanes) }, (_, y) => laneAt(y, numLanes));
    assert.deepEqual(
      new Set(lanes.filter((lane) => lane !== null)),
      new Set(Array.from({ length: numLanes }, (_, lane) => lane)),
    );
    assert.equal(lanes[0], null);
    assert.equal(lanes.at(-1), null);
  }
});

test("one slow step in a hundred does not flatten all others", () => {
  assert.equal(scaleTop([...Array(99).fill(10), 500]), 12.5);
  assert.equal(scaleTop([10, 12, 15]), 15);
  assert.equal(scaleTop([]), 1);
});

test("marks are at round steps", () => {
  assert.deepEqual([0.5, 1, 3, 7, 15, 90, 260].map(roundSteps), [1, 1, 5, 10, 20, 100, 500]);
});
