import assert from "node:assert/strict";
import { test } from "node:test";

import { openStepsLink, SILENT_MS } from "../../static/dashboard/js/steps_link.js";
import { addressOf } from "../../static/dashboard/js/steps_detail.js";
import { membersOf, spoken, timeOf, workOf } from "../../static/dashboard/js/steps_words.js";
import { fakeSockets, fakeTime } from "./support/fakes.js";
import { batchOf, FIELDS } from "./support/steps.js";

const ENGINES = [
  { engine_id: "e1", name: "host:default" },
  { engine_id: "e2", name: "host:default" },
];

function openLink({ chosen = "" } = {}) {
  const { sockets, createSocket } = fakeSockets();
  const time = fakeTime();
  const seen = [];
  const onChange = (known) => seen.push(known);
  openStepsLink({ url: "ws://x/", chosen, onChange, createSocket, random: () => 0.5, ...time });
  return {
    time,
    sockets,
    get socket() {
      return sockets.at(-1);
    },
    get known() {
      return seen.at(-1);
    },
    greet(engine = "e1", engines = ENGINES.slice(0, 1)) {
      this.socket.open();
      this.socket.say({ type: "hello", pool: "p", engine, engines, row_fields: FIELDS });
    },
    steps(sequence, ...steps) {
      this.socket.say({ type: "steps", sequence, batches: [batchOf(steps)] });
    },
  };
}

test("a page asks for steps, takes them in and acknowledges them", () => {
  const link = openLink();
  link.greet();
  assert.deepEqual(link.socket.sent, [{ type: "watch", engine: null, after: 0 }]);
  assert.equal(link.known.hasHistory, false);
  link.steps(1, { step: 4, decode: ["a"] }, { step: 5, decode: ["a"] });
  assert.deepEqual(link.socket.sent[1], { type: "ack", sequence: 1 });
  assert.equal(link.known.ring.lastStep, 5);
  assert.equal(link.known.hasHistory, true);
});

test("after a loss it asks for what it lacks of the same engine, and keeps what it has", async () => {
  const link = openLink();
  link.greet();
  link.steps(1, { step: 1, decode: ["a"] });
  const { ring } = link.known;
  link.socket.end(1006);
  await link.time.advance(1000);
  link.greet();
  assert.deepEqual(link.socket.sent[0], { type: "watch", engine: "e1", after: 1 });
  assert.equal(link.known.ring, ring);
  link.steps(1, { step: 2, decode: ["a"] });
  assert.equal(ring.end, 2);
});

test("it goes on with the next engine where its own has gone", async () => {
  const link = openLink();
  link.greet();
  link.steps(1, { step: 9, decode: ["a"] });
  const { ring } = link.known;
  link.socket.say({ type: "engines", engines: [] });
  assert.equal(link.known.hasGone, true);
  assert.equal(link.sockets.length, 1);
  link.socket.say({ type: "engines", engines: [ENGINES[1]] });
  await link.time.advance(1000);
  link.greet("e2", [ENGINES[1]]);
  assert.deepEqual(link.socket.sent[0], { type: "watch", engine: null, after: 0 });
  assert.notEqual(link.known.ring, ring);
  assert.equal(link.known.hasGone, false);
  link.steps(1, { step: 1, decode: ["b"] });
  assert.equal(link.known.ring.lastStep, 1);
});

test("an engine that the address names is not left for another", async () => {
  const link = openLink({ chosen: "e1" });
  link.greet("e1", ENGINES);
  link.socket.say({ type: "engines", engines: [ENGINES[1]] });
  await link.time.advance(2000);
  assert.equal(link.sockets.length, 1);
  assert.equal(link.known.hasGone, true);
});

test("a page without an engine begins with the first that comes", async () => {
  const link = openLink();
  link.greet(null, []);
  assert.equal(link.known.ring, null);
  link.socket.say({ type: "engines", engines: ENGINES });
  await link.time.advance(1000);
  assert.equal(link.sockets.length, 2);
});

test("a line on which nothing is heard is given up", async () => {
  const link = openLink();
  link.greet();
  link.steps(1, { step: 1, decode: ["a"] });
  for (let second = 0; second < 30; second += 3) {
    await link.time.advance(3000);
    link.socket.say({ type: "engines", engines: ENGINES.slice(0, 1) });
  }
  assert.equal(link.sockets.length, 1);
  await link.time.advance(SILENT_MS + 3000);
  assert.ok(link.sockets.length > 1);
});

test("a step is told in words", () => {
  const link = openLink();
  link.greet();
  link.steps(1, { step: 1, prefill: { a: 7 }, waiting: ["b"] }, {
    step: 2,
    decode: ["a"],
    prefill: { b: 128 },
    waiting: ["c"],
    ended: ["a", "z"],
    padded: 3,
    isStatic: true,
  });
  const column = link.known.ring.at(1);
  assert.equal(workOf(column.row), "1 decode, 1 prefill (128 tokens), 2 finished, 3 padded or idle, 1 waiting");
  assert.equal(timeOf(column.row), "10.0 ms: forward 8.00 ms, sample 1.00 ms, prepare 0.50 ms, update 0.20 ms");
  assert.match(spoken(column, 1), /^Step 2, 10\.0 ms, 1 decode.*\. Lane 2: b: prefill, 128 tokens$/);
  assert.deepEqual(
    membersOf(column.row).map(({ sequence, words, tokens }) => [sequence.requestId, words, tokens]),
    [
      ["a", "decode, then finished", 1],
      ["b", "prefill", 128],
      ["z", "finished before it", null],
      ["c", "waiting", null],
    ],
  );
});

test("whoever may not see requests is led to none", () => {
  assert.equal(addressOf("", { requestId: "req_1", choice: 0 }), "");
  assert.equal(addressOf("/console/requests/", { requestId: "a/b", choice: 0 }), "/console/requests/a%2Fb/");
});

test("a sequence of a later prompt leads to that prompt's own request", () => {
  const requestId = `req_${"0123456789abcdef".repeat(2)}-3`;
  assert.equal(addressOf("/r/", { requestId, choice: 1 }), `/r/${requestId}/`);
});
