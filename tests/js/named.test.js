import assert from "node:assert/strict";
import { test } from "node:test";

import { CHARTS } from "../../static/dashboard/js/chart_specs.js";
import { figuresOf } from "../../static/dashboard/js/figures.js";
import { partsOf, thinnedTable } from "../../static/dashboard/js/named.js";
import { wantedPast } from "../../static/dashboard/js/past.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { createRing, RING_SECONDS } from "../../static/dashboard/js/ring.js";
import { sourceOf, stackedUp } from "../../static/dashboard/js/source.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { frame, hello, percentiles, point, POINT_FIELDS, SHAPE } from "./support/messages.js";

const START = 1_700_000_040; // a whole minute
const NOW = START * 1000;
const OLDER = { waiting_by_priority: null, refusals_per_second: null };
const chart = (id) => CHARTS.find((spec) => spec.id === id);
const known = (y) => [...y].map((value) => (Number.isNaN(value) ? null : value));
const table = (...rows) => ({ x: Float64Array.from(rows, (_, index) => START + index), rows });
const list = (parts) => parts.map(({ label, series }) => [label, known(series.y)]);

/** A page that shows a minute of these points, one a second, the last of them now. */
function showing(values, { spanSeconds = 60, fields } = {}) {
  const greeting = fields === undefined ? hello() : { ...hello(), point_fields: fields };
  const frames = values.map((own, index) => {
    const at = index - values.length + 1;
    const { point: row, ...rest } = frame(1000 + at, START + at + 0.5, { point: own });
    return { ...rest, point: row.slice(0, greeting.point_fields.length) };
  });
  return [greeting, ...frames].reduce(
    (state, message) => reduce(state, { type: "received", message, at: NOW }),
    initialState({ now: NOW, spanSeconds }),
  );
}

const drawn = (id, state, bounds) => {
  const { labels, series, ...rest } = figuresOf(chart(id), sourceOf(state), bounds);
  return { parts: labels.map((label, index) => [label, known(series[index].y)]), ...rest };
};

test("who waits is drawn by urgency, and where a name is left out it is nought", () => {
  const rows = [{ 3: 2, "-5": 1, other: 7 }, {}, { 0: 4, 10: 1, unread: 5 }];
  const state = showing(rows.map((row) => ({ waiting_by_priority: row })));
  const { parts, isTold } = drawn("priorities", state, { mostNames: 9 });
  assert.deepEqual(parts, [
    ["priority -5 (urgent)", [1, 0, 0]],
    ["priority 0", [0, 0, 4]],
    ["priority 3", [2, 0, 0]],
    ["priority 10", [0, 0, 1]],
    ["in the inbox", [0, 0, 5]],
    ["others", [7, 0, 0]],
  ]);
  assert.equal(isTold, true);
});

test("what an older monitor did not tell is a gap, and of such points alone nothing is said", () => {
  const state = showing([OLDER, OLDER, { waiting_by_priority: { 0: 3 } }, { waiting_by_priority: {} }]);
  assert.deepEqual(drawn("priorities", state).parts, [["priority 0", [null, null, 3, 0]]]);
  const older = showing([OLDER, OLDER]);
  assert.deepEqual(drawn("priorities", older), { parts: [], isTold: false, isAbsent: false });
  const fields = POINT_FIELDS.slice(0, POINT_FIELDS.indexOf("num_waiting_long_tokens"));
  const unaware = showing([{}, {}], { fields });
  assert.deepEqual(drawn("refusals", unaware), { parts: [], isTold: false, isAbsent: false });
  assert.deepEqual(drawn("waiting_tokens", unaware).parts[1][1], []);
});

test("of many reasons the commonest in view are drawn, the others as one; a table has them all", () => {
  const rates = Object.fromEntries(Array.from({ length: 9 }, (_, index) => [`code_${index}`, index + 1]));
  const told = [{ ...rates, "rejected:invalid_key": 20 }, {}];
  const state = showing(told.map((row) => ({ refusals_per_second: row })));
  assert.deepEqual(drawn("refusals", state).parts, [
    ["code 5", [6, 0]],
    ["code 6", [7, 0]],
    ["code 7", [8, 0]],
    ["code 8", [9, 0]],
    ["invalid key (any pool)", [20, 0]],
    ["others", [15, 0]],
  ]);
  const all = drawn("refusals", state, { mostNames: Infinity }).parts;
  assert.deepEqual([all.length, all[0], all.at(-1)], [10, ["code 0", [1, 0]], ["invalid key (any pool)", [20, 0]]]);
});

test("what is drawn one upon the other comes to the whole", () => {
  const rowAt = (index) => ({ [`${index % 9}`]: index, [`${index % 4}`]: 2, other: index % 3 });
  const rows = Array.from({ length: 40 }, (_, index) => rowAt(index));
  const parts = partsOf(table(...rows), chart("priorities").named, 6);
  const [top] = stackedUp(parts.map(({ series }) => series)).slice(-1);
  const sums = rows.map((row) => Object.values(row).reduce((sum, value) => sum + value, 0));
  assert.equal(parts.length, 6);
  assert.deepEqual(known(top.y), sums);
});

test("an engine has a line where it lived; of many the first eight have, and the others' mean", () => {
  const naming = chart("utilisation_by_engine").named;
  assert.deepEqual(list(partsOf(table({ a: 0.5 }, null, { a: 0.25, b: 0 }), naming, 9)), [
    ["a", [0.5, null, 0.25]],
    ["b", [null, null, 0]],
  ]);
  const many = Object.fromEntries(Array.from({ length: 11 }, (_, index) => [`e${index + 10}`, index / 10]));
  const lines = list(partsOf(table(many, { e10: 1 }), naming, 9));
  assert.deepEqual([lines.length, lines[0], lines[7][0]], [9, ["e10", [0, 1]], "e17"]);
  assert.deepEqual([lines[8][0], lines[8][1][1]], ["others: mean", null]);
  assert.ok(Math.abs(lines[8][1][0] - 0.9) < 1e-9);
});

test("a chart of engines is there where two lived at once, not where one came after the other", () => {
  const use = (...rows) => drawn("utilisation_by_engine", showing(rows.map((row) => ({ utilisation_by_engine: row }))));
  assert.equal(use({ a: 0.5 }, { b: 0.5 }).isAbsent, true);
  assert.equal(use({ a: 0.5 }, { a: 0.5, b: 0.5 }, { a: 0.1 }).isAbsent, false);
});

test("the ring forgets what is told by name with its place, and a paused copy keeps it", () => {
  const ring = createRing(SHAPE);
  const rowAt = (second, count) => point(START + second, { waiting_by_priority: { 0: count } });
  ring.push(rowAt(0, 1));
  ring.push(rowAt(2, 3));
  const copy = ring.copy();
  ring.push(rowAt(RING_SECONDS + 1, 9));
  assert.deepEqual(copy.named("waiting_by_priority").rows, [{ 0: 1 }, null, { 0: 3 }]);
  const { x, rows } = ring.named("waiting_by_priority", { since: START });
  assert.deepEqual([x[0] - START, rows[0], rows.at(-1), rows.length], [2, { 0: 3 }, { 0: 9 }, RING_SECONDS]);
  assert.ok(rows.slice(1, -1).every((row) => row === null));
  ring.forgetAfter(START + 5);
  assert.deepEqual(ring.named("waiting_by_priority").rows, [{ 0: 3 }]);
});

test("of a longer past the rolled up rows are drawn, and after them the ring's as such rows would be", () => {
  const live = Array.from({ length: 61 }, (_, index) => ({
    waiting_by_priority: index % 2 ? { 0: 4 } : {},
    utilisation_by_engine: index % 2 ? { a: 0.4 } : {},
  }));
  const state = showing(live, { spanSeconds: 3600 });
  const row = (at, values) => point(START + at, { percentiles: [percentiles()[0]], ...values });
  const points = [
    row(-75, { ...OLDER, utilisation_by_engine: { a: 1, b: 0.5 } }),
    row(-55, { waiting_by_priority: { 0: 1, 5: 2 }, utilisation_by_engine: { b: 0.5 } }),
  ];
  const answer = { seconds: 10, fields: POINT_FIELDS, points, versions: [], events: [] };
  const seen = reduce(state, { type: "past_read", answer, wanted: wantedPast(state), at: NOW });
  assert.deepEqual(drawn("priorities", seen).parts, [
    ["priority 0", [null, null, 1, 2, 2, 2, 2, 2]],
    ["priority 5", [null, null, 2, 0, 0, 0, 0, 0]],
  ]);
  const { parts, isAbsent } = drawn("utilisation_by_engine", seen);
  assert.deepEqual(parts[1], ["b", [0.5, null, 0.5, null, null, null, null, null]]);
  assert.ok(Math.abs(parts[0][1][4] - 0.4) < 1e-9 && !isAbsent);
});

test("of a step in which nothing was told there is nothing", () => {
  const how = { from: START + 1, to: START + 9, step: 2 };
  const rows = [null, null, { a: 1 }, { a: 3, b: 1 }];
  assert.deepEqual(thinnedTable(table(...rows), { ...how, rest: "sum" }).rows, [null, { a: 2, b: 0.5 }]);
  assert.deepEqual(thinnedTable(table(...rows), { ...how, rest: "mean" }).rows, [null, { a: 2, b: 1 }]);
});
