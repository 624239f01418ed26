import assert from "node:assert/strict";
import { test } from "node:test";

import { moved, readView, stretchOf, withName, writeView, zoomed } from "../../static/dashboard/js/view.js";

const START = 1_700_000_000;
const PAGE = { window: 1, spanSeconds: 300, stretch: null, folded: [], hidden: [] };
const OFFERED = { spans: [60, 300, 3600], numWindows: 4 };
const read = (search, otherwise = PAGE) => readView(search, otherwise, OFFERED);

test("an address that was written is read as the same view", () => {
  const view = {
    window: 2,
    spanSeconds: 3600,
    stretch: { from: START, to: START + 600 },
    folded: ["memory", "load"],
    hidden: ["kv"],
  };
  assert.deepEqual(read(writeView({ ...view, pausedAt: null })), view);
  assert.deepEqual(read(writeView({ ...PAGE, pausedAt: null })), PAGE);
});

test("an address says lists as people read them", () => {
  assert.equal(
    writeView({ ...PAGE, folded: ["load", "batch"], pausedAt: null }),
    "?span=300&window=1&folded=load,batch",
  );
});

test("a page that was paused is shared as the stretch that it showed", () => {
  const address = writeView({ ...PAGE, pausedAt: START + 0.4 });
  assert.deepEqual(read(address).stretch, { from: START + 1 - 300, to: START + 1 });
});

test("what an address says wrongly is as it was", () => {
  for (const search of [
    "?span=7",
    "?span=-60",
    "?window=4",
    "?window=1e0",
    "?from=1&to=2",
    `?from=${START}`,
    "?at=tomorrow",
    "?from=99999999999999999999&to=1",
  ])
    assert.deepEqual(read(search), PAGE, search);
  assert.deepEqual(read("?hidden=<script>,kv,../x,&folded=").hidden, ["kv"]);
});

test("an address that says nothing keeps what was chosen before", () => {
  const earlier = { ...PAGE, spanSeconds: 60, hidden: ["kv"] };
  assert.deepEqual(read("", earlier), earlier);
  assert.deepEqual(read("?hidden=", earlier).hidden, []);
});

test("a stretch goes from the earlier to the later, and is neither a moment nor longer than a day", () => {
  assert.deepEqual(stretchOf(START + 60, START), { from: START, to: START + 60 });
  assert.deepEqual(stretchOf(START, START + 1), { from: START - 2, to: START + 3 });
  assert.deepEqual(stretchOf(START, START + 90_000), { from: START + 3600, to: START + 90_000 });
  for (const at of [NaN, Infinity, -1, 0, 1e300]) assert.equal(stretchOf(START, at), null);
});

test("zooming keeps the moment in its place", () => {
  const stretch = { from: START, to: START + 100 };
  const near = zoomed(stretch, { factor: 0.5, about: START + 25, newest: START + 1000 });
  assert.deepEqual(near, { from: START + 12.5, to: START + 62.5 });
  assert.deepEqual(zoomed(near, { factor: 2, about: START + 25, newest: START + 1000 }), stretch);
});

test("there is no way into the future, nor nearer than five seconds, nor beyond a day", () => {
  const stretch = { from: START, to: START + 100 };
  assert.deepEqual(moved(stretch, { share: 0.5, newest: START + 110 }), { from: START + 10, to: START + 110 });
  assert.deepEqual(moved(stretch, { share: -0.5, newest: START + 110 }), { from: START - 50, to: START + 50 });
  const nearest = zoomed(stretch, { factor: 0.001, about: START + 50, newest: START + 100 });
  assert.equal(nearest.to - nearest.from, 5);
  const widest = zoomed(stretch, { factor: 1e6, about: START + 50, newest: START + 100 });
  assert.deepEqual([widest.to - widest.from, widest.to], [86_400, START + 100]);
});

test("a name is in a list once or not at all", () => {
  assert.deepEqual(withName(["a", "b"], "a", { isIn: true }), ["b", "a"]);
  assert.deepEqual(withName(["a", "b"], "a", { isIn: false }), ["b"]);
});
