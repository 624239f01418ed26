import assert from "node:assert/strict";
import { test } from "node:test";

import { linesOf } from "../../static/dashboard/js/alert_banner.js";

/** @param {number} count */
const alerts = (count) =>
  Array.from({ length: count }, (_, index) => ({ name: `rule ${index}`, pool: "chat", text: "TTFT p95 above 500 ms" }));

test("the banner names rule, pool and bound", () => {
  assert.deepEqual(linesOf(alerts(1)), ["rule 0 (chat): TTFT p95 above 500 ms"]);
});

test("of many alerts it says how many more there are", () => {
  const lines = linesOf(alerts(5));
  assert.equal(lines.length, 4);
  assert.equal(lines.at(-1), "and 2 more");
});

test("without alerts there is nothing to say", () => {
  assert.deepEqual(linesOf([]), []);
});
