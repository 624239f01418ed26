import assert from "node:assert/strict";
import { test } from "node:test";

import { newRows, pausedBy, widthsOf, withParameter } from "../../static/dashboard/js/requests_rows.js";
import { moved } from "../../static/dashboard/js/waterfall.js";

const row = (/** @type {number} */ pk) => ({ dataset: { pk: String(pk) } });

test("the longest of a column is as wide as the column, and nothing is wider", () => {
  assert.deepEqual(widthsOf([0.5, 2, 0]), [25, 100, 0]);
  assert.deepEqual(widthsOf([0, 0]), [0, 0]);
  assert.deepEqual(widthsOf([]), []);
});

test("a row that is shown already does not come twice", () => {
  const came = [row(9), row(8), row(7)];
  assert.deepEqual(newRows(came, [row(8), row(3)]), [came[0], came[2]]);
  assert.deepEqual(newRows([], []), []);
});

test("the log stands still while somebody reads it", () => {
  const nobody = { isHovered: false, isFocused: false, isScrolledPast: false };
  assert.equal(pausedBy(nobody), "");
  assert.match(pausedBy({ ...nobody, isHovered: true }), /point/);
  assert.match(pausedBy({ ...nobody, isFocused: true }), /in it/);
  assert.match(pausedBy({ ...nobody, isHovered: true, isScrolledPast: true }), /scrolled/);
});

test("a parameter joins those that an address has", () => {
  assert.equal(withParameter("/requests/", "tail", 7), "/requests/?tail=7");
  assert.equal(withParameter("/requests/?q=a", "tail", "b c"), "/requests/?q=a&tail=b%20c");
});

test("the arrow keys go through a waterfall and stop at its ends", () => {
  const walk = (/** @type {number} */ from, /** @type {string} */ key) => moved(key, { chosen: from, count: 3 });
  assert.deepEqual([walk(-1, "ArrowRight"), walk(1, "ArrowRight"), walk(2, "ArrowRight")], [0, 2, 2]);
  assert.deepEqual([walk(-1, "ArrowLeft"), walk(1, "ArrowLeft"), walk(0, "ArrowLeft")], [2, 0, 0]);
  assert.deepEqual([walk(1, "Home"), walk(1, "End"), walk(1, "Escape"), walk(1, "x")], [0, 2, -1, null]);
  assert.equal(moved("ArrowRight", { chosen: -1, count: 0 }), -1);
  assert.equal(moved("Home", { chosen: -1, count: 0 }), -1);
});
