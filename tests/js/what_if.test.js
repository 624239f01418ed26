/** What if?, beside a change: one question at a time, and no answer to another one. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { createWhatIf } from "../../static/dashboard/js/lab/predictions/what_if.js";
import { fakeTime, settle } from "./support/fakes.js";

const ORDERED = { url: "/7/", part_url: "/7/part/" };

function open() {
  const time = fakeTime();
  const [asked, read] = [[], []];
  const said = { problem: "", status: "", url: undefined, part: null };
  const whatIf = createWhatIf({
    order: (changes) => new Promise((answer, fail) => asked.push({ changes, answer, fail })),
    read: (url) => new Promise((answer, fail) => read.push({ url, answer, fail })),
    shown: {
      problem: (text) => (said.problem = text),
      status: (text, url) => Object.assign(said, { status: text, url }),
      part: (part) => (said.part = part),
    },
    timers: time.timers,
  });
  return { time, asked, read, said, whatIf, edit: (changes) => whatIf.render({ proposal: { changes } }) };
}

test("a prediction is read until it is over, and then said to be of this change", async () => {
  const { time, asked, read, said, whatIf } = open();
  void whatIf.ask({ max_running: 4 });
  assert.deepEqual(asked[0].changes, { max_running: 4 });
  asked[0].answer(ORDERED);
  await settle();
  read[0].answer({ part: "waits", isOver: false });
  await settle();
  assert.deepEqual(said, { problem: "", status: "It is simulated…", url: "/7/", part: "waits" });
  await time.advance(600);
  read[1].answer({ part: "figures", isOver: true });
  await settle();
  assert.deepEqual(read.map(({ url }) => url), ["/7/part/", "/7/part/"]);
  assert.deepEqual(said, { problem: "", status: "Predicted; nothing is changed yet.", url: "/7/", part: "figures" });
  await time.advance(5000);
  assert.equal(read.length, 2);
});

test("what was predicted of another change is said to be", async () => {
  const { asked, read, said, whatIf, edit } = open();
  void whatIf.ask({ max_running: 4 });
  asked[0].answer(ORDERED);
  await settle();
  read[0].answer({ part: "figures", isOver: true });
  await settle();
  edit({ max_running: 5 });
  assert.equal(said.status, "Of a change as it was before: ask again.");
  edit({ max_running: 4 });
  assert.equal(said.status, "Predicted; nothing is changed yet.");
});

test("the server's refusal is shown, and nothing else", async () => {
  const { asked, said, whatIf } = open();
  void whatIf.ask({ max_running: 0 });
  asked[0].fail(new Error("max_running must be a number from 1"));
  await settle();
  assert.deepEqual(said, { problem: "max_running must be a number from 1", status: "", url: undefined, part: null });
});

test("an answer to an earlier question is not shown", async () => {
  const { asked, read, said, whatIf } = open();
  void whatIf.ask({ max_running: 4 });
  void whatIf.ask({ max_running: 8 });
  asked[0].answer(ORDERED);
  asked[1].answer({ url: "/8/", part_url: "/8/part/" });
  await settle();
  assert.deepEqual(read.map(({ url }) => url), ["/8/part/"]);
  void whatIf.ask({ max_running: 9 });
  read[0].answer({ part: "of the second", isOver: true });
  await settle();
  assert.equal(said.part, null);
});
