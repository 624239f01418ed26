import assert from "node:assert/strict";
import { test } from "node:test";

import { openLink } from "../../static/dashboard/js/link.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { hasOtherRights } from "../../static/dashboard/js/status.js";
import { createStore } from "../../static/dashboard/js/store.js";
import { fakeSockets, fakeTime } from "./support/fakes.js";
import { frame, hello, version } from "./support/messages.js";

const REDIS = 1_700_000_000;

test("a page is outdated when the server grants other rights than it was drawn with", () => {
  assert.equal(hasOtherRights({ hello: hello({ may_steer: true }) }, "true"), false);
  assert.equal(hasOtherRights({ hello: hello({ may_steer: false }) }, "false"), false);
  assert.equal(hasOtherRights({ hello: hello({ may_steer: false }) }, "true"), true);
  assert.equal(hasOtherRights({ hello: hello({ may_steer: true }) }, "false"), true);
  assert.equal(hasOtherRights({ hello: null }, "true"), false, "nothing is known before the first hello");
});

test("another hello on the same connection changes rights and versions, and nothing else", () => {
  const time = fakeTime();
  const { sockets, createSocket } = fakeSockets();
  const store = createStore(reduce, initialState({ now: time.clock() }));
  openLink({ url: "ws://x", store, createSocket, timers: time.timers, clock: time.clock, random: () => 1 });
  const [socket] = sockets;
  socket.open();
  socket.say(hello());
  socket.say({ type: "history", points: [] });
  socket.say(frame(1, REDIS));
  store.dispatch({ type: "edit", name: "max_running", text: "8" });
  const before = store.getState();

  socket.say(hello({ may_steer: false, versions: [version(2), version(1)] }));
  const after = store.getState();
  assert.equal(after.hello.may_steer, false);
  assert.deepEqual(
    after.versions.map(({ number }) => number),
    [2, 1],
  );
  assert.equal(after.connection.state, "live");
  assert.equal(after.ring, before.ring, "the figures stay");
  assert.equal(after.frame, before.frame);
  assert.deepEqual(after.proposal.texts, { max_running: "8" }, "so do edits");
  assert.equal(sockets.length, 1, "nothing connects anew");
  assert.equal(socket.sent.filter(({ type }) => type === "watch").length, 1, "watch is said once a connection");
});
