/** What a sweep's chart is made of. */
import assert from "node:assert/strict";
import test from "node:test";

import { annotationsOf, chartOf, COLORS, spoken, wordsOf } from "../../static/dashboard/js/lab/sweeps/drawing.js";

const palette = /** @type {any} */ (Object.fromEntries(COLORS.map((name) => [name, `the ${name}`])));
const point = { label: "max_running 8", x: 200, y: 120, low: 110, high: 130, keeps: true, marks: /** @type {string[]} */ ([]) };
const leg = {
  title: "max_running",
  latency: "TTFT p95 of chat",
  slo_ms: 500,
  points: [point, { ...point, label: "max_running 32", marks: ["knee", "proposed"] }, { ...point, label: "max_running 64", y: 900, keeps: false, marks: ["SLO broken"] }],
};

test("the SLO is a line, each point has its interval, and what is singled out has words", () => {
  const found = annotationsOf(leg, palette);
  assert.deepEqual([found[0].type, found[0].yMin, found[0].yMax], ["line", 500, 500]);
  assert.equal(found.filter(({ type }) => type === "line").length, 4);
  assert.deepEqual(found.filter(({ type }) => type === "label").map((each) => /** @type {any} */ (each).content), ["knee, proposed"]);
});

test("without an SLO there is no line of one", () => {
  assert.equal(annotationsOf({ ...leg, slo_ms: null }, palette).filter(({ type }) => type === "line").length, 3);
});

test("a point that breaks the SLO is told apart by more than colour", () => {
  const [dataset] = chartOf(leg, palette).data.datasets;
  assert.deepEqual(dataset.pointStyle, ["circle", "circle", "crossRot"]);
});

test("who does not see the chart is told what it singles out", () => {
  assert.equal(
    spoken(leg),
    "Throughput against TTFT p95 of chat over max_running: 3 points, the SLO at 500 ms. max_running 32: knee, proposed",
  );
});

test("a point tells its figures and what it is", () => {
  assert.deepEqual(wordsOf(leg.points[1]), ["200.0 tokens/s", "120.0 ms (110.0 to 130.0)", "knee, proposed"]);
});
