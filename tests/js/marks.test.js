import assert from "node:assert/strict";
import { test } from "node:test";

import { deedOf } from "../../static/dashboard/js/crosshair.js";
import { labelsOfMarks, linesNear, linesOf, marksOf } from "../../static/dashboard/js/marks.js";
import { axisReach } from "../../static/dashboard/js/objective_line.js";
import { objectiveAt, objectivesOf } from "../../static/dashboard/js/objectives.js";
import { byteAxis } from "../../static/dashboard/js/scale.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { hello, version } from "./support/messages.js";

const START = 1_700_000_000;
const inForce = (...numbers) => ({
  x: Float64Array.from(numbers, (_, index) => START + index),
  y: Float64Array.from(numbers, (number) => number ?? NaN),
});
const slo = (number, milliseconds) => version(number, { values: { slo_ttft_ms: milliseconds } });
const objectives = (series, known) => objectivesOf(series, { name: "slo_ttft_ms", step: 1, known });
const event = (at, values = {}) => ({ event_id: `${at}`, at, kind: "engine_joined", subject: "", text: "", ...values });

/** What a page knows that shows ten seconds in which `series` was in force. */
function marks(series, { versions = [], events = [], step = 1 } = {}) {
  const state = { ...initialState(), hello: hello(), versions, events };
  return marksOf({ versions: () => series, stretch: { from: START, to: START + 10 }, step }, state);
}

test("the objective steps where it was changed, and is one line where a change was about something else", () => {
  const known = [slo(3, 300), slo(2, 200), slo(1, 200)];
  assert.deepEqual(objectives(inForce(1, 1, 2, 3, 3), known), [
    { from: START, to: START + 2, seconds: 0.2 },
    { from: START + 2, to: START + 4, seconds: 0.3 },
  ]);
});

test("where no version that is known was in force there is no objective", () => {
  assert.deepEqual(objectives(inForce(null, 9, null), [slo(1, 200)]), []);
  const found = objectives(inForce(1, null, null, 1), [slo(1, 200)]);
  assert.deepEqual(
    found.map(({ from, to }) => [from - START, to - START]),
    [
      [0, 0],
      [3, 3],
    ],
  );
  assert.equal(objectiveAt(found, START + 3), 0.2);
  assert.equal(objectiveAt(found, START + 2), null);
  assert.equal(objectiveAt([], null), null);
});

test("an axis goes to the objective unless what was measured would lie flat at its foot", () => {
  assert.equal(axisReach(0.1, [{ seconds: 10 }]), 0.1);
  assert.ok(axisReach(0.1, [{ seconds: 0.2 }]) > 0.2);
  assert.equal(axisReach(0.5, [{ seconds: 0.2 }]), 0.5);
  assert.equal(axisReach(0, []), 0);
});

test("an axis of bytes is marked at round numbers of a binary unit", () => {
  assert.deepEqual(byteAxis(3 * 2 ** 30), { top: 3 * 2 ** 30, ticks: [0, 1, 2, 3].map((each) => each * 2 ** 30) });
  assert.equal(byteAxis(0, { leastTop: 2 ** 26 }).top, 80 * 2 ** 20);
});

test("a mark tells who changed what and why", () => {
  const changes = { max_running: [32, 8] };
  const [mark] = marks(inForce(1, 2), { versions: [version(2, { changes, author: "ben", reason: "less heat" })] });
  assert.deepEqual(linesOf(mark), ["version 2 by ben", "max_running 32 → 8 sequences", "“less heat”"]);
});

test("changes and events stand in the order of time, and only those in sight", () => {
  const events = [event(START + 40), event(START + 3, { kind: "alert", subject: "ttft_p95" }), event(START - 1)];
  const found = marks(inForce(1, 2, 2, 2, 2, 3), { events });
  assert.deepEqual(
    found.map(({ kind, at }) => [kind, at - START]),
    [
      ["version", 1],
      ["alert", 3],
      ["version", 5],
    ],
  );
  assert.deepEqual(linesOf(found[1]), ["alert: ttft_p95"]);
});

test("of a past a change is marked when it was stored, not where the stretch has its place", () => {
  const created_at = new Date((START + 4) * 1000).toISOString();
  const found = (step, at) => marks(inForce(1, 2), { versions: [version(2, { created_at: at })], step })[0].at - START;
  assert.deepEqual([found(10, created_at), found(1, created_at)], [4, 1]);
  assert.equal(found(10, "2001-01-01T00:00:00Z"), 1);
});

test("an event of a kind that this page does not know is told by its name", () => {
  const [mark] = marks(inForce(1), { events: [event(START + 1, { kind: "moon_rose", text: "full" })] });
  assert.deepEqual([mark.kind, mark.short, linesOf(mark)], ["event", "moon", ["moon rose", "full"]]);
});

test("around a moment every kind of mark is told, in six lines at most", () => {
  const events = Array.from({ length: 9 }, (_, index) => event(START + 1 + index / 10, { subject: `e${index}` }));
  const found = marks(inForce(1, 2), { events, versions: [version(2)] });
  const lines = linesNear(found, { second: START + 1, reach: 2 });
  assert.equal(lines.length, 6);
  assert.equal(lines[0], "version 2 by ann");
  assert.deepEqual(linesNear(found, { second: START + 8, reach: 2 }), []);
});

test("events without room for their labels are one label, beside those of the changes", () => {
  const found = marks(inForce(1, 2, 2, 2), { events: [1, 2, 9].map((at) => event(START + at)) });
  assert.deepEqual(labelsOfMarks(found, 3), ["v2", null, "joined +1", "joined"]);
  assert.deepEqual(labelsOfMarks([], 3), []);
});

test("keys move the crosshair within the stretch, and the stretch within the past", () => {
  const stretch = { from: START, to: START + 60 };
  const press = (key, values = {}) =>
    deedOf(key, { hasShift: false, second: START + 30, stretch, step: 1, newest: START + 60, ...values });
  assert.deepEqual(press("ArrowLeft"), { kind: "point", second: START + 29 });
  assert.deepEqual(press("ArrowRight", { second: null }), { kind: "point", second: START + 60 });
  assert.deepEqual(press("ArrowLeft", { second: START }), { kind: "point", second: START });
  assert.deepEqual(press("ArrowLeft", { step: 10 }), { kind: "point", second: START + 20 });
  assert.deepEqual([press("Home").second, press("End").second], [START, START + 60]);
  assert.deepEqual(press("ArrowLeft", { hasShift: true }).stretch, { from: START - 15, to: START + 45 });
  assert.deepEqual(press("+").stretch, { from: START + 15, to: START + 45 });
  assert.deepEqual(press("-").stretch, { from: START - 60, to: START + 60 });
  assert.deepEqual(press("Escape"), { kind: "leave" });
  assert.equal(press("a"), null);
});
