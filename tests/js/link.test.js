import assert from "node:assert/strict";
import { test } from "node:test";

import { ANSWER_WITHIN_MS } from "../../static/dashboard/js/commands.js";
import { openLink, PROBE_AFTER_MS, PROBE_WITHIN_MS } from "../../static/dashboard/js/link.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { createStore } from "../../static/dashboard/js/store.js";
import { fakeSockets, fakeTime } from "./support/fakes.js";
import { engine, frame, hello, point, refused, stored, version } from "./support/messages.js";

const REDIS = 1_700_000_000;

function open() {
  const time = fakeTime();
  const { sockets, createSocket } = fakeSockets();
  const store = createStore(reduce, initialState({ now: time.clock() }));
  const link = openLink({
    url: "ws://x",
    store,
    createSocket,
    timers: time.timers,
    clock: time.clock,
    random: () => 1,
  });
  const newest = () => sockets.at(-1);
  const begin = (message = hello()) => {
    newest().open();
    newest().say(message);
    newest().say({ type: "history", points: [] });
  };
  const sent = (type) => newest().sent.filter((message) => message.type === type);
  return { time, sockets, store, link, newest, begin, sent, state: store.getState };
}

const EIGHT = version(2, { values: { max_running: 8 }, changes: { max_running: [32, 8] } });

/** A live page on which eight sequences were proposed and applied: the command is on its way. */
function applyEight() {
  const page = open();
  page.begin();
  page.store.dispatch({ type: "edit", name: "max_running", text: "8" });
  page.link.apply();
  return page;
}

test("it watches from the start, and after a loss from the newest point it has", async () => {
  const { time, newest, begin, sent } = open();
  begin();
  assert.deepEqual(sent("watch"), [{ type: "watch", since: null }]);
  newest().say(frame(1, REDIS + 0.5));
  newest().end(1006);
  await time.advance(500);
  newest().open();
  assert.deepEqual(sent("watch"), [{ type: "watch", since: REDIS + 0.5 }]);
});

test("every frame is acknowledged, even an old one, and also while the page is paused", () => {
  const { store, newest, begin, sent, time } = open();
  begin();
  newest().say(frame(1, REDIS));
  store.dispatch({ type: "pause", at: time.clock() });
  newest().say(frame(2, REDIS + 0.5));
  newest().say(frame(1, REDIS));
  assert.deepEqual(
    sent("ack").map(({ sequence }) => sequence),
    [1, 2, 1],
  );
});

test("the badge's state follows the socket", async () => {
  const { time, newest, begin, state } = open();
  assert.equal(state().connection.state, "connecting");
  begin();
  assert.equal(state().connection.state, "live");
  newest().end(1012);
  assert.deepEqual([state().connection.state, state().connection.code], ["lost", 1012]);
  await time.advance(500);
  begin();
  assert.equal(state().connection.state, "live");
  newest().end(4401);
  assert.equal(state().connection.state, "signed_out");
});

test("without frames the page grows stale by itself", async () => {
  const { time, newest, begin, state } = open();
  begin();
  newest().say(frame(1, REDIS));
  await time.advance(2000);
  assert.equal(state().isStale, false);
  await time.advance(1000);
  assert.equal(state().isStale, true);
});

test("a change goes out as it was proposed, and its answer comes back to it", () => {
  const { newest, sent, state } = applyEight();
  assert.deepEqual(sent("change"), [{ type: "change", id: 1, changes: { max_running: 8 }, based_on: 1, reason: "" }]);
  assert.equal(state().proposal.phase, "sending");
  newest().say(stored(1, EIGHT));
  assert.equal(state().proposal.phase, "stored");
  newest().say(frame(1, REDIS, { announced_version: 2, engines: [engine({ tunables_version: 2 })] }));
  assert.equal(state().proposal.phase, "applied");
});

test("one change is sent once, however often Apply is pressed, and nothing without an edit", () => {
  const page = applyEight();
  page.link.apply();
  assert.equal(page.sent("change").length, 1);
  const idle = open();
  idle.begin();
  idle.link.apply();
  assert.equal(idle.sent("change").length, 0);
});

test("a refused change is back in the levers", () => {
  const { newest, state } = applyEight();
  newest().say(refused(1, { code: "stale_version", newer: [version(2, { author: "bob" })] }));
  assert.deepEqual([state().proposal.phase, state().proposal.conflict.newer[0].author], ["editing", "bob"]);
});

test("a change whose answer was lost with the socket is looked for on the next", async () => {
  const { time, newest, begin, state } = applyEight();
  newest().end(1006);
  await time.advance(0);
  assert.equal(state().proposal.phase, "unknown");
  await time.advance(500);
  begin(hello({ versions: [EIGHT, version(1)] }));
  assert.deepEqual([state().proposal.phase, state().proposal.stored.number], ["stored", 2]);
});

test("a change that is not answered in time is asked about on the same socket", async () => {
  const { time, newest, sent, state } = applyEight();
  for (let elapsed = 0; elapsed < ANSWER_WITHIN_MS; elapsed += 1000) {
    newest().say(frame(elapsed + 1, REDIS + elapsed));
    await time.advance(1000);
  }
  assert.equal(state().proposal.phase, "unknown");
  const [{ id }] = sent("list_versions");
  newest().say({ type: "versions", id, versions: [version(1)] });
  assert.deepEqual([state().proposal.phase, state().proposal.changes], ["editing", { max_running: 8 }]);
});

test("without a socket a change is not sent, and not lost", async () => {
  const { time, store, link, newest, begin, state } = open();
  begin();
  newest().end(1006);
  store.dispatch({ type: "edit", name: "max_running", text: "8" });
  link.apply();
  await time.advance(0);
  assert.deepEqual([state().proposal.phase, state().proposal.texts], ["editing", { max_running: "8" }]);
  assert.match(state().proposal.notice, /not sent/);
});

test("a roll back goes out on the newest known version, and its answer is the caller's", async () => {
  const { link, newest, begin, sent, state } = open();
  assert.deepEqual(await link.rollBack(1), { outcome: "not_sent" });
  begin(hello({ versions: [EIGHT, version(1)] }));
  const answer = link.rollBack(1, "too slow");
  const [{ id, ...rest }] = sent("roll_back");
  assert.deepEqual(rest, { type: "roll_back", version: 1, based_on: 2, reason: "too slow" });
  newest().say(stored(id, version(3)));
  assert.equal((await answer).version.number, 3);
  assert.equal(state().versions[0].number, 3);
});

test("a version that is not known is asked for once", async () => {
  const { time, newest, begin, sent, state } = open();
  begin();
  newest().say(frame(1, REDIS, { announced_version: 2 }));
  newest().say(frame(2, REDIS + 0.5, { announced_version: 2 }));
  assert.equal(sent("list_versions").length, 1);
  newest().say({ type: "versions", id: sent("list_versions")[0].id, versions: [version(1)] });
  newest().say(frame(3, REDIS + 1, { announced_version: 2 }));
  assert.equal(sent("list_versions").length, 1, "the database does not have it: asking again would not help");
  newest().say(frame(4, REDIS + 2, { announced_version: 3 }));
  newest().say({ type: "versions", id: sent("list_versions")[1].id, versions: [version(3), version(2), version(1)] });
  assert.ok(state().knowsAllVersions);
  newest().end(1006);
  await time.advance(500);
  begin(hello({ versions: [version(3), version(2), version(1)] }));
  newest().say(frame(5, REDIS + 3, { announced_version: 4 }));
  assert.equal(sent("list_versions").length, 1);
});

test("a monitor that is away is no reason to reconnect: the server still answers", async () => {
  const { time, sockets, newest, begin, sent, state } = open();
  begin();
  for (let asked = 1; asked <= 5; asked += 1) {
    await time.advance(PROBE_AFTER_MS + 1000);
    assert.equal(sent("list_versions").length, asked);
    newest().say({ type: "versions", id: sent("list_versions").at(-1).id, versions: [version(1)] });
  }
  assert.equal(sockets.length, 1);
  assert.equal(state().isStale, true);
});

test("a line on which nobody answers is given up", async () => {
  const { time, sockets, begin } = open();
  begin();
  await time.advance(PROBE_AFTER_MS + PROBE_WITHIN_MS + 2000);
  assert.equal(sockets.length, 2);
  assert.ok(sockets[0].isClosed);
});

test("a page that comes back into sight tries at once, or asks whether the line still holds", async () => {
  const { time, sockets, link, newest, begin, sent } = open();
  begin();
  await time.advance(3000);
  link.retryNow();
  assert.equal(sent("list_versions").length, 1);
  newest().end(1006);
  link.retryNow();
  assert.equal(sockets.length, 2);
});

test("a server whose points have another shape is asked for the whole history", async () => {
  const { time, sockets, newest, begin, sent } = open();
  begin();
  newest().say(frame(1, REDIS));
  newest().end(1012);
  await time.advance(500);
  newest().open();
  newest().say(hello({ windows_seconds: [10, 60] }));
  assert.ok(newest().isClosed);
  await time.advance(1000);
  begin(hello({ windows_seconds: [10, 60] }));
  assert.deepEqual(sent("watch"), [{ type: "watch", since: null }]);
  assert.equal(sockets.length, 3);
});

test("after any losses the charts hold every point of the server's last quarter of an hour", async () => {
  const { time, newest, begin, state } = open();
  const history = [];
  let sequence = 0;
  let isOpen = false;
  for (let second = 0; second < 400; second += 1) {
    history.push(point(REDIS + second, { num_running: second }));
    const isDown = second % 97 > 60;
    if (isOpen && isDown) newest().end(1006);
    if (!isOpen && !isDown) {
      newest().open();
      const { since } = newest().sent[0];
      newest().say(hello());
      newest().say({ type: "history", points: history.filter(([at]) => since === null || at > since) });
    }
    isOpen = !isDown;
    if (isOpen) newest().say(frame((sequence += 1), REDIS + second, { point: { num_running: second } }));
    await time.advance(1000);
    if (!isOpen && newest().readyState === 3) await time.advance(10_000);
  }
  if (!isOpen) begin();
  const { y } = state().ring.series("num_running");
  assert.deepEqual(
    [...y],
    Array.from({ length: y.length }, (_, index) => index),
  );
  assert.ok(y.length > 390 - 37);
});
