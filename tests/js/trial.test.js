import assert from "node:assert/strict";
import { test } from "node:test";

import { appliedWords } from "../../static/dashboard/js/progress.js";
import { trialInWords } from "../../static/dashboard/js/trial_notice.js";

const TRIAL = { version: 12, engine_id: "engine-1", since: 1000 };
const ENGINES = [{ tunables_version: 12 }, { tunables_version: 11 }];

const noticeAt = (seconds, trial = TRIAL) => trialInWords({ paused: null, now: 1000 * seconds, frame: { trial } });

test("Live tells which version is tried, where, and since when", () => {
  const told = (lasted) =>
    `Version 12 is tried on engine-1 alone ${lasted}; the other engines run what is in force.`;
  assert.equal(noticeAt(1059), told("since just now"));
  assert.equal(noticeAt(1000 + 185), told("for 3 m"));
  assert.equal(noticeAt(1000 + 2 * 3600 + 59), told("for 2 h 00 m"));
  assert.equal(noticeAt(900), told("since just now"));
});

test("how long is told by the server's clock, and stands still while paused", () => {
  const ring = { newestSeconds: 1000 + 185 };
  const moment = { frame: { trial: TRIAL }, ring };
  assert.match(trialInWords({ paused: null, now: 0, ...moment }), /alone for 3 m;/);
  assert.match(trialInWords({ paused: moment, now: 9e9, frame: { trial: null } }), /alone for 3 m;/);
});

test("nothing is told where nothing is tried, or an older server tells of none", () => {
  assert.equal(noticeAt(2000, null), "");
  assert.equal(trialInWords({ paused: null, now: 0, frame: {} }), "");
  assert.equal(trialInWords({ paused: null, now: 0, frame: null }), "");
});

test("while paused, the moment of the pause is told of", () => {
  const paused = { frame: { trial: TRIAL } };
  assert.match(trialInWords({ paused, now: 2_000_000, frame: { trial: null } }), /^Version 12 is tried/);
});

test("a change that one engine tries waits for no other engine", () => {
  const proposal = { phase: "stored", stored: { number: 12 }, appliedOn: 0 };
  const words = (trial) => appliedWords({ proposal, frame: { engines: ENGINES, trial } });
  assert.equal(words(TRIAL), "tried on engine-1 alone until it is taken to all, or back");
  assert.equal(words({ ...TRIAL, version: 13 }), "applied on 1 of 2 engines");
  assert.equal(words(null), "applied on 1 of 2 engines");
});
