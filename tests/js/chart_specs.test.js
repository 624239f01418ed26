import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DASHES, WIDTHS } from "../../static/dashboard/js/chart_options.js";
import { CHARTS, COLORS } from "../../static/dashboard/js/chart_specs.js";
import { NAMED_FIELDS } from "../../static/dashboard/js/named.js";
import { POINT_FIELDS } from "./support/messages.js";

const PAGE = readFileSync(new URL("../../templates/dashboard/live.html", import.meta.url), "utf8");
const TOKENS = readFileSync(new URL("../../static/dashboard/css/tokens.css", import.meta.url), "utf8");
const SWATCHES = readFileSync(new URL("../../static/dashboard/css/charts.css", import.meta.url), "utf8");

test("every chart has its place on the page, and every place its chart", () => {
  const places = [...PAGE.matchAll(/_chart\.html" with id="(\w+)"/g)].map(([, id]) => id);
  assert.deepEqual(places, CHARTS.map(({ id }) => id));
});

test("every colour is one of the style sheet", () => {
  for (const name of Object.values(COLORS)) assert.ok(TOKENS.includes(`--${name}:`), name);
});

test("every chart draws fields that points have, in colours that there are", () => {
  for (const { id, series, named } of CHARTS)
    for (const { field, minus, measured, color, fill } of series) {
      for (const name of [field, minus, named?.field])
        assert.ok(name === undefined || POINT_FIELDS.includes(name), `${id} ${name}`);
      assert.ok(field !== undefined || measured !== undefined || named !== undefined, id);
      for (const name of [color, fill]) assert.ok(name === undefined || name in COLORS, `${id} ${name}`);
    }
  assert.equal(new Set(CHARTS.map(({ id }) => id)).size, CHARTS.length);
});

test("what points tell by name is drawn by a chart each, and by no other", () => {
  const fields = CHARTS.flatMap(({ named }) => (named === undefined ? [] : [named.field]));
  assert.deepEqual(fields.toSorted(), NAMED_FIELDS.toSorted());
});

test("each way to draw a line has its dashes, and its swatch", () => {
  for (const line of new Set(CHARTS.flatMap(({ series }) => series.map((one) => one.line)))) {
    assert.ok(line in DASHES && line in WIDTHS, line);
    assert.ok(line === "solid" || SWATCHES.includes(`[data-line="${line}"]`), line);
  }
  const looks = Object.keys(DASHES).map((line) => `${DASHES[line]} ${DASHES[line].length === 0 && WIDTHS[line]}`);
  assert.equal(new Set(looks).size, looks.length);
});

test("no two series of a chart are told apart by colour alone", () => {
  for (const { id, series } of CHARTS) assert.equal(new Set(series.map(({ line }) => line)).size, series.length, id);
});
