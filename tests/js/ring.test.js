import assert from "node:assert/strict";
import { test } from "node:test";

import { createRing, RING_SECONDS } from "../../static/dashboard/js/ring.js";
import { seededRandom, under } from "./support/fakes.js";
import { INTERVALS, PERCENTILES, percentiles, point, SHAPE, WINDOWS } from "./support/messages.js";

const START = 1_700_000_000;

function ringOf(...rows) {
  const ring = createRing(SHAPE);
  for (const row of rows) ring.push(row);
  return ring;
}

function running(ring, range) {
  const { x, y } = ring.series("num_running", range);
  return [...x].map((second, index) => [second - START, Number.isNaN(y[index]) ? null : y[index]]);
}

test("an empty ring has no series", () => {
  const ring = ringOf();
  assert.equal(ring.newestSeconds, null);
  assert.equal(ring.oldest, null);
  assert.deepEqual(running(ring), []);
  assert.equal(ring.percentiles({ window: 0, interval: "ttft_seconds", percentile: 50 }).y.length, 0);
});

test("a later point of the same second replaces the tip", () => {
  const ring = ringOf(point(START + 0.1, { num_running: 1 }), point(START + 0.6, { num_running: 2 }));
  assert.deepEqual(running(ring), [[0, 2]]);
  assert.equal(ring.newestSeconds, START + 0.6);
});

test("an earlier or repeated point of the same second changes nothing", () => {
  const ring = ringOf(point(START + 0.6, { num_running: 2 }));
  const { revision } = ring;
  assert.equal(ring.push(point(START + 0.1, { num_running: 1 })), false);
  assert.equal(ring.push(point(START + 0.6, { num_running: 3 })), false);
  assert.deepEqual(running(ring), [[0, 2]]);
  assert.equal(ring.revision, revision);
});

test("seconds without a point are gaps, not zeros", () => {
  const ring = ringOf(point(START, { num_running: 1 }), point(START + 3, { num_running: 4 }));
  assert.deepEqual(running(ring), [
    [0, 1],
    [1, null],
    [2, null],
    [3, 4],
  ]);
});

test("history that comes after the first frame goes before it", () => {
  const ring = ringOf(
    point(START + 5, { num_running: 5 }),
    point(START, { num_running: 1 }),
    point(START + 2, { num_running: 2 }),
  );
  assert.deepEqual(running(ring), [
    [0, 1],
    [1, null],
    [2, 2],
    [3, null],
    [4, null],
    [5, 5],
  ]);
});

test("a range is cut to what is there", () => {
  const ring = ringOf(
    point(START, { num_running: 0 }),
    point(START + 1, { num_running: 1 }),
    point(START + 2, { num_running: 2 }),
  );
  assert.deepEqual(running(ring, { since: START + 1.7 }), [
    [1, 1],
    [2, 2],
  ]);
  assert.deepEqual(running(ring, { until: START + 1.7 }), [
    [0, 0],
    [1, 1],
  ]);
  assert.deepEqual(running(ring, { since: START + 10 }), []);
  assert.deepEqual(running(ring, { until: START - 10 }), []);
});

test("it holds a quarter of an hour and forgets what is older", () => {
  const ring = createRing(SHAPE);
  for (let second = 0; second < 2 * RING_SECONDS + 17; second += 1)
    ring.push(point(START + second, { num_running: second }));
  const places = running(ring);
  assert.equal(places.length, RING_SECONDS);
  assert.ok(places.every(([second, value]) => second === value));
  assert.equal(ring.push(point(START, { num_running: 1 })), false);
});

test("a point just too old does not take the tip's place", () => {
  const ring = ringOf(point(START + RING_SECONDS, { num_running: 1 }));
  assert.equal(ring.push(point(START, { num_running: 2 })), false);
  assert.deepEqual(running(ring), [[RING_SECONDS, 1]]);
  assert.equal(ring.push(point(START + 1, { num_running: 3 })), true);
  assert.deepEqual(running(ring, { until: START + 2 }), [
    [1, 3],
    [2, null],
  ]);
});

test("a silence longer than the ring leaves only what came after it", () => {
  const ring = createRing(SHAPE);
  for (let second = 0; second < RING_SECONDS; second += 1) ring.push(point(START + second, { num_running: 1 }));
  ring.push(point(START + 10 * RING_SECONDS, { num_running: 2 }));
  const places = running(ring);
  assert.deepEqual(places.at(-1), [10 * RING_SECONDS, 2]);
  assert.ok(places.slice(0, -1).every(([, value]) => value === null));
  assert.ok(places.every(([second], index) => second === places[0][0] + index));
});

test("each percentile of each interval and window has its own series", () => {
  const ring = ringOf(point(START, { percentiles: percentiles(3) }));
  WINDOWS.forEach((_, window) =>
    INTERVALS.forEach((interval, row) =>
      PERCENTILES.forEach((percentile, index) => {
        const expected = (3 * (100 * window + 10 * row + index)) / 1000;
        assert.equal(ring.percentiles({ window, interval, percentile }).y[0], expected);
      }),
    ),
  );
});

test("what was not measured is a gap", () => {
  const nothing = percentiles().map((rows) => rows.map((row) => row.map(() => null)));
  const ring = ringOf(point(START, { percentiles: nothing, tunables_version: null }));
  assert.ok(Number.isNaN(ring.percentiles({ window: 1, interval: "itl_seconds", percentile: 99 }).y[0]));
  assert.ok(Number.isNaN(ring.series("tunables_version").y[0]));
});

test("a name that points do not hold is an error, not an empty chart", () => {
  const ring = ringOf(point(START));
  assert.throws(() => ring.series("num_runing"), RangeError);
  assert.throws(() => ring.percentiles({ window: 9, interval: "ttft_seconds", percentile: 50 }), RangeError);
});

test("a malformed time is refused", () => {
  const ring = createRing(SHAPE);
  for (const at of [null, NaN, Infinity, -1, "now", 1e300]) assert.equal(ring.push(point(at)), false);
  assert.equal(ring.push([]), false);
  assert.equal(ring.oldest, null);
});

test("a copy stays as it is while the ring goes on", () => {
  const ring = ringOf(point(START, { num_running: 1 }));
  const copy = ring.copy();
  ring.push(point(START + 1, { num_running: 2 }));
  assert.deepEqual(running(copy), [[0, 1]]);
  assert.deepEqual(running(ring), [
    [0, 1],
    [1, 2],
  ]);
});

test("forgetting what is newer gives the tip back to the newest that stays", () => {
  const ring = ringOf(point(START + 0.4, { num_running: 1 }), point(START + 60, { num_running: 2 }));
  ring.forgetAfter(START + 30);
  assert.deepEqual(running(ring), [[0, 1]]);
  assert.equal(ring.newestSeconds, START + 0.4);
  ring.forgetAfter(START - 1);
  assert.deepEqual(running(ring), []);
  assert.equal(ring.oldest, null);
  assert.equal(ring.push(point(START - 5, { num_running: 3 })), true);
  assert.deepEqual(running(ring), [[-5, 3]]);
});

test("whatever order points come in, it holds the newest of each of the last 900 seconds", () => {
  for (let seed = 1; seed <= 12; seed += 1) {
    const random = seededRandom(seed);
    const ring = createRing(SHAPE);
    const newest = new Map();
    let head = START;
    let tip = -Infinity;
    for (let turn = 0; turn < 300; turn += 1) {
      head += random() < 0.02 ? under(random, 2000) : random() * 3;
      const at = random() < 0.3 ? head - random() * 1200 : head;
      const isKept = Math.floor(at) > tip - RING_SECONDS;
      ring.push(point(at, { num_running: turn }));
      tip = Math.max(tip, Math.floor(at));
      const known = newest.get(Math.floor(at));
      if (isKept && (known === undefined || at > known.at)) newest.set(Math.floor(at), { at, turn });
    }
    const kept = [...newest].filter(([second]) => second > tip - RING_SECONDS).sort(([one], [other]) => one - other);
    const { x, y } = ring.series("num_running");
    assert.deepEqual(
      [...x],
      Array.from({ length: tip - ring.oldest + 1 }, (_, index) => ring.oldest + index),
      `seed ${seed}`,
    );
    const found = [...x].flatMap((second, index) => (Number.isNaN(y[index]) ? [] : [[second, y[index]]]));
    assert.deepEqual(
      found,
      kept.map(([second, { turn }]) => [second, turn]),
      `seed ${seed}`,
    );
    assert.equal(ring.newestSeconds, kept.at(-1)[1].at, `seed ${seed}`);
  }
});
