import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../static/dashboard/js/format.js";
import { specOf } from "./support/messages.js";

/** Each row: a value and how it is written. */
function check(name, rows) {
  test(`${name} of ${rows.map(([, text]) => text).join(", ")}`, () => {
    for (const [value, text] of rows) assert.equal(format[name](value), text);
  });
}

const MIB = 1024 * 1024;

check("count", [
  [0, "0"],
  [7.6, "8"],
  [1234, "1,234"],
  [1_234_567, "1,234,567"],
]);
check("compact", [
  [0, "0"],
  [9999, "9,999"],
  [10_000, "10.0k"],
  [12_345, "12.3k"],
  [123_456, "123k"],
  [999_600, "1.00M"],
  [1_234_567, "1.23M"],
]);
check("tokens", [
  [0, "0 tokens"],
  [1, "1 token"],
  [12_345, "12.3k tokens"],
]);
check("rate", [
  [0, "0"],
  [3.42, "3.4"],
  [0.04, "0.0"],
  [9.94, "9.9"],
  [9.96, "10"],
  [412.4, "412"],
  [12_345, "12.3k"],
]);
check("watts", [
  [0, "0 W"],
  [612.345, "612 W"],
  [5600, "5,600 W"],
  [null, "–"],
]);
check("celsius", [
  [64, "64 °C"],
  [null, "–"],
]);
check("bytes", [
  [0, "0 B"],
  [999, "999 B"],
  [1023, "1.00 KiB"],
  [1536, "1.50 KiB"],
  [812 * MIB, "812 MiB"],
  [1000 * MIB, "0.98 GiB"],
  [1.25 * 1024 * MIB, "1.25 GiB"],
]);
check("percent", [
  [0, "0%"],
  [0.0041, "<1%"],
  [0.005, "1%"],
  [0.426, "43%"],
  [1, "100%"],
]);
check("seconds", [
  [0, "0 ms"],
  [0.00042, "0.42 ms"],
  [0.0123, "12.3 ms"],
  [0.1234, "123 ms"],
  [0.9994, "999 ms"],
  [0.9996, "1.00 s"],
  [1.234, "1.23 s"],
  [9.994, "9.99 s"],
  [9.996, "10.0 s"],
  [12.34, "12.3 s"],
  [59.94, "59.9 s"],
  [59.96, "1 m 00 s"],
  [125, "2 m 05 s"],
  [3720, "1 h 02 m"],
]);
check("milliseconds", [
  [12.3, "12.3 ms"],
  [1500, "1.50 s"],
]);
check("duration", [
  [0, "0 s"],
  [59.6, "1 m 00 s"],
  [3599, "59 m 59 s"],
  [3600, "1 h 00 m"],
  [11_520, "3 h 12 m"],
  [187_200, "2 d 4 h"],
]);
check("age", [
  [-3, "just now"],
  [0.4, "just now"],
  [12.9, "12 s ago"],
  [200, "3 m ago"],
  [7300, "2 h ago"],
  [500_000, "5 d ago"],
]);
check("plain", [
  ["static", "static"],
  ["", "(empty)"],
  [60_000, "60,000"],
  [0.02, "0.02"],
  [0, "0"],
  [0.1 + 0.2, "0.3"],
]);

test("what is not known is a dash everywhere", () => {
  for (const name of [
    "count",
    "compact",
    "tokens",
    "rate",
    "bytes",
    "percent",
    "seconds",
    "milliseconds",
    "duration",
    "age",
    "clock",
    "clockShort",
    "plain",
  ]) {
    for (const value of [null, undefined, NaN, Infinity]) assert.equal(format[name](value), "–", `${name} of ${value}`);
  }
  assert.equal(format.moment("yesterday"), "–");
});

test("the time of day is the local one", () => {
  const at = new Date(2025, 2, 7, 4, 3, 9).getTime() / 1000;
  assert.equal(format.clock(at), "04:03:09");
  assert.equal(format.clockShort(at), "04:03");
});

test("a moment is as exact as it is near", () => {
  const now = new Date(2025, 2, 7, 14, 0, 0).getTime();
  const moment = (...parts) => format.moment(new Date(...parts).toISOString(), now);
  assert.equal(moment(2025, 2, 7, 4, 3, 9), "04:03:09");
  assert.equal(moment(2025, 2, 6, 23, 59, 9), "6 Mar 23:59");
  assert.equal(moment(2024, 11, 31, 4, 3), "31 Dec 2024");
});

test("a tunable bears its unit, a ratio and a choice none", () => {
  assert.equal(format.tunable(specOf("batch_window_ms"), 2500), "2,500 ms");
  assert.equal(format.tunable(specOf("prefill_share"), 0.5), "0.5");
  assert.equal(format.tunable(specOf("mode"), "static"), "static");
});

test("a difference names the tunable, both values and the unit once", () => {
  assert.equal(format.diff(specOf("max_running"), 32, 8), "max_running 32 → 8 sequences");
  assert.equal(format.diff(specOf("mode"), "continuous", "static"), "mode continuous → static");
});
