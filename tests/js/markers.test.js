import assert from "node:assert/strict";
import { test } from "node:test";

import { markersOf } from "../../static/dashboard/js/markers.js";
import { createRing } from "../../static/dashboard/js/ring.js";
import { point, SHAPE } from "./support/messages.js";

const START = 1_700_000_000;

/** A ring in which second n ran `versions[n]`; undefined is a gap. */
function ringOf(versions) {
  const ring = createRing(SHAPE);
  versions.forEach((number, second) => {
    if (number !== undefined) ring.push(point(START + second, { tunables_version: number }));
  });
  return ring;
}

const markers = (versions, range) => markersOf(ringOf(versions), range).map(({ at, version }) => [at - START, version]);

test("a version that never changes has no marker", () => {
  assert.deepEqual(markers([3, 3, 3]), []);
  assert.deepEqual(markers([]), []);
});

test("each change is marked where it took effect", () => {
  assert.deepEqual(markers([3, 3, 4, 4, 5]), [
    [2, 4],
    [4, 5],
  ]);
});

test("a lower version is a change too", () => {
  assert.deepEqual(markers([5, 2]), [[1, 2]]);
});

test("an engine that went and came back with the same version changed nothing", () => {
  assert.deepEqual(markers([3, null, null, 3, undefined, 3]), []);
});

test("an engine that came back with another version is marked where it came", () => {
  assert.deepEqual(markers([3, null, undefined, 4]), [[3, 4]]);
});

test("the first known version is no change", () => {
  assert.deepEqual(markers([null, null, 7, 7]), []);
});

test("a change on the first second in sight is marked, one before it is not", () => {
  assert.deepEqual(markers([1, 2, 2, 3], { since: START + 2 }), [[3, 3]]);
  assert.deepEqual(markers([1, 2, 2, 3], { since: START + 3 }), [[3, 3]]);
  assert.deepEqual(markers([1, 2, 2, 3], { until: START + 2 }), [[1, 2]]);
});
