import assert from "node:assert/strict";
import { test } from "node:test";

import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { standingOf } from "../../static/dashboard/js/versions.js";
import { engine, frame, hello, version } from "./support/messages.js";

const NOW = 1_700_000_000_000;

/** A page that knows versions 1 and 2, and heard of engines that run these (null: it heard of none yet). */
function standing(running) {
  const messages = [hello({ versions: [version(2), version(1)] })];
  if (running !== null) {
    const engines = running.map((number) => engine({ tunables_version: number }));
    messages.push(frame(1, NOW / 1000, { announced_version: 2, engines }));
  }
  const actions = messages.map((message) => ({ type: "received", message, at: NOW }));
  return standingOf(actions.reduce(reduce, initialState({ now: NOW })));
}

test("a version that every engine runs is in force", () => {
  assert.equal(standing([2, 2]), "version 2 in force");
  assert.equal(standing([2, 1]), "version 1 in force");
});

test("where no engine lives that is what is said, and not that the version was never applied", () => {
  assert.equal(standing([]), "version 2, no engine runs");
});

test("where engines run what is not known, those that run the stored version are counted", () => {
  assert.equal(standing([0, 2]), "version 2, applied on 1 of 2");
});

test("before the first frame nothing is said of engines, and before the hello nothing at all", () => {
  assert.equal(standing(null), "version 2, stored");
  assert.equal(standingOf(initialState({ now: NOW })), "");
});
