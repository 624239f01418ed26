import assert from "node:assert/strict";
import { test } from "node:test";

import { ANSWER_WITHIN_MS, createCommands } from "../../static/dashboard/js/commands.js";
import { fakeTime } from "./support/fakes.js";
import { frame, refused, stored, version } from "./support/messages.js";

function open({ isOpen = () => true } = {}) {
  const time = fakeTime();
  const sent = [];
  const send = (message) => isOpen() && sent.push(message) > 0;
  return { time, sent, commands: createCommands({ send, timers: time.timers }) };
}

const CHANGE = { changes: { max_running: 8 }, basedOn: 3, reason: "try" };

test("commands go out in the protocol's words, each with an id of its own", () => {
  const { sent, commands } = open();
  commands.change(CHANGE);
  commands.rollBack({ version: 2, basedOn: 3, reason: "" });
  commands.listVersions();
  assert.deepEqual(sent, [
    { type: "change", id: 1, changes: { max_running: 8 }, based_on: 3, reason: "try" },
    { type: "roll_back", id: 2, version: 2, based_on: 3, reason: "" },
    { type: "list_versions", id: 3 },
  ]);
});

test("a change goes out with what it is to be stored with", () => {
  const { sent, commands } = open();
  const guardrail = { metric: "ttft_p95", bound: 500, window_seconds: 30, watch_seconds: 600 };
  commands.change({ ...CHANGE, guardrail, canary: true });
  assert.deepEqual(sent, [
    { type: "change", id: 1, changes: { max_running: 8 }, based_on: 3, reason: "try", guardrail, canary: true },
  ]);
});

test("each answer reaches its own command, in whatever order they come", async () => {
  const { time, commands } = open();
  const change = commands.change(CHANGE);
  const list = commands.listVersions();
  const rollBack = commands.rollBack({ version: 2, basedOn: 3, reason: "" });
  commands.receive(frame(1, 2));
  commands.receive(refused(rollBack.id, { code: "stale_version", message: "no", newer: [version(4)] }));
  commands.receive({ type: "versions", id: list.id, versions: [version(4)] });
  commands.receive(stored(change.id, version(5)));
  assert.deepEqual(await change.answer, { outcome: "stored", version: version(5) });
  assert.deepEqual(await list.answer, { outcome: "versions", versions: [version(4)] });
  const given = await rollBack.answer;
  assert.deepEqual(given, {
    outcome: "refused",
    code: "stale_version",
    message: "no",
    param: null,
    newer: [version(4)],
  });
  assert.equal(time.numTimers(), 0);
});

test("an answer to nobody's question is passed over", async () => {
  const { commands } = open();
  const { id, answer } = commands.change(CHANGE);
  commands.receive(stored(id + 1, version(9)));
  commands.receive(stored(id, version(5)));
  commands.receive(stored(id, version(6)));
  assert.equal((await answer).version.number, 5);
});

test("without an answer in time the outcome is unknown", async () => {
  const { time, commands } = open();
  const { answer } = commands.change(CHANGE);
  let outcome = null;
  void answer.then((given) => (outcome = given.outcome));
  await time.advance(ANSWER_WITHIN_MS - 1);
  assert.equal(outcome, null);
  await time.advance(1);
  assert.equal(outcome, "unknown");
});

test("with the socket every answer is lost at once", async () => {
  const { time, commands } = open();
  const pending = [commands.change(CHANGE), commands.listVersions()];
  commands.loseAll();
  assert.deepEqual(await Promise.all(pending.map(({ answer }) => answer)), [
    { outcome: "unknown" },
    { outcome: "unknown" },
  ]);
  assert.equal(time.numTimers(), 0);
});

test("what cannot be sent is known not to have been sent, and later ids are still new", async () => {
  let isOpen = false;
  const { sent, commands } = open({ isOpen: () => isOpen });
  assert.deepEqual(await commands.change(CHANGE).answer, { outcome: "not_sent" });
  isOpen = true;
  commands.listVersions();
  assert.deepEqual(sent, [{ type: "list_versions", id: 2 }]);
});
