import assert from "node:assert/strict";
import { test } from "node:test";

import {
  LONGEST_DELAY_MS,
  openLiveSocket,
  SILENT_START_MS,
  STEADY_AFTER_MS,
} from "../../static/dashboard/js/socket.js";
import { fakeSockets, fakeTime, seededRandom } from "./support/fakes.js";
import { hello } from "./support/messages.js";

const URL = "ws://footplate/console/live/default";

function open(options = {}) {
  const time = fakeTime(0);
  const { sockets, createSocket } = fakeSockets();
  const messages = [];
  const states = [];
  const socket = openLiveSocket({
    url: URL,
    firstMessage: () => ({ type: "watch", since: null }),
    onMessage: (message) => messages.push(message),
    onState: (state) => states.push(state),
    createSocket,
    timers: time.timers,
    clock: time.clock,
    random: () => 1,
    ...options,
  });
  return { time, sockets, messages, states, socket, newest: () => sockets.at(-1) };
}

test("it connects at once and says the first word on each connection", async () => {
  const { time, sockets, states, newest } = open();
  assert.equal(newest().url, URL);
  newest().open();
  newest().end(1006);
  await time.advance(500);
  newest().open();
  assert.deepEqual(
    sockets.map(({ sent }) => sent),
    [[{ type: "watch", since: null }], [{ type: "watch", since: null }]],
  );
  assert.deepEqual(
    states.map(({ state }) => state),
    ["connecting", "open", "lost", "connecting", "open"],
  );
});

test("messages are read, and what is none is passed over", () => {
  const { messages, newest } = open();
  newest().open();
  newest().say(hello());
  for (const text of ["", "{", "null", "[]", '"frame"', '{"type": 3}']) newest().sayText(text);
  assert.deepEqual(messages, [hello()]);
});

test("each failure doubles the wait, up to ten seconds", async () => {
  const { time, sockets, states, newest } = open();
  const waits = [];
  for (let attempt = 1; attempt <= 8; attempt += 1) {
    newest().end(1006);
    const { retryAt } = states.at(-1);
    assert.equal(states.at(-1).attempt, attempt);
    waits.push(retryAt - time.clock());
    await time.advance(retryAt - time.clock() - 1);
    assert.equal(sockets.length, attempt);
    await time.advance(1);
    assert.equal(sockets.length, attempt + 1);
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]);
});

test("chance spreads the attempts of many pages", () => {
  const random = seededRandom(1);
  const waits = Array.from({ length: 50 }, () => {
    const { newest, states } = open({ random });
    newest().end(1012);
    return states.at(-1).retryAt;
  });
  assert.ok(waits.every((wait) => wait >= 250 && wait <= 500));
  assert.ok(new Set(waits).size > 40);
});

test("a connection that lasted makes up for those that failed, one that only began does not", async () => {
  const { time, states, newest } = open();
  const outcome = () => [states.at(-1).attempt, states.at(-1).retryAt - time.clock()];
  newest().open();
  newest().end(1011);
  assert.deepEqual(outcome(), [1, 500]);
  await time.advance(500);
  newest().open();
  newest().say(hello());
  await time.advance(STEADY_AFTER_MS - 1);
  newest().end(1011);
  assert.deepEqual(outcome(), [2, 1000]);
  await time.advance(1000);
  newest().open();
  for (let elapsed = 0; elapsed < STEADY_AFTER_MS; elapsed += 500) {
    newest().say(hello());
    await time.advance(500);
  }
  newest().end(4408);
  assert.deepEqual([...outcome(), states.at(-1).code], [1, 500, 4408]);
});

test("a server that greets and hangs up is not called in a loop", async () => {
  const { time, sockets, newest } = open();
  for (let second = 0; second < 60; second += 1) {
    if (newest().readyState === 0) {
      newest().open();
      newest().say(hello());
      newest().end(1011);
    }
    await time.advance(1000);
  }
  assert.ok(sockets.length <= 10, `${sockets.length} connections in a minute`);
});

test("a signed-out and a refused page tries no more", async () => {
  for (const [code, state] of [
    [4401, "signed_out"],
    [4403, "refused"],
    [4404, "refused"],
  ]) {
    const { time, sockets, states, socket, newest } = open();
    newest().open();
    newest().end(code);
    assert.deepEqual(states.at(-1), { state, attempt: 0, retryAt: null, code });
    socket.retryNow();
    await time.advance(60_000);
    assert.equal(sockets.length, 1);
    assert.equal(time.numTimers(), 0);
  }
});

test("a restart, a slow page and a broken line are tried again", async () => {
  for (const code of [1000, 1006, 1012, 4400, 4408]) {
    const { time, sockets, newest } = open();
    newest().open();
    newest().end(code);
    await time.advance(500);
    assert.equal(sockets.length, 2, String(code));
  }
});

test("the wait can be ended, and a connection that stands is left alone", async () => {
  const { time, sockets, socket, newest } = open();
  socket.retryNow();
  assert.equal(sockets.length, 1);
  newest().open();
  socket.retryNow();
  assert.equal(sockets.length, 1);
  newest().end(1006);
  socket.retryNow();
  assert.equal(sockets.length, 2);
  await time.advance(10_000);
  assert.equal(sockets.length, 2, "the wait that was ended starts nothing more");
});

test("a connection that says nothing after its start is given up", async () => {
  const { time, sockets, states, newest } = open();
  newest().open();
  await time.advance(SILENT_START_MS - 1);
  assert.equal(sockets.length, 1);
  await time.advance(1);
  assert.equal(states.at(-1).state, "lost");
  assert.ok(sockets[0].isClosed);
  await time.advance(500);
  assert.equal(sockets.length, 2);
});

test("a connection that was silent after it spoke is left alone: frames stop with the monitor", async () => {
  const { time, sockets, newest } = open();
  newest().open();
  newest().say(hello());
  await time.advance(3_600_000);
  assert.equal(sockets.length, 1);
});

test("what a given-up socket still says is nobody's concern", async () => {
  const { time, sockets, messages, states, socket } = open();
  sockets[0].open();
  sockets[0].say(hello());
  socket.reopen();
  await time.advance(500);
  const before = states.length;
  sockets[0].say(hello());
  sockets[0].end(4401);
  sockets[0].onopen({});
  assert.equal(messages.length, 1);
  assert.equal(states.length, before);
  assert.equal(sockets.length, 2);
});

test("nothing is sent, or kept to be sent, without an open socket", async () => {
  const { time, socket, newest } = open();
  const ack = { type: "ack", sequence: 1 };
  assert.equal(socket.send(ack), false);
  newest().open();
  assert.equal(socket.send(ack), true);
  newest().end(1006);
  assert.equal(socket.send(ack), false);
  await time.advance(500);
  newest().open();
  assert.deepEqual(newest().sent, [{ type: "watch", since: null }]);
});

test("a socket that cannot even be made is tried again", async () => {
  let failures = 0;
  const { time, states } = open({
    createSocket: () => {
      failures += 1;
      throw new Error("no network");
    },
  });
  await time.advance(500);
  assert.equal(failures, 2);
  assert.deepEqual([states.at(-1).state, states.at(-1).attempt], ["lost", 2]);
});

test("however connections end, there is never more than one, and the page always comes back", async () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const random = seededRandom(seed);
    const { time, sockets, socket, states, newest } = open({ random });
    const moves = [
      () => newest().readyState === 0 && newest().open(),
      () => newest().readyState === 1 && newest().say(hello()),
      () => newest().readyState < 2 && newest().end(random() < 0.5 ? 1006 : 4408),
      () => socket.reopen(),
      () => socket.retryNow(),
    ];
    for (let turn = 0; turn < 100; turn += 1) {
      moves[Math.floor(random() * moves.length)]();
      const alive = sockets.filter(({ readyState }) => readyState < 2);
      assert.ok(alive.length <= 1, `seed ${seed}`);
      if (random() < 0.3) await time.advance(random() * 2000);
    }
    if (newest().readyState > 1) await time.advance(LONGEST_DELAY_MS);
    newest().open();
    newest().say(hello());
    assert.equal(socket.send({ type: "ack", sequence: 1 }), true, `seed ${seed}`);
    assert.notEqual(states.at(-1).state, "lost", `seed ${seed}`);
  }
});
