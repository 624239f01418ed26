import assert from "node:assert/strict";
import { test } from "node:test";

import { labelOf, labelsOf, markersOf } from "../../static/dashboard/js/markers.js";
import { createRing } from "../../static/dashboard/js/ring.js";
import { seededRandom, under } from "./support/fakes.js";
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

const markers = (versions, range) => markersOf(ringOf(versions).series("tunables_version"), range).map(({ at, version }) => [at - START, version]);

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
});

test("a marker tells of every version since the one before it, as two may come within a second", () => {
  const found = markersOf(ringOf([1, 3, 4, 2, 2]).series("tunables_version")).map(({ first, version }) => [first, version]);
  assert.deepEqual(found, [
    [2, 3],
    [4, 4],
    [2, 2],
  ]);
});

test("a label names one version, or the first and the last of several", () => {
  assert.deepEqual([labelOf(4, 4), labelOf(4, 7)], ["v4", "v4–v7"]);
});

const crowd = (...seconds) => seconds.map((at, index) => ({ at, first: 4 + index, version: 4 + index }));

test("markers with room between them are labelled singly", () => {
  assert.deepEqual(labelsOf(crowd(0, 30, 60), 30), ["v4", "v5", "v6"]);
  assert.deepEqual(labelsOf([], 30), []);
});

test("a run without room is labelled as one, over its last", () => {
  assert.deepEqual(labelsOf(crowd(0, 5, 10, 15), 30), [null, null, null, "v4–v7"]);
  assert.deepEqual(labelsOf(crowd(0, 100, 105, 200), 30), ["v4", null, "v5–v6", "v7"]);
  assert.deepEqual(labelsOf([{ at: 0, first: 2, version: 3 }, ...crowd(5)], 30), [null, "v2–v4"]);
});

test("no two labels are nearer than the room that each takes, and none of the versions is left out", () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const random = seededRandom(seed);
    let at = 0;
    const markers = crowd(...Array.from({ length: 30 }, () => (at += 1 + under(random, 20))));
    const labels = labelsOf(markers, 25);
    const places = markers.filter((_, index) => labels[index] !== null).map((marker) => marker.at);
    assert.ok(places.slice(1).every((place, index) => place - places[index] >= 25), `seed ${seed}`);
    const told = labels.flatMap((label) => {
      const [first, last = first] = (label?.match(/\d+/g) ?? []).map(Number);
      return label === null ? [] : Array.from({ length: last - first + 1 }, (_, index) => first + index);
    });
    assert.deepEqual(told, markers.map(({ version }) => version), `seed ${seed}`);
  }
});
