import assert from "node:assert/strict";
import { test } from "node:test";

import {
  acceptRefused,
  acceptStored,
  loseAnswer,
  observeEngines,
  observeVersions,
} from "../../static/dashboard/js/answers.js";
import {
  canSend,
  changesOf,
  discard,
  markSent,
  NO_PROPOSAL,
  propose,
  rebase,
  setReason,
  withdraw,
} from "../../static/dashboard/js/proposal.js";
import { DEFAULTS, engine, SPECS, specOf, version } from "./support/messages.js";

const NEWEST = { number: 5, values: DEFAULTS };

const edit = (proposal, name, text, newest = NEWEST) => propose(proposal, { spec: specOf(name), text, newest });
const see = (proposal, versions, options = {}) =>
  observeVersions(proposal, { versions, user: "ann", specs: SPECS, isComplete: false, ...options });
const accept = (proposal, id, info) => acceptStored(proposal, { id, version: info }, SPECS);
const refuse = (proposal, id, values = {}) =>
  acceptRefused(proposal, { id, code: "invalid_value", message: "no", param: null, newer: [], ...values });

/** Eight sequences proposed on version 5, and sent as command 1. */
const sentEight = () => markSent(setReason(edit(NO_PROPOSAL, "max_running", "8"), "too slow"), 1);
const eight = (number = 6, rest = {}) =>
  version(number, { values: { max_running: 8 }, changes: { max_running: [32, 8] }, ...rest });
const others = (number = 6) =>
  version(number, { values: { prefill_share: 0.9 }, changes: { prefill_share: [0.5, 0.9] }, author: "bob" });

test("the first edit begins a proposal on the newest version", () => {
  const proposal = edit(NO_PROPOSAL, "max_running", "8");
  assert.equal(proposal.phase, "editing");
  assert.equal(proposal.base.number, 5);
  assert.deepEqual(proposal.changes, { max_running: 8 });
  assert.deepEqual(changesOf(proposal), [{ name: "max_running", from: 32, to: 8 }]);
  assert.ok(canSend(proposal));
});

test("the base stays that of the first edit", () => {
  const proposal = edit(edit(NO_PROPOSAL, "max_running", "8"), "mode", "static", { number: 6, values: DEFAULTS });
  assert.equal(proposal.base.number, 5);
});

test("a name is proposed, and one that is emptied again is no change", () => {
  const spec = { ...specOf("mode"), name: "long_prompt_pool", kind: "name", default: "", choices: [] };
  const newest = { number: 5, values: { ...DEFAULTS, long_prompt_pool: "" } };
  const named = propose(NO_PROPOSAL, { spec, text: "bulk", newest });
  assert.deepEqual(changesOf(named), [{ name: "long_prompt_pool", from: "", to: "bulk" }]);
  assert.ok(canSend(named));
  const wrong = propose(named, { spec, text: "bulk pool", newest });
  assert.ok(!canSend(wrong));
  const emptied = propose(wrong, { spec, text: "", newest });
  assert.equal(emptied.phase, "idle");
  assert.deepEqual([emptied.texts, emptied.errors], [{}, {}]);
});

test("an edit back to the base's value is no change", () => {
  const proposal = edit(edit(NO_PROPOSAL, "max_running", "8"), "max_running", "32");
  assert.equal(proposal.phase, "idle");
  assert.deepEqual(proposal.texts, {});
  assert.ok(!canSend(proposal));
});

test("a number half typed keeps its text though it changes nothing yet", () => {
  const proposal = edit(NO_PROPOSAL, "batch_window_ms", "0.");
  assert.deepEqual([proposal.phase, proposal.texts], ["idle", { batch_window_ms: "0." }]);
  assert.deepEqual(edit(proposal, "batch_window_ms", "0.5").changes, { batch_window_ms: 0.5 });
});

test("an invalid value keeps its text, has its error and forbids sending", () => {
  const proposal = edit(edit(NO_PROPOSAL, "mode", "static"), "max_running", "2000");
  assert.deepEqual(proposal.texts, { mode: "static", max_running: "2000" });
  assert.deepEqual(proposal.changes, { mode: "static" });
  assert.match(proposal.errors.max_running, /from 1 to 1024, not 2000$/);
  assert.ok(!canSend(proposal));
  assert.ok(canSend(edit(proposal, "max_running", "20")));
});

test("one edit or all can be taken back", () => {
  const both = setReason(edit(edit(NO_PROPOSAL, "mode", "static"), "max_running", "8"), "why not");
  assert.deepEqual(withdraw(both, "mode").changes, { max_running: 8 });
  assert.equal(withdraw(withdraw(both, "mode"), "max_running").phase, "idle");
  assert.equal(discard(both), NO_PROPOSAL);
});

test("a reason goes with the last edit that is taken back, and stays with any other", () => {
  const both = setReason(edit(edit(NO_PROPOSAL, "mode", "static"), "max_running", "8"), "why not");
  assert.equal(withdraw(both, "mode").reason, "why not");
  assert.equal(withdraw(withdraw(both, "mode"), "max_running").reason, "");
  const chosen = setReason(edit(NO_PROPOSAL, "mode", "static"), "why not");
  assert.equal(edit(chosen, "mode", "continuous").reason, "");
});

test("a number that passes its old value while it is typed keeps the reason", () => {
  const typed = setReason(edit(NO_PROPOSAL, "max_running", "3"), "why not");
  const passing = edit(typed, "max_running", "32");
  assert.deepEqual([passing.phase, passing.reason], ["idle", "why not"]);
});

test("a reason written while a change is on its way survives an edit that is taken back", () => {
  const busy = setReason(edit(sentEight(), "mode", "static"), "and then");
  assert.equal(withdraw(withdraw(busy, "mode"), "max_running").reason, "and then");
});

test("a rebase that leaves no edit leaves no reason", () => {
  const same = setReason(edit(NO_PROPOSAL, "prefill_share", "0.9"), "why not");
  const proposal = rebase(see(same, [others(6)]), SPECS);
  assert.deepEqual([proposal.phase, proposal.reason], ["idle", ""]);
});

test("what was sent is stored, then applied once every engine runs it", () => {
  const stored = accept(sentEight(), 1, eight());
  assert.deepEqual([stored.phase, stored.stored.number, stored.reason, stored.texts], ["stored", 6, "", {}]);
  const half = observeEngines(stored, [engine({ tunables_version: 6 }), engine({ tunables_version: 5 })]);
  assert.equal(half.phase, "stored");
  assert.equal(observeEngines(stored, []).phase, "stored");
  const applied = observeEngines(stored, [engine({ tunables_version: 7 }), engine({ tunables_version: 6 })]);
  assert.deepEqual([applied.phase, applied.appliedOn], ["applied", 2]);
  assert.equal(observeEngines(applied, []), applied, "what was applied stays so when no engine lives any more");
});

test("an applied change is forgotten once a later version comes", () => {
  const applied = observeEngines(accept(sentEight(), 1, eight()), [engine({ tunables_version: 6 })]);
  assert.equal(see(applied, [eight(6), version(5)]), applied);
  const overtaken = see(applied, [others(7), eight(6), version(5)]);
  assert.deepEqual([overtaken.phase, overtaken.stored], ["idle", null]);
  const stored = accept(sentEight(), 1, eight());
  assert.equal(see(stored, [others(7), eight(6)]).phase, "stored", "one that is not applied yet is still awaited");
});

test("a new edit after a stored change begins on the version that is newest then", () => {
  const proposal = edit(accept(sentEight(), 1, eight()), "max_running", "16", { number: 6, values: eight().values });
  assert.deepEqual([proposal.phase, proposal.base.number, proposal.stored], ["editing", 6, null]);
});

test("another command's answer is not this one's", () => {
  const proposal = sentEight();
  assert.equal(accept(proposal, 2, eight()), proposal);
  assert.equal(refuse(proposal, 2), proposal);
  assert.equal(loseAnswer(proposal, { id: 2, wasSent: true }), proposal);
});

test("an edit made while a change is on its way survives the answer, on top of what was stored", () => {
  const busy = edit(edit(sentEight(), "max_running", "9"), "mode", "static");
  assert.equal(busy.phase, "sending");
  assert.ok(!canSend(busy));
  const after = accept(busy, 1, eight());
  assert.deepEqual([after.phase, after.base.number], ["editing", 6]);
  assert.deepEqual(after.changes, { max_running: 9, mode: "static" });
  assert.deepEqual(changesOf(after, SPECS)[1], { name: "max_running", from: 8, to: 9 });
});

test("a reason written while a change is on its way is the next one's", () => {
  assert.equal(accept(setReason(sentEight(), "and then"), 1, eight()).reason, "and then");
});

test("edits made while a change is on its way keep its base until the answer", () => {
  const busy = edit(sentEight(), "mode", "static", { number: 6, values: eight().values });
  assert.equal(busy.base.number, 5);
});

test("while the answer is awaited, versions without the change say nothing", () => {
  for (const versions of [[version(5)], [others(6), version(5)]])
    assert.equal(see(sentEight(), versions, { isComplete: true }).phase, "sending");
});

test("a change that others hear of before its answer comes is stored, and the answer is no news then", () => {
  const heard = see(edit(sentEight(), "mode", "static"), [eight(6), version(5)]);
  assert.deepEqual([heard.phase, heard.base.number, heard.changes], ["editing", 6, { mode: "static" }]);
  assert.equal(heard.conflict, null);
  assert.equal(accept(heard, 1, eight()), heard);
  assert.equal(loseAnswer(heard, { id: 1, wasSent: true }), heard);
});

test("a text that changes nothing does not outlive the values it was typed over", () => {
  const proposal = edit(NO_PROPOSAL, "batch_window_ms", "0.");
  assert.deepEqual(see(proposal, [others(6)]).texts, {});
});

test("a refusal leads back to all edits with what stands against them", () => {
  const proposal = refuse(sentEight(), 1, { code: "permission_denied", message: "you may only watch" });
  assert.equal(proposal.phase, "editing");
  assert.deepEqual(proposal.changes, { max_running: 8 });
  assert.equal(proposal.reason, "too slow");
  assert.deepEqual(proposal.refusal, { code: "permission_denied", message: "you may only watch", param: null });
  assert.equal(edit(proposal, "max_running", "9").refusal, null);
});

test("another's version while editing is a conflict, and forbids sending", () => {
  const proposal = see(edit(NO_PROPOSAL, "max_running", "8"), [others(6), version(5), version(4)]);
  assert.deepEqual(
    proposal.conflict.newer.map(({ number }) => number),
    [6],
  );
  assert.ok(!canSend(proposal));
  const twice = see(proposal, [version(7), others(6), version(5)]);
  assert.deepEqual(
    twice.conflict.newer.map(({ number }) => number),
    [7, 6],
  );
});

test("without an edit another's version is no conflict", () => {
  const proposal = see(NO_PROPOSAL, [others(6), version(5)]);
  assert.deepEqual([proposal.conflict, proposal.phase], [null, "idle"]);
  const emptied = withdraw(see(edit(NO_PROPOSAL, "max_running", "8"), [others(6)]), "max_running");
  assert.deepEqual([emptied.conflict, emptied.phase], [null, "idle"]);
});

test("a refusal as stale shows what the other changed", () => {
  const proposal = refuse(sentEight(), 1, { code: "stale_version", newer: [others(6)] });
  assert.deepEqual(proposal.conflict, { newer: [others(6)] });
  assert.deepEqual(proposal.changes, { max_running: 8 });
});

test("a rebase keeps the edits, and drops those that the other made too", () => {
  const both = edit(edit(NO_PROPOSAL, "max_running", "8"), "prefill_share", "0.9");
  const proposal = rebase(see(both, [others(6)]), SPECS);
  assert.deepEqual([proposal.base.number, proposal.conflict], [6, null]);
  assert.deepEqual(proposal.changes, { max_running: 8 });
  assert.deepEqual(proposal.texts, { max_running: "8" });
  assert.ok(canSend(proposal));
});

test("a rebase makes a change again of what was half typed as the old value", () => {
  const proposal = edit(edit(NO_PROPOSAL, "max_running", "8"), "prefill_share", "0.50");
  assert.deepEqual(proposal.changes, { max_running: 8 });
  assert.deepEqual(rebase(see(proposal, [others(6)]), SPECS).changes, { max_running: 8, prefill_share: 0.5 });
});

test("what could not be sent is still there to send", () => {
  const proposal = loseAnswer(sentEight(), { id: 1, wasSent: false });
  assert.equal(proposal.phase, "editing");
  assert.match(proposal.notice, /not sent/);
  assert.ok(canSend(proposal));
});

test("a lost answer is found among the versions", () => {
  const lost = loseAnswer(sentEight(), { id: 1, wasSent: true });
  assert.equal(lost.phase, "unknown");
  assert.equal(see(lost, [version(5)]).phase, "unknown", "a list that was not read anew proves nothing");
  const found = see(lost, [others(7), eight(6), version(5)], { isComplete: true });
  assert.deepEqual([found.phase, found.stored.number], ["stored", 6]);
});

test("a change that was lost on its way is back as it was", () => {
  const back = see(loseAnswer(sentEight(), { id: 1, wasSent: true }), [version(5)], { isComplete: true });
  assert.deepEqual([back.phase, back.changes, back.reason], ["editing", { max_running: 8 }, "too slow"]);
  assert.match(back.notice, /before the change was stored/);
  assert.ok(canSend(back));
});

test("another's change at that number is a conflict, not one's own", () => {
  const lost = loseAnswer(sentEight(), { id: 1, wasSent: true });
  for (const info of [eight(6, { author: "bob" }), others(6), eight(6, { changes: { max_running: [32, 9] } })]) {
    const proposal = see(lost, [info, version(5)], { isComplete: true });
    assert.deepEqual([proposal.phase, proposal.conflict.newer], ["editing", [info]]);
  }
});

test("a change that turns up after it was given up is recognised", () => {
  const back = see(loseAnswer(sentEight(), { id: 1, wasSent: true }), [version(5)], { isComplete: true });
  const found = see(back, [eight(6), version(5)]);
  assert.deepEqual([found.phase, found.conflict, found.texts], ["stored", null, {}]);
  assert.equal(accept(back, 1, eight()).phase, "stored", "so is an answer that comes late");
});

test("a change that was stored by a server that failed then is recognised", () => {
  const failed = refuse(sentEight(), 1, { code: "internal_error", message: "the server failed" });
  assert.deepEqual([failed.phase, failed.changes], ["editing", { max_running: 8 }]);
  assert.equal(see(failed, [eight(6), version(5)]).phase, "stored");
});

test("a list that begins too late to tell says so", () => {
  const lost = loseAnswer(sentEight(), { id: 1, wasSent: true });
  const proposal = see(lost, [version(40), version(39)], { isComplete: true });
  assert.match(proposal.notice, /too many versions/);
  assert.equal(proposal.conflict.newer.length, 2);
});

test("edits discarded while the answer is awaited stay discarded, and the change is still watched", () => {
  const proposal = discard(sentEight());
  assert.deepEqual([proposal.phase, proposal.texts], ["sending", {}]);
  assert.equal(accept(proposal, 1, eight()).phase, "stored");
  assert.equal(refuse(proposal, 1).phase, "idle");
});

test("an answer that is lost after all edits were discarded leaves nothing behind but its notice", () => {
  const lost = loseAnswer(discard(sentEight()), { id: 1, wasSent: true });
  const back = see(lost, [version(5)], { isComplete: true });
  assert.deepEqual([back.phase, back.texts], ["idle", {}]);
  assert.match(back.notice, /before the change was stored/);
});
