import assert from "node:assert/strict";
import { test } from "node:test";

import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { engine, frame, hello, point, refused, stored, version, POINT_FIELDS } from "./support/messages.js";

const NOW = 1_700_000_000_000;
const REDIS = 1_700_000_000;

const play = (state, ...actions) => actions.reduce(reduce, state);
const received = (message, at = NOW) => ({ type: "received", message, at });
const connection = (state, at = NOW, rest = {}) => ({
  type: "connection",
  state,
  at,
  attempt: 0,
  retryAt: null,
  code: null,
  ...rest,
});
const tick = (at) => ({ type: "tick", at });
const fresh = () => initialState({ now: NOW });
const live = (values) => play(fresh(), connection("open"), received(hello(values)));
const numbers = (state) => state.versions.map(({ number }) => number);

test("the page is live from the server's hello on, not from the open socket", () => {
  const open = play(fresh(), connection("connecting"), connection("open"));
  assert.equal(open.connection.state, "connecting");
  assert.equal(reduce(open, received(hello())).connection.state, "live");
});

test("a lost socket is told with its code and the next attempt, and how long it has been", () => {
  const lost = play(live(), connection("lost", NOW + 10, { code: 1006, attempt: 1, retryAt: NOW + 510 }));
  assert.deepEqual(lost.connection, { state: "lost", since: NOW + 10, attempt: 1, retryAt: NOW + 510, code: 1006 });
  const again = play(
    lost,
    connection("connecting", NOW + 510, { attempt: 1 }),
    connection("lost", NOW + 600, { attempt: 2, code: null }),
  );
  assert.deepEqual([again.connection.since, again.connection.attempt, again.connection.code], [NOW + 10, 2, 1006]);
  const back = reduce(again, received(hello(), NOW + 900));
  assert.deepEqual(back.connection, { state: "live", since: NOW + 900, attempt: 0, retryAt: null, code: null });
});

test("history and frames fill the ring", () => {
  const state = play(
    live(),
    received({ type: "history", points: [point(REDIS), point(REDIS + 1)] }),
    received(frame(7, REDIS + 2.5)),
  );
  assert.deepEqual([...state.ring.series("num_running").x], [REDIS, REDIS + 1, REDIS + 2]);
  assert.equal(state.frame.sequence, 7);
});

test("a frame before the hello is nothing that could be read", () => {
  const state = fresh();
  assert.equal(reduce(state, received(frame(1, REDIS))), state);
});

test("messages of a newer server are passed over", () => {
  const state = live();
  assert.equal(reduce(state, received({ type: "weather" })), state);
});

test("a gap in the sequence counts the frames missed", () => {
  const state = play(
    live(),
    received(frame(10, REDIS)),
    received(frame(11, REDIS + 0.5)),
    received(frame(15, REDIS + 2.5)),
  );
  assert.equal(state.numMissed, 3);
});

test("what was broadcast while the page was away is not counted as missed", () => {
  const state = play(
    live(),
    received(frame(10, REDIS), NOW + 1),
    connection("lost", NOW + 2),
    received(hello(), NOW + 60_000),
    received(frame(130, REDIS + 60), NOW + 60_001),
    received(frame(132, REDIS + 61), NOW + 60_002),
  );
  assert.equal(state.numMissed, 1);
});

test("a sequence that begins anew is followed, since Redis's time is later", () => {
  const state = play(live(), received(frame(5000, REDIS)), received(frame(1, REDIS + 3)));
  assert.deepEqual([state.frame.sequence, state.numMissed], [1, 0]);
});

test("an older frame that comes late is not shown", () => {
  const state = play(live(), received(frame(10, REDIS + 1)), received(frame(9, REDIS + 0.5)));
  assert.equal(state.frame.sequence, 10);
});

test("a clock of Redis that was set back is followed, and the future forgotten", () => {
  const state = play(
    live(),
    received(frame(1, REDIS)),
    received(frame(2, REDIS + 3600)),
    received(frame(3, REDIS + 5)),
  );
  assert.equal(state.frame.sequence, 3);
  assert.equal(state.ring.newestSeconds, REDIS + 5);
});

test("without a frame for two and a half seconds the figures are stale", () => {
  const state = reduce(live(), received(frame(1, REDIS), NOW));
  assert.equal(reduce(state, tick(NOW + 2500)).isStale, false);
  const stale = reduce(state, tick(NOW + 2501));
  assert.equal(stale.isStale, true);
  assert.equal(reduce(stale, received(frame(2, REDIS + 3), NOW + 3000)).isStale, false);
});

test("a page that never got a frame is stale too, and a hello alone makes nothing fresh", () => {
  assert.equal(reduce(live(), tick(NOW + 2501)).isStale, true);
  const back = play(
    live(),
    received(frame(1, REDIS)),
    tick(NOW + 9000),
    received(hello(), NOW + 9001),
    tick(NOW + 9002),
  );
  assert.equal(back.isStale, true);
});

test("a page's clock that was set back does not keep the figures fresh", () => {
  const state = play(live(), received(frame(1, REDIS), NOW), tick(NOW - 3_600_000), tick(NOW - 3_597_000));
  assert.equal(state.isStale, true);
});

test("ticks within a second leave the state as it is", () => {
  const state = reduce(live(), tick(NOW + 1000));
  assert.equal(reduce(state, tick(NOW + 1500)), state);
  assert.equal(reduce(state, tick(NOW + 2000)).now, NOW + 2000);
});

test("a paused page stands still while everything goes on behind it", () => {
  const paused = play(live(), received(frame(1, REDIS)), { type: "pause", at: NOW + 5 }, received(frame(2, REDIS + 1)));
  assert.equal(paused.paused.at, NOW + 5);
  assert.equal(paused.paused.frame.sequence, 1);
  assert.equal(paused.paused.ring.newestSeconds, REDIS);
  assert.equal(paused.frame.sequence, 2);
  assert.equal(paused.ring.newestSeconds, REDIS + 1);
  assert.equal(reduce(paused, { type: "pause", at: NOW + 9 }), paused);
  assert.equal(reduce(paused, { type: "resume" }).paused, null);
});

test("the list of versions is bounded, however many the server and refusals tell of", () => {
  const many = (newest) => Array.from({ length: 250 }, (_, index) => version(newest - index));
  const told = play(live(), received({ type: "versions", id: 1, versions: many(250) }));
  assert.deepEqual([told.versions.length, told.versions[0].number], [200, 250]);
  const refusedOnce = play(live(), received(refused(10, { newer: many(250) })));
  assert.deepEqual([refusedOnce.versions.length, refusedOnce.versions[0].number], [200, 250]);
});

test("a page that knows nothing yet cannot be paused", () => {
  const state = fresh();
  assert.equal(reduce(state, { type: "pause", at: NOW }), state);
  assert.equal(reduce(state, { type: "resume" }), state);
});

test("a server of the same shape finds the ring as it was, one of another an empty one", () => {
  const state = play(live(), received(frame(1, REDIS)));
  assert.equal(reduce(state, received(hello())).ring, state.ring);
  const other = play(state, { type: "choose_window", index: 3 }, received(hello({ windows_seconds: [10, 60] })));
  assert.equal(other.ring.newestSeconds, null);
  assert.equal(other.window, 1);
  const longer = reduce(state, received(hello({ point_fields: [...POINT_FIELDS, "num_swapped"] })));
  assert.equal(longer.ring.series("num_swapped").y.length, 0);
});

test("a pause ends with the shape of its points", () => {
  const paused = play(live(), received(frame(1, REDIS)), { type: "pause", at: NOW });
  assert.notEqual(reduce(paused, received(hello())).paused, null);
  assert.equal(reduce(paused, received(hello({ windows_seconds: [10, 60] }))).paused, null);
});

test("window and span are the operator's choice", () => {
  const state = play(live(), { type: "choose_window", index: 2 }, { type: "choose_span", seconds: 900 });
  assert.deepEqual([state.window, state.spanSeconds], [2, 900]);
});

test("a version that is announced and not known is noticed", () => {
  const state = play(live(), received(frame(1, REDIS, { announced_version: 2 })));
  assert.deepEqual([state.storedVersion, state.knowsAllVersions], [2, false]);
  const told = reduce(state, received({ type: "versions", id: 1, versions: [version(2), version(1)] }));
  assert.deepEqual([told.storedVersion, told.knowsAllVersions, numbers(told)], [2, true, [2, 1]]);
});

test("a version older than the list is nothing to ask about", () => {
  const state = live({ versions: [version(30), version(29)] });
  const old = frame(1, REDIS, { announced_version: 30, engines: [engine({ tunables_version: 12 })] });
  assert.equal(reduce(state, received(old)).knowsAllVersions, true);
});

test("a version stored and not announced yet counts as stored", () => {
  const state = play(live(), received(frame(1, REDIS)), received(stored(9, version(2))), received(frame(2, REDIS + 1)));
  assert.equal(state.storedVersion, 2);
});

test("without an announcement the newest stored version is what is known", () => {
  const state = play(live(), received(frame(1, REDIS, { announced_version: null, engines: [] })));
  assert.deepEqual([state.storedVersion, state.knowsAllVersions], [1, true]);
});

test("the server's list replaces the newest versions, and older ones stay", () => {
  const state = play(
    live({ versions: [version(3), version(2), version(1)] }),
    received({ type: "versions", id: 1, versions: [version(5), version(4), version(3)] }),
  );
  assert.deepEqual(numbers(state), [5, 4, 3, 2, 1]);
});

test("a stored version and those in a refusal join the list once", () => {
  const state = play(
    live(),
    received(stored(9, version(2))),
    received(refused(10, { newer: [version(3), version(2)] })),
  );
  assert.deepEqual(numbers(state), [3, 2, 1]);
});

test("edits, a send and its answer move the proposal", () => {
  const edited = play(live(), { type: "edit", name: "max_running", text: "8" }, { type: "edit_reason", text: "try" });
  assert.deepEqual(edited.proposal.changes, { max_running: 8 });
  const sent = reduce(edited, { type: "sent", id: 4 });
  const info = version(2, { values: { max_running: 8 }, changes: { max_running: [32, 8] } });
  const answered = play(sent, received(stored(4, info)));
  assert.equal(answered.proposal.phase, "stored");
  const applied = reduce(
    answered,
    received(frame(1, REDIS, { announced_version: 2, engines: [engine({ tunables_version: 2 })] })),
  );
  assert.equal(applied.proposal.phase, "applied");
});

test("an answer that comes after the engines already run the version is applied at once", () => {
  const sent = play(live(), { type: "edit", name: "max_running", text: "8" }, { type: "sent", id: 4 });
  const ahead = reduce(
    sent,
    received(frame(1, REDIS, { announced_version: 2, engines: [engine({ tunables_version: 2 })] })),
  );
  assert.equal(ahead.proposal.phase, "sending");
  assert.equal(reduce(ahead, received(stored(4, version(2)))).proposal.phase, "applied");
});

test("a hello after the answer was lost resolves it", () => {
  const info = version(2, { values: { max_running: 8 }, changes: { max_running: [32, 8] } });
  const lost = play(
    live(),
    { type: "edit", name: "max_running", text: "8" },
    { type: "sent", id: 4 },
    { type: "answer_lost", id: 4, wasSent: true },
  );
  assert.equal(lost.proposal.phase, "unknown");
  assert.equal(reduce(lost, received(hello({ versions: [info, version(1)] }))).proposal.phase, "stored");
  assert.equal(reduce(lost, received(hello())).proposal.phase, "editing");
});

test("a lever that nobody knows, and one before the hello, are no edits", () => {
  const state = live();
  assert.equal(reduce(state, { type: "edit", name: "max_speed", text: "8" }), state);
  const early = fresh();
  assert.equal(reduce(early, { type: "edit", name: "max_running", text: "8" }), early);
});

test("conflicts are resolved by an operator's word", () => {
  const others = version(2, { values: { prefill_share: 0.9 }, changes: { prefill_share: [0.5, 0.9] }, author: "bob" });
  const conflict = play(
    live(),
    { type: "edit", name: "max_running", text: "8" },
    received({ type: "versions", id: 1, versions: [others, version(1)] }),
  );
  assert.deepEqual(conflict.proposal.conflict, { newer: [others] });
  assert.equal(reduce(conflict, { type: "rebase" }).proposal.base.number, 2);
  assert.equal(reduce(conflict, { type: "discard" }).proposal.phase, "idle");
  assert.equal(reduce(conflict, { type: "withdraw", name: "max_running" }).proposal.phase, "idle");
});
