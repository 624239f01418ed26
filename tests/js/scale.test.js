import assert from "node:assert/strict";
import { test } from "node:test";
import { durationAxis, roundStep, timeAxis, valueAxis } from "../../static/dashboard/js/scale.js";

test("an axis ends at a round value that the largest fits under", () => {
  assert.deepEqual(valueAxis(7, {}), { top: 8, ticks: [0, 2, 4, 6, 8] });
  assert.deepEqual(valueAxis(95, {}), { top: 100, ticks: [0, 25, 50, 75, 100] });
  assert.deepEqual(valueAxis(0.061, {}).top, 0.08);
});

test("an axis never ends below its least top", () => {
  assert.equal(valueAxis(0, { leastTop: 4, leastStep: 1 }).top, 4);
  assert.deepEqual(valueAxis(0.2, { leastTop: 1 }).ticks, [0, 0.25, 0.5, 0.75, 1]);
});

test("counts are marked at whole numbers alone", () => {
  for (let largest = 0; largest < 3000; largest += 7) {
    for (const tick of valueAxis(largest, { leastStep: 1 }).ticks)
      assert.ok(Number.isInteger(tick), `${tick} for ${largest}`);
  }
});

test("every axis reaches the largest value, with at most five marks and little room to spare", () => {
  for (let exponent = -6; exponent < 9; exponent += 0.01) {
    const largest = 10 ** exponent;
    const { top, ticks } = valueAxis(largest, {});
    assert.ok(top >= largest * (1 - 1e-9) && top <= largest * 2.5, `${top} for ${largest}`);
    assert.ok(ticks.length <= 5 && ticks.length >= 2, `${ticks.length} marks for ${largest}`);
    assert.ok(Math.abs(/** @type {number} */ (ticks.at(-1)) - top) < top * 1e-9);
  }
});

test("long durations are marked at round minutes", () => {
  assert.deepEqual(durationAxis(1700), { top: 1800, ticks: [0, 600, 1200, 1800] });
  assert.deepEqual(durationAxis(100), valueAxis(100));
  assert.equal(durationAxis(0, { leastTop: 0.01 }).top, 0.01);
});

test("a step without anything to show is one", () => {
  assert.equal(roundStep(0, { numSteps: 4 }), 1);
});

test("time is marked at round moments of the local clock", () => {
  const offset = 5.5 * 3600;
  const { step, ticks } = timeAxis(1_000_000, 1_000_300, offset);
  assert.equal(step, 60);
  assert.ok(ticks.length >= 4 && ticks.length <= 5);
  for (const tick of ticks) {
    assert.equal((tick + offset) % 60, 0);
    assert.ok(tick >= 1_000_000 && tick <= 1_000_300);
  }
});

test("the longer the span, the coarser the marks", () => {
  assert.equal(timeAxis(0, 120, 0).step, 30);
  assert.equal(timeAxis(0, 900, 0).step, 180);
});

test("a value that binary made a hair too large needs no step more", () => {
  const hair = 0.8 * (1 + Number.EPSILON);
  assert.ok(hair > 0.8);
  assert.deepEqual([valueAxis(hair).top, valueAxis(hair).ticks.length], [0.8, 5]);
});
