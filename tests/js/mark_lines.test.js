import assert from "node:assert/strict";
import { test } from "node:test";

import { linesAbout } from "../../static/dashboard/js/mark_lines.js";

const telling = (number, ...changes) => ({ number, author: "ann", changes });

test("where there is room everything is told", () => {
  assert.deepEqual(linesAbout([telling(2, "mode a → b"), telling(3, "max 1 → 2")], 4), [
    "version 2 by ann",
    "mode a → b",
    "version 3 by ann",
    "max 1 → 2",
  ]);
  assert.deepEqual(linesAbout([{ number: 1, author: "", changes: [] }], 4), ["version 1"]);
  assert.deepEqual(linesAbout([], 4), []);
});

test("one version with many changes is cut, and says so", () => {
  assert.deepEqual(linesAbout([telling(2, "a", "b", "c", "d")], 4), ["version 2 by ann", "a", "b", "and 2 more"]);
});

test("several versions that do not fit have a line each", () => {
  assert.deepEqual(linesAbout([telling(2, "a"), telling(3, "b", "c")], 4), ["v2  a", "v3  2 changes"]);
});

test("of more versions than lines the last are told", () => {
  const many = Array.from({ length: 9 }, (_, index) => telling(index + 2, "a"));
  assert.deepEqual(linesAbout(many, 4), ["v2–v10, the last of them:", "v8  a", "v9  a", "v10  a"]);
});
