import assert from "node:assert/strict";
import { test } from "node:test";
import { figure, tick } from "../../static/dashboard/js/measures.js";
import { valueAxis } from "../../static/dashboard/js/scale.js";

test("a figure is written as what it measures", () => {
  assert.equal(figure(0.0123, "seconds"), "12.3 ms");
  assert.equal(figure(0.425, "ratio"), "43%");
  assert.equal(figure(3.44, "rate"), "3.4");
  assert.equal(figure(12345, "tokens"), "12,345");
});

test("what was not measured is a dash", () => {
  for (const measure of /** @type {const} */ (["seconds", "ratio", "rate", "tokens", "count"])) {
    assert.equal(figure(NaN, measure), "–");
    assert.equal(figure(null, measure), "–");
    assert.equal(figure(undefined, measure), "–");
  }
});

test("axis marks are short and round", () => {
  assert.equal(tick(0, "seconds"), "0");
  assert.equal(tick(0.0025, "seconds"), "2.5 ms");
  assert.equal(tick(2.5, "seconds"), "2.5 s");
  assert.equal(tick(300, "seconds"), "5 m");
  assert.equal(tick(20_000, "tokens"), "20k");
  assert.equal(tick(1_500_000, "tokens"), "1.5M");
  assert.equal(tick(100_000_000, "tokens"), "100M");
  assert.equal(tick(0.25, "ratio"), "25%");
});

test("no axis mark shows what adding in binary leaves behind", () => {
  for (const largest of [0.03, 0.3, 0.7, 3.1, 45, 1234, 98_765]) {
    for (const value of valueAxis(largest, {}).ticks) {
      assert.ok(tick(value, "seconds").length <= 7, tick(value, "seconds"));
      assert.ok(tick(value, "tokens").length <= 6, tick(value, "tokens"));
    }
  }
});
