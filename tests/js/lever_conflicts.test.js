import assert from "node:assert/strict";
import { test } from "node:test";

import { createLeverConflicts } from "../../static/dashboard/js/lever_conflicts.js";
import { fakeTime, settle } from "./support/fakes.js";

function open() {
  const time = fakeTime();
  const asked = [];
  const shown = [];
  const ask = (changes) => new Promise((answer, fail) => asked.push({ changes, answer, fail }));
  const conflicts = createLeverConflicts({ ask, show: (found) => shown.push(found), timers: time.timers });
  return { time, asked, shown, propose: (changes, announced_version = 1) => conflicts.render({ proposal: { changes }, frame: { announced_version } }) };
}

const FOUND = [{ fields: ["max_running"], message: "Too many." }];

test("the server is asked once typing has paused, of all changes at once", async () => {
  const { time, asked, shown, propose } = open();
  propose({ max_running: 1 });
  propose({ max_running: 12 });
  await time.advance(200);
  propose({ max_running: 123 });
  propose({ max_running: 123 });
  assert.equal(asked.length, 0);
  await time.advance(300);
  assert.deepEqual(asked.map(({ changes }) => changes), [{ max_running: 123 }]);
  asked[0].answer(FOUND);
  await settle();
  assert.deepEqual(shown, [FOUND]);
});

test("an answer that comes too late is not shown, and no answer is no conflict", async () => {
  const { time, asked, shown, propose } = open();
  propose({ max_running: 100 });
  await time.advance(300);
  propose({ max_running: 200 });
  await time.advance(300);
  asked[0].answer(FOUND);
  asked[1].fail(new Error("gone"));
  await settle();
  assert.deepEqual(shown, [[]]);
});

test("with the last change taken back nothing is left to fight", async () => {
  const { time, asked, shown, propose } = open();
  propose({ max_running: 100 });
  await time.advance(300);
  propose({});
  asked[0].answer(FOUND);
  await settle();
  assert.deepEqual(shown, [[]]);
});

test("when another version comes into force, what was typed is looked at again", async () => {
  const { time, asked, propose } = open();
  propose({ max_running: 100 }, 1);
  await time.advance(300);
  propose({ max_running: 100 }, 2);
  await time.advance(300);
  assert.equal(asked.length, 2);
});
