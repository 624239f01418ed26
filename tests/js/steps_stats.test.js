import assert from "node:assert/strict";
import { test } from "node:test";

import { figuresFrom } from "../../static/dashboard/js/steps_head.js";
import { createStepsRing } from "../../static/dashboard/js/steps_ring.js";
import { kneeOf, percentileOf, sentenceAbout, sizesOf, wasteOf } from "../../static/dashboard/js/steps_stats.js";
import { batchOf, FIELDS } from "./support/steps.js";

let lastStep = 0;

/** Steps that decode so many sequences in so many milliseconds each. */
function decodes(size, times) {
  const names = Array.from({ length: size }, (_, index) => `r${index}`);
  return times.map((ms) => ({ step: (lastStep += 1), decode: names, ms }));
}

function rowsOf(...steps) {
  lastStep = 0;
  const ring = createStepsRing(FIELDS);
  ring.add([batchOf(steps.flat())]);
  return ring.rows();
}

const ten = (ms) => Array(10).fill(ms);

test("sizes are told apart, with the median, the 95th percentile and the rate", () => {
  const rows = rowsOf(decodes(2, [...ten(10), ...ten(20)]), decodes(1, ten(8)), decodes(3, [1, 2, 3]));
  assert.deepEqual(sizesOf(rows), [
    { size: 1, numSteps: 10, medianMs: 8, p95Ms: 8, tokensPerSecond: 125 },
    { size: 2, numSteps: 20, medianMs: 10, p95Ms: 20, tokensPerSecond: 200 },
  ]);
});

test("steps with prefill, and those that failed, say nothing of the size", () => {
  const steps = [
    ...decodes(1, ten(8)).map((step) => ({ ...step, prefill: { p: 100 } })),
    ...decodes(2, ten(8)).map((step) => ({ ...step, failed: true })),
  ];
  assert.deepEqual(sizesOf(rowsOf(steps)), []);
});

test("percentiles are values that were measured", () => {
  assert.equal(percentileOf([1, 2, 3, 4], 50), 2);
  assert.equal(percentileOf([1, 2, 3, 4], 95), 4);
  assert.equal(percentileOf([7], 95), 7);
});

test("more batch stops paying where doubling it gains less than a tenth", () => {
  const times = { 1: 10, 2: 11, 4: 14, 8: 27, 16: 54 };
  const rows = rowsOf(Object.entries(times).flatMap(([size, ms]) => decodes(Number(size), ten(ms))));
  const knee = kneeOf(sizesOf(rows));
  assert.equal(knee.size, 4);
  assert.equal(knee.larger, 8);
  assert.ok(Math.abs(knee.gain - 0.037) < 0.001);
  assert.match(
    sentenceAbout(sizesOf(rows)),
    /stops paying at about 4 sequences: 8 give 4% more tokens a second, and each step takes 1\.9 times as long\.$/,
  );
});

test("a step that is slow once does not end what pays again further on", () => {
  const rows = rowsOf(decodes(2, ten(10)), decodes(4, ten(20)), decodes(8, ten(22)), decodes(16, ten(25)));
  assert.equal(kneeOf(sizesOf(rows)), null);
  assert.match(sentenceAbout(sizesOf(rows)), /^More batch still pays: up to 16 sequences/);
});

test("nothing is said of too few sizes", () => {
  for (const rows of [[], rowsOf(decodes(4, ten(10))), rowsOf(decodes(4, ten(10)), decodes(5, ten(10)))]) {
    assert.match(sentenceAbout(sizesOf(rows)), /^Too few different batch sizes yet/);
  }
});

test("a larger batch that gives fewer tokens is said to", () => {
  const rows = rowsOf(decodes(1, ten(10)), decodes(2, ten(25)));
  assert.match(sentenceAbout(sizesOf(rows)), /at about 1 sequence: 2 give 20% fewer tokens a second/);
});

test("waste is the share of a static batch's places that held nothing", () => {
  const rows = rowsOf([
    { step: 1, isStatic: true, prefill: { a: 4, b: 9 }, padded: 5 },
    { step: 2, isStatic: true, decode: ["a"], padded: 1 },
    { step: 3, decode: ["a"] },
  ]);
  assert.deepEqual(wasteOf(rows), { ratio: 6 / 20, padded: 6 });
  assert.equal(wasteOf(rows.slice(2)), null);
});

test("figures of what is seen add up", () => {
  const rows = rowsOf(decodes(2, [10, 30]), decodes(4, [20]));
  const { time, batch, rate, waste } = figuresFrom(rows);
  assert.deepEqual([time, batch, rate, waste], ["20.0 ms, p95 30.0 ms", "2.7, up to 4", "133/s", ""]);
  assert.equal(figuresFrom([]).time, "–");
});
