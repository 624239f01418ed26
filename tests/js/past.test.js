import assert from "node:assert/strict";
import { test } from "node:test";

import { createPast, missing, wantedPast } from "../../static/dashboard/js/past.js";
import { createPastReader } from "../../static/dashboard/js/past_reader.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { placeAt, sourceOf, stackedUp, thinned } from "../../static/dashboard/js/source.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { settle } from "./support/fakes.js";
import { frame, hello, INTERVALS, PERCENTILES, percentiles, point, POINT_FIELDS, version } from "./support/messages.js";

const START = 1_700_000_040; // a whole minute
const NOW = START * 1000;
const MEASURES = { intervals: INTERVALS, percentiles: PERCENTILES };
const event = (id, at, values = {}) => ({ event_id: id, at, kind: "engine_joined", subject: "e1", text: "", ...values });
const row = (at, values = {}) => point(at, { percentiles: [percentiles()[0]], ...values });
const list = ({ x, y }) => [...x].map((at, index) => [at - START, Number.isNaN(y[index]) ? null : y[index]]);

function answer(points, values = {}) {
  return { seconds: 10, fields: POINT_FIELDS, points, versions: [], events: [], ...values };
}

/** A page that shows `spanSeconds` and has had a second-by-second ring since `sinceSeconds` ago. */
function following(spanSeconds, { sinceSeconds = 60 } = {}) {
  const messages = [hello()];
  for (let at = -sinceSeconds; at <= 0; at += 1)
    messages.push(frame(1000 + at, START + at + 0.5, { point: { num_running: 2 } }));
  return messages.reduce(
    (state, message) => reduce(state, { type: "received", message, at: NOW }),
    initialState({ now: NOW, spanSeconds }),
  );
}

function withPast(state, past, { at = NOW } = {}) {
  return reduce(state, { type: "past_read", answer: past, wanted: wantedPast(state), at });
}

test("up to a quarter of an hour the ring is enough, beyond it the past is wanted", () => {
  assert.equal(wantedPast(following(900)), null);
  const wanted = wantedPast(following(3600));
  assert.deepEqual([wanted.key, wanted.until - wanted.since], ["last 3600", 3601]);
});

test("a stretch that the ring holds is drawn from it, an earlier one is asked for by its ends", () => {
  const state = following(300);
  const at = (from, to) => wantedPast({ ...state, stretch: { from: START + from, to: START + to } });
  assert.equal(at(-600, -500), null);
  assert.deepEqual(at(-2000.5, -1000.5), {
    key: `${START - 2001}-${START - 1000}`,
    since: START - 2001,
    until: START - 1000,
  });
});

test("what is known is not asked for again until another stretch of it can be there, and then from the newest on", () => {
  const state = withPast(following(3600), answer([row(START - 115), row(START - 105)]));
  const wanted = wantedPast(state);
  const later = (now) => missing(wanted, state.past, { now, failedAt: null });
  assert.equal(later(NOW + 9_000), null);
  assert.deepEqual(later(NOW + 10_000), { since: START - 110, until: wanted.until, leastSeconds: 10 });
  assert.equal(missing({ ...wanted, key: "other" }, state.past, { now: NOW, failedAt: null }).since, wanted.since);
});

test("a stretch that was told of before all of it was stored is read again, within a minute", () => {
  const day = following(86_400, { sinceSeconds: 900 });
  const state = withPast(day, answer([row(START - 900), row(START - 300, { num_running: 1 })], { seconds: 600 }));
  const wanted = wantedPast(state);
  assert.equal(missing(wanted, state.past, { now: NOW + 59_000, failedAt: null }), null);
  const asked = missing(wanted, state.past, { now: NOW + 60_000, failedAt: null });
  assert.equal(asked.since, START - 600);
  const whole = answer([row(START - 300, { num_running: 7 })], { seconds: 600 });
  const again = withPast(state, whole, { at: NOW + 60_000 });
  assert.deepEqual(list(again.past.series("num_running", { since: START - 300 })), [[-300, 7]]);
});

test("a page whose clock is an hour ahead reads on all the same", () => {
  const state = following(3600);
  const ahead = NOW + 3_600_000;
  const { past } = withPast(state, answer([row(START - 105)]), { at: ahead });
  assert.notEqual(missing(wantedPast(state), past, { now: ahead + 10_000, failedAt: null }), null);
});

test("a stretch that is over is asked for once; a failure is not asked about at once", () => {
  const wanted = { key: "a", since: START - 2000, until: START - 1000 };
  const past = createPast(answer([row(START - 1500)]), { wanted, earlier: null, measures: MEASURES, readAt: NOW });
  assert.equal(missing(wanted, past, { now: NOW + 1e7, failedAt: null }), null);
  assert.equal(missing(wanted, null, { now: NOW + 5000, failedAt: NOW }), null);
  assert.notEqual(missing(wanted, null, { now: NOW + 10_000, failedAt: NOW }), null);
});

test("a stretch with nothing kept is a gap, and what comes later is put after what was known", () => {
  const state = withPast(following(3600), answer([row(START - 115, { num_running: 1 }), row(START - 85, { num_running: 4 })]));
  assert.deepEqual(list(state.past.series("num_running", {})), [
    [-115, 1],
    [-105, null],
    [-95, null],
    [-85, 4],
  ]);
  const more = withPast(state, answer([row(START - 85, { num_running: 5 }), row(START - 75, { num_running: 6 })]));
  assert.deepEqual(list(more.past.series("num_running", { since: START - 85 })), [
    [-85, 5],
    [-75, 6],
  ]);
  assert.equal(more.past.percentiles({ interval: "ttft_seconds", percentile: 99 }, {}).y.at(-1), 0.013);
});

test("a past of another resolution takes the place of the one before", () => {
  const state = withPast(following(3600), answer([row(START - 115)]));
  assert.equal(withPast(state, answer([row(START - 90)], { seconds: 60 })).past.rows, 1);
});

test("after the past comes the present, in steps of the same length", () => {
  const state = withPast(following(3600), answer([row(START - 45, { num_running: 9 }), row(START - 35, { num_running: 8 })]));
  const running = sourceOf(state).read({ field: "num_running" });
  assert.deepEqual(list(running), [
    [-45, 9],
    [-35, 8],
    [-25, 2],
    [-15, 2],
    [-5, 2],
  ]);
  const p99 = sourceOf(state).read({ measured: { interval: "itl_seconds", percentile: 99 } });
  assert.deepEqual([...p99.x], [...running.x]);
});

test("before anything is kept there is what the ring has", () => {
  const running = sourceOf(withPast(following(3600), answer([]))).read({ field: "num_running" });
  assert.deepEqual(list(running), [
    [-55, 2],
    [-45, 2],
    [-35, 2],
    [-25, 2],
    [-15, 2],
    [-5, 2],
  ]);
  assert.deepEqual(list(sourceOf(following(3600)).read({ field: "num_running" })), list(running));
});

test("steps are means of what was known, and of percentiles and versions the last", () => {
  const seconds = { x: Float64Array.from([0, 1, 2, 3, 4, 5]), y: Float64Array.from([1, 3, NaN, 5, 7, NaN]) };
  const how = { from: 1.5, to: 6, step: 3 };
  assert.deepEqual([...thinned(seconds, { ...how, isMean: true }).y], [2, 6]);
  assert.deepEqual([...thinned(seconds, { ...how, isMean: false }).y], [3, 7]);
  assert.equal(thinned(seconds, { ...how, from: -Infinity, isMean: true }).x.length, 0);
});

test("a field that an older server's points lack is nothing, not an error", () => {
  const state = following(300);
  const source = sourceOf({ ...state, stretch: null });
  assert.equal(source.read({ field: "nobody_knows" }).x.length, 0);
  assert.equal(source.read({ field: "num_waiting", minus: "num_waiting_long" }).y.at(-1), 0);
  assert.equal(source.read({ field: "num_running", scale: 0.5 }).y.at(-1), 1);
});

test("parts of a whole stand upon one another, and a gap in one lifts none", () => {
  const x = Float64Array.from([0, 1]);
  const tops = stackedUp([
    { x, y: Float64Array.from([1, NaN]) },
    { x, y: Float64Array.from([2, 2]) },
  ]);
  assert.deepEqual([...tops[1].y], [3, 2]);
});

test("a moment falls into the nearest place, or into none", () => {
  const series = { x: Float64Array.from([100, 110, 120]), y: new Float64Array(3) };
  assert.deepEqual([placeAt(series, 114, 10), placeAt(series, 130, 10), placeAt(series, 80, 10)], [1, -1, -1]);
});

test("while the page is paused the past stays as it was", () => {
  const paused = reduce(withPast(following(3600), answer([row(START - 45, { num_running: 9 })])), { type: "pause", at: NOW });
  const later = withPast(paused, answer([row(START - 35, { num_running: 8 })]), { at: NOW + 20_000 });
  assert.equal(sourceOf(later).read({ field: "num_running" }).y[0], 9);
  assert.equal(sourceOf(later).revision.includes(`${NOW}`), true);
});

test("events are known once, however often they are told, newest first", () => {
  const state = withPast(following(3600), answer([], { events: [event("b", 20), event("a", 10)] }));
  const told = reduce(state, {
    type: "received",
    message: frame(2000, START + 9, { events: [event("c", 30), event("b", 20)] }),
    at: NOW,
  });
  assert.deepEqual(
    told.events.map(({ event_id }) => event_id),
    ["c", "b", "a"],
  );
});

test("a past's versions are known without being taken for the newest", () => {
  const state = withPast(following(3600), answer([], { versions: [version(7), version(4)] }));
  assert.deepEqual(
    [state.pastVersions.map(({ number }) => number), state.versions.map(({ number }) => number)],
    [[7, 4], [1]],
  );
});

test("a long past goes on in stretches as long as those that are known", () => {
  const state = withPast(following(21_600), answer([row(START - 90), row(START - 30)], { seconds: 60 }));
  const { asked } = reading({ ...state, now: NOW + 60_000 });
  assert.match(asked[0].url, new RegExp(`since=${START - 60}&until=\\d+&max_points=720&least_seconds=60$`));
});

/** A reader whose requests wait for the test. */
function reading(state) {
  const asked = [];
  const actions = [];
  const fetch = (url, { signal }) =>
    new Promise((resolve, reject) => {
      asked.push({ url, resolve, reject, signal });
      signal.addEventListener("abort", () => reject(new Error("aborted")));
    });
  const reader = createPastReader({ url: "/h", dispatch: (action) => actions.push(action), fetch, clock: () => NOW });
  reader.render(state);
  return { asked, actions, reader };
}

test("one request is under way at a time, and it is for what is looked at", async () => {
  const state = following(3600);
  const { asked, actions, reader } = reading(state);
  reader.render(state);
  assert.equal(asked.length, 1);
  assert.match(asked[0].url, /^\/h\?since=\d+&until=\d+&max_points=720$/);
  reader.render({ ...state, stretch: { from: START - 5000, to: START - 4000 } });
  assert.deepEqual([asked.length, asked[0].signal.aborted], [2, true]);
  asked[1].resolve({ ok: true, json: async () => answer([]) });
  await settle();
  assert.deepEqual(
    actions.map(({ type, wanted }) => [type, wanted.key]),
    [["past_read", `${START - 5000}-${START - 4000}`]],
  );
});

test("a past that cannot be read is told, and nothing breaks", async () => {
  for (const end of [({ resolve }) => resolve({ ok: false, status: 500 }), ({ reject }) => reject(new Error("gone"))]) {
    const { asked, actions } = reading(following(3600));
    end(asked[0]);
    await settle();
    assert.deepEqual(actions, [{ type: "past_failed", at: NOW }]);
  }
});

test("a page that needs no past asks once for the events before it came", () => {
  const { asked, reader } = reading(following(300));
  assert.match(asked[0].url, new RegExp(`since=${START - 900}&`));
  const { asked: none } = reading(withRecent(following(300)));
  assert.equal(none.length, 0);
  reader.render({ ...following(300), hello: null });
  assert.equal(asked.length, 1);
});

test("a page that was away asks for the events of meanwhile", async () => {
  const { asked, reader } = reading(following(300));
  asked[0].resolve({ ok: true, json: async () => answer([row(START - 25)]) });
  await settle();
  const state = { ...withRecent(following(300), [row(START - 25)]), now: NOW + 400_000 };
  const again = { ...state, hello: hello() };
  reader.render(again);
  reader.render(again);
  assert.equal(asked.length, 2);
  assert.match(asked[1].url, new RegExp(`since=${START - 30}&`));
});

function withRecent(state, points = []) {
  const wanted = { key: "recent", since: START - 900, until: START };
  return reduce(state, { type: "past_read", answer: answer(points), wanted, at: NOW });
}
