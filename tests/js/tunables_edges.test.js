import assert from "node:assert/strict";
import { test } from "node:test";

import { parseValue } from "../../static/dashboard/js/tunables.js";
import { specOf } from "./support/messages.js";

test("a whole number that JavaScript cannot tell from its neighbour is refused", () => {
  const unbounded = { ...specOf("max_running"), high: null };
  assert.deepEqual(parseValue(unbounded, "9007199254740991"), { value: 9_007_199_254_740_991 });
  for (const text of ["9007199254740993", "1e16"]) assert.ok("error" in parseValue(unbounded, text), text);
});
