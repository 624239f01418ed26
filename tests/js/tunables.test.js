import assert from "node:assert/strict";
import { test } from "node:test";

import { boundsOf, parseValue } from "../../static/dashboard/js/tunables.js";
import { specOf } from "./support/messages.js";

const parse = (name, text) => parseValue(specOf(name), text);

test("bounds are said in the server's words", () => {
  assert.equal(boundsOf(specOf("max_running")), "an integer from 1 to 1024");
  assert.equal(boundsOf(specOf("prefill_share")), "a number from 0 to 1");
  assert.equal(boundsOf(specOf("mode")), "one of continuous, static");
});

test("what a field admits is read as its value", () => {
  assert.deepEqual(parse("max_running", "8"), { value: 8 });
  assert.deepEqual(parse("max_running", " 8.0 "), { value: 8 });
  assert.deepEqual(parse("max_running", "1e3"), { value: 1000 });
  assert.deepEqual(parse("prefill_share", ".25"), { value: 0.25 });
  assert.deepEqual(parse("batch_window_ms", "-0"), { value: 0 });
  assert.deepEqual(parse("mode", "static"), { value: "static" });
});

test("a number may be written as the page writes it, in groups of three", () => {
  assert.deepEqual(parse("max_running", "1,000"), { value: 1000 });
  assert.deepEqual(parse("batch_window_ms", "9,999.5"), { value: 9999.5 });
  const large = { ...specOf("max_running"), high: 100_000_000 };
  assert.deepEqual(parseValue(large, "100,000,000"), { value: 100_000_000 });
  for (const text of ["0,500", "1,5", "1,00", "1000,000", ",100", "1,000,", "1,,000", "1.000,5", "1,000e1"])
    assert.match(parse("batch_window_ms", text).error, /must be a number from 0 to 10000, not '/, text);
  assert.match(parse("max_running", "2,000").error, /not 2,000$/);
});

test("bounds belong to what is admitted", () => {
  assert.deepEqual(parse("max_running", "1"), { value: 1 });
  assert.deepEqual(parse("max_running", "1024"), { value: 1024 });
});

test("an error names field, value and bounds", () => {
  assert.equal(parse("max_running", "1025").error, "max_running must be an integer from 1 to 1024, not 1025");
  assert.equal(parse("max_running", "0").error, "max_running must be an integer from 1 to 1024, not 0");
  assert.equal(parse("max_running", "8.5").error, "max_running must be an integer from 1 to 1024, not 8.5");
  assert.equal(parse("max_running", "many").error, "max_running must be an integer from 1 to 1024, not 'many'");
  assert.equal(parse("max_running", "").error, "max_running must be an integer from 1 to 1024, not empty");
  assert.equal(parse("mode", "dynamic").error, "mode must be one of continuous, static, not 'dynamic'");
});

test("what reads like a number only to a machine is refused", () => {
  for (const text of ["0x10", "0b1", "1_000", "1,5", "1 000", "Infinity", "NaN", "1e999", "--1", ".", "1e", "٣"]) {
    assert.ok("error" in parse("batch_window_ms", text), text);
  }
});

const POOL_SPEC = { ...specOf("mode"), name: "long_prompt_pool", kind: "name", default: "", choices: [] };

test("a pool is named as pools are, or not at all", () => {
  for (const text of ["", "bulk", "1", "-", "Bulk_2-a.b", "b".repeat(64)])
    assert.deepEqual(parseValue(POOL_SPEC, ` ${text} `), { value: text });
  for (const text of ["a b", ".a", "a/b", "ü", "b".repeat(65), "a\nb"])
    assert.match(parseValue(POOL_SPEC, text).error, /^long_prompt_pool must be empty, or the name of a pool: /, text);
});

test("an error about a name is the server's", () => {
  const bounds = "empty, or the name of a pool: 1 to 64 letters, digits, '_', '-' or, not first, '.'";
  assert.equal(boundsOf(POOL_SPEC), bounds);
  assert.equal(parseValue(POOL_SPEC, "a b").error, `long_prompt_pool must be ${bounds}, not 'a b'`);
});

test("a long text is quoted in part", () => {
  const { error } = parse("max_running", "x".repeat(5000));
  assert.ok(error.length < 140);
  assert.ok(error.endsWith("…"));
});
