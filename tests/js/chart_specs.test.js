import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { CHARTS, COLORS } from "../../static/dashboard/js/chart_specs.js";
import { POINT_FIELDS } from "./support/messages.js";

const PAGE = readFileSync(new URL("../../templates/dashboard/live.html", import.meta.url), "utf8");
const TOKENS = readFileSync(new URL("../../static/dashboard/css/tokens.css", import.meta.url), "utf8");

test("every chart has its place on the page, and every place its chart", () => {
  const places = [...PAGE.matchAll(/_chart\.html" with id="(\w+)"/g)].map(([, id]) => id);
  assert.deepEqual(places, CHARTS.map(({ id }) => id));
});

test("every colour is one of the style sheet", () => {
  for (const name of Object.values(COLORS)) assert.ok(TOKENS.includes(`--${name}:`), name);
});

test("every chart draws fields that points have, in colours that there are", () => {
  for (const { id, series } of CHARTS)
    for (const { field, minus, measured, color, fill } of series) {
      for (const name of [field, minus]) assert.ok(name === undefined || POINT_FIELDS.includes(name), `${id} ${name}`);
      assert.ok(field !== undefined || measured !== undefined, id);
      for (const name of [color, fill]) assert.ok(name === undefined || name in COLORS, `${id} ${name}`);
    }
  assert.equal(new Set(CHARTS.map(({ id }) => id)).size, CHARTS.length);
});

test("no two series of a chart are told apart by colour alone", () => {
  for (const { id, series } of CHARTS) assert.equal(new Set(series.map(({ line }) => line)).size, series.length, id);
});
