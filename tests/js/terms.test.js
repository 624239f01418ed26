import assert from "node:assert/strict";
import { test } from "node:test";

import { readTerms } from "../../static/dashboard/js/terms.js";

const TYPED = { guarded: true, metric: "ttft_p95", bound: " 500 ", window: "30", watch: "6e2", canary: false, engine: "" };

test("a guardrail goes out as numbers, in its own units", () => {
  const guardrail = { metric: "ttft_p95", bound: 500, window_seconds: 30, watch_seconds: 600 };
  assert.deepEqual(readTerms(TYPED), { terms: { guardrail } });
  assert.deepEqual(readTerms({ ...TYPED, canary: true }), { terms: { canary: true, guardrail } });
});

test("without its box ticked a guardrail is none, whatever stands in its fields", () => {
  assert.deepEqual(readTerms({ ...TYPED, guarded: false, bound: "x" }), { terms: {} });
  assert.deepEqual(readTerms({ ...TYPED, guarded: false, canary: true }), { terms: { canary: true } });
});

test("what is no number is named by its field, and nothing goes out", () => {
  for (const [field, text, told] of [
    ["bound", "", "guardrail bound must be a number, not empty"],
    ["window", "soon", "guardrail window must be a number, not 'soon'"],
    ["watch", "Infinity", "guardrail watch must be a number, not 'Infinity'"],
  ])
    assert.deepEqual(readTerms({ ...TYPED, [field]: text }), { error: told, field });
});

test("the engine that is to try the change goes out with the canary alone", () => {
  const typed = { ...TYPED, guarded: false, engine: "engine-2" };
  assert.deepEqual(readTerms({ ...typed, canary: true }), { terms: { canary: true, canary_engine: "engine-2" } });
  assert.deepEqual(readTerms(typed), { terms: {} });
});
