/** What charts of workloads draw. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { binLabels, cumulative, timeLabels } from "../../static/dashboard/js/lab/workloads/series.js";

test("a bin is named by its first and last length", () => {
  assert.deepEqual(binLabels([1, 2, 5, 100]), ["1", "2–4", "5–99"]);
});

test("cumulative shares end with all of them", () => {
  assert.deepEqual(cumulative([0.25, 0.5, 0.25]), [0.25, 0.75, 1]);
  assert.deepEqual(cumulative([]), []);
});

test("times are told in the largest unit that leaves them apart", () => {
  assert.deepEqual(timeLabels(2.5, 3), ["0 s", "2.5 s", "5 s"]);
  assert.deepEqual(timeLabels(300, 2), ["0 s", "5 min"]);
  assert.deepEqual(timeLabels(5400, 3).at(-1), "3 h");
});
