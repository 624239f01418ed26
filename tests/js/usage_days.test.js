import assert from "node:assert/strict";
import { test } from "node:test";

import { daysOf, readDays } from "../../static/dashboard/js/usage_days.js";

const ROWS = [
  { dataset: { day: "2026-03-02", requests: "2", prompt: "1200", completion: "34" } },
  { dataset: { day: "2026-03-01", requests: "0", prompt: "0", completion: "0" } },
];

test("a table's rows are read as numbers, in their order", () => {
  const asked = [];
  const days = readDays({ querySelectorAll: (selector) => asked.push(selector) && ROWS });
  assert.deepEqual(asked, ["[data-day]"]);
  assert.deepEqual(days, [
    { day: "2026-03-02", requests: 2, prompt: 1200, completion: 34 },
    { day: "2026-03-01", requests: 0, prompt: 0, completion: 0 },
  ]);
});

test("a chart begins with the oldest day, and the table stays as it is", () => {
  const days = readDays({ querySelectorAll: () => ROWS });
  assert.deepEqual(daysOf(days), {
    labels: ["03-01", "03-02"],
    requests: [0, 2],
    prompt: [0, 1200],
    completion: [0, 34],
  });
  assert.equal(days[0].day, "2026-03-02");
  assert.deepEqual(daysOf([]), { labels: [], requests: [], prompt: [], completion: [] });
});
