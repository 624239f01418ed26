import assert from "node:assert/strict";
import { test } from "node:test";

import { runsOf } from "../../static/dashboard/js/steps_lanes.js";
import {
  createLayout,
  DECODE,
  ENDED,
  HELD,
  IDLE,
  NOTHING,
  PADDED,
  PREEMPTED,
  PREFILL,
  WAITING,
} from "../../static/dashboard/js/steps_layout.js";
import { createStepsRing } from "../../static/dashboard/js/steps_ring.js";
import { find, hashOf, placeIn } from "../../static/dashboard/js/steps_place.js";
import { createRowReader, shortName } from "../../static/dashboard/js/steps_rows.js";
import { pick, seededRandom, under } from "./support/fakes.js";
import { batchOf, FIELDS } from "./support/steps.js";

function ringOf(...batches) {
  const ring = createStepsRing(FIELDS);
  for (const steps of batches) ring.add([batchOf(steps)]);
  return ring;
}

/** The cells of the first lanes, a row a lane. */
function cells(ring, numLanes) {
  return Array.from({ length: numLanes }, (_, lane) =>
    Array.from({ length: ring.end - ring.first }, (__, place) => ring.at(ring.first + place).cells[lane]),
  );
}

test("a sequence keeps its lane from waiting to its end, and the next one gets it", () => {
  const ring = ringOf(
    [
      { step: 1, prefill: { a: 4 }, waiting: ["b"] },
      { step: 2, decode: ["a"], prefill: { b: 9 } },
      { step: 3, decode: ["a", "b"], ended: ["a"] },
    ],
    [{ step: 4, decode: ["b"], prefill: { c: 2 } }],
  );
  assert.deepEqual(cells(ring, 3), [
    [PREFILL, DECODE, DECODE | ENDED, PREFILL],
    [WAITING, PREFILL, DECODE, DECODE],
    [NOTHING, NOTHING, NOTHING, NOTHING],
  ]);
  assert.deepEqual(
    ring.at(3).sequences.slice(0, 2).map(({ requestId }) => requestId),
    ["c", "b"],
  );
});

test("whoever runs and is not computed is held, and whoever was preempted waits", () => {
  const ring = ringOf([
    { step: 1, prefill: { a: 4, b: 4 } },
    { step: 2, decode: ["a"], waiting: [] },
    { step: 3, decode: ["a"], preempted: ["b"], waiting: ["b"] },
    { step: 4, decode: ["a"] },
    { step: 5, decode: ["a"], prefill: { b: 5 } },
  ]);
  assert.deepEqual(cells(ring, 2)[1], [PREFILL, HELD, PREEMPTED, WAITING, PREFILL]);
});

test("whoever ended between two steps is seen to end in the later one", () => {
  const ring = ringOf([
    { step: 1, prefill: { a: 4, b: 4 } },
    { step: 2, decode: ["b"], ended: ["a"] },
    { step: 3, decode: ["b"] },
  ]);
  assert.deepEqual(cells(ring, 1)[0], [PREFILL, HELD | ENDED, NOTHING]);
});

test("one that waits gives its lane up for one that runs where there are too few", () => {
  const layout = createLayout({ numLanes: 2 });
  const reader = createRowReader(FIELDS);
  const [first, second] = reader.read(
    batchOf([
      { step: 1, prefill: { a: 1 }, waiting: ["b", "c"] },
      { step: 2, decode: ["a"], prefill: { c: 3 }, waiting: ["b"] },
    ]),
  );
  const [one] = layout.add(first);
  const [two] = layout.add(second);
  assert.equal(one.numHidden, 1);
  assert.deepEqual([...two.cells], [DECODE, PREFILL]);
  assert.equal(two.numHidden, 1);
});

test("steps that were lost leave a hole, and who is not seen after it has no lane any more", () => {
  const ring = ringOf(
    [{ step: 1, prefill: { a: 4, b: 4 } }],
    [
      { step: 5, decode: ["b"], prefill: { c: 1 } },
      { step: 6, decode: ["b", "c"] },
    ],
  );
  assert.equal(ring.at(1).row, null);
  assert.equal(ring.at(1).missing, 3);
  assert.equal(ring.numMissing, 3);
  assert.deepEqual(cells(ring, 2), [
    [PREFILL, NOTHING, PREFILL, DECODE],
    [PREFILL, NOTHING, DECODE, DECODE],
  ]);
});

test("steps that come twice are there once", () => {
  const ring = ringOf([{ step: 1, decode: ["a"] }, { step: 2, decode: ["a"] }], [{ step: 2, decode: ["a"] }]);
  assert.equal(ring.add([batchOf([{ step: 2, decode: ["a"] }])]), 0);
  assert.equal(ring.end, 2);
});

test("a static batch shows its padding and the places that stay idle until it has run to its end", () => {
  const isStatic = true;
  const ring = ringOf([
    { step: 1, isStatic, prefill: { a: 4, b: 9 }, padded: 5 },
    { step: 2, isStatic, decode: ["a", "b"], ended: ["a"], waiting: ["c"] },
    { step: 3, isStatic, decode: ["b"], padded: 1, waiting: ["c"] },
    { step: 4, isStatic, decode: ["b"], padded: 1, waiting: ["c"], ended: ["b"] },
    { step: 5, isStatic, prefill: { c: 3 } },
    { step: 6, isStatic, decode: ["c"] },
  ]);
  assert.deepEqual(cells(ring, 3), [
    [PREFILL | PADDED, DECODE | ENDED, IDLE, IDLE, NOTHING, NOTHING],
    [PREFILL, DECODE, DECODE, DECODE | ENDED, NOTHING, NOTHING],
    [NOTHING, WAITING, WAITING, WAITING, PREFILL, DECODE],
  ]);
});

test("the ring is bounded, and its columns keep their numbers", () => {
  const ring = createStepsRing(FIELDS, { capacity: 100 });
  for (let first = 1; first <= 2000; first += 20) {
    ring.add([batchOf(Array.from({ length: 20 }, (_, index) => ({ step: first + index, decode: ["a"] })))]);
  }
  assert.equal(ring.end, 2000);
  assert.ok(ring.end - ring.first <= 500);
  assert.equal(ring.at(1999).row.step, 2000);
  assert.equal(ring.at(ring.first - 1), null);
  assert.equal(ring.rows().length, ring.end - ring.first);
});

test("whatever happens, no lane has two sequences and everyone computed is seen", () => {
  const random = seededRandom(7);
  const ring = createStepsRing(FIELDS);
  let [running, waiting, named] = [[], [], 0];
  for (let step = 1; step <= 600; step += 1) {
    while (under(random, 3) === 0) waiting.push(`r${(named += 1)}`);
    const prefill = {};
    while (running.length < 48 && waiting.length > 0 && under(random, 2) === 0) {
      const name = waiting.shift();
      prefill[name] = 1 + under(random, 40);
      running.push(name);
    }
    const preempted = running.length > 2 && under(random, 40) === 0 ? [running.pop()] : [];
    for (const name of preempted) delete prefill[name];
    waiting.unshift(...preempted);
    const decode = running.filter((name) => !(name in prefill));
    const ended = running.length > 0 && under(random, 4) === 0 ? [pick(random, running)] : [];
    running = running.filter((name) => !ended.includes(name));
    ring.add([batchOf([{ step, decode, prefill, preempted, ended, waiting: waiting.slice(0, 32) }])]);
    const { cells: drawn, sequences, numHidden, row } = ring.at(ring.end - 1);
    const holders = sequences.filter((sequence) => sequence !== null);
    assert.equal(new Set(holders).size, holders.length);
    for (const { sequence, kind } of row.parts) {
      const lane = sequences.indexOf(sequence);
      assert.ok(lane >= 0 && drawn[lane] !== NOTHING, `${sequence.requestId} is not seen in step ${step}`);
      assert.equal((drawn[lane] & 7) === PREEMPTED, kind === "preempted");
    }
    assert.ok(numHidden <= Math.max(0, row.parts.length + row.waiting.length - 64));
  }
});

test("cells side by side are drawn as one, and an end ends it", () => {
  const ring = ringOf([
    { step: 1, prefill: { a: 4 } },
    { step: 2, decode: ["a"] },
    { step: 3, decode: ["a"], ended: ["a"] },
    { step: 4, decode: ["b"] },
  ]);
  const columns = [0, 1, 2, 3].map((number) => ring.at(number));
  const { byKind, padded, ended } = runsOf(columns, 1);
  assert.deepEqual(byKind[PREFILL], [0, 0, 1]);
  assert.deepEqual(byKind[DECODE], [0, 1, 2, 0, 2, 3, 0, 3, 4]);
  assert.deepEqual(ended, [0, 2, 3]);
  assert.deepEqual(padded, []);
  assert.deepEqual(runsOf([], 2).byKind.flat(), []);
});

test("a sequence is told by its request, prompt and choice", () => {
  const id = `req_${"0123456789abcdef".repeat(2)}`;
  assert.equal(shortName({ requestId: `${id}-3`, choice: 0 }), "012345-3");
  assert.equal(shortName({ requestId: id, choice: 2 }), "012345·2");
});

test("an address points at a step or at a request's first, where it is still there", () => {
  const ring = ringOf([
    { step: 7, decode: ["x"], waiting: ["req_a"] },
    { step: 8, decode: ["x"], prefill: { req_a: 3 } },
    { step: 9, decode: ["x", "req_a"] },
  ]);
  assert.deepEqual(find(ring, placeIn("#step=9")), { column: 2, lane: 0 });
  assert.deepEqual(find(ring, placeIn("#request=req_a")), { column: 1, lane: 1 });
  assert.equal(find(ring, placeIn("#request=req_b")), null);
  // Each prompt of a call is a request of its own in the log.
  const [first, third] = [`req_${"0".repeat(32)}`, `req_${"0".repeat(32)}-2`];
  const prompts = ringOf([{ step: 1, prefill: { [third]: 3 } }, { step: 2, prefill: { [first]: 3 } }]);
  assert.equal(find(prompts, placeIn(`#request=${first}`))?.column, 1);
  assert.equal(find(prompts, placeIn(`#request=${third}`))?.column, 0);
  assert.equal(find(ring, placeIn("#step=6")), null);
  for (const hash of ["", "#content", "#step=", "#step=x", "#request=a b", `#request=${"a".repeat(101)}`]) {
    assert.equal(placeIn(hash), null, hash);
  }
  assert.deepEqual(placeIn(hashOf(12)), { step: 12 });
  assert.equal(hashOf(null), "");
});
