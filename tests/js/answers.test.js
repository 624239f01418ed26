import assert from "node:assert/strict";
import { test } from "node:test";

import { loseAnswer, observeVersions } from "../../static/dashboard/js/answers.js";
import { markSent, NO_PROPOSAL, propose } from "../../static/dashboard/js/proposal.js";
import { DEFAULTS, SPECS, specOf, version } from "./support/messages.js";

const BASE = { number: 5, values: DEFAULTS };
const editing = () => propose(NO_PROPOSAL, { spec: specOf("max_running"), text: "8", newest: BASE });
const see = (proposal, versions, { isComplete = false } = {}) =>
  observeVersions(proposal, { versions, user: "ann", specs: SPECS, isComplete });
const others = (number) => version(number, { changes: { prefill_share: [0.5, 0.9] }, author: "bob" });

test("a version that changed more than was sent is not the change that was sent", () => {
  const lost = loseAnswer(markSent(editing(), 1), { id: 1, wasSent: true });
  const more = version(6, {
    values: { max_running: 8, mode: "static" },
    changes: { max_running: [32, 8], mode: ["continuous", "static"] },
  });
  const { phase, stored, conflict } = see(lost, [more, version(5)], { isComplete: true });
  assert.deepEqual([phase, stored, conflict], ["editing", null, { newer: [more] }]);
});

test("a list that comes late does not take a newer conflict back", () => {
  const known = see(editing(), [others(7), others(6), version(5)]);
  assert.deepEqual(
    known.conflict.newer.map(({ number }) => number),
    [7, 6],
  );
  assert.equal(see(known, [others(6), version(5)]), known);
});
