import assert from "node:assert/strict";
import { test } from "node:test";

import { csvOf } from "../../static/dashboard/js/csv.js";
import { leftOutWords, offerWords, rowsOf, titleWords } from "../../static/dashboard/js/export_rows.js";

const START = 1_700_000_000;
const series = (x, y) => ({ x: Float64Array.from(x), y: Float64Array.from(y) });

test("a text that a spreadsheet would compute is kept from it; a negative number is a number", () => {
  assert.equal(csvOf([["=1+1", "@x", "+49", "-a", "\tb"]]), "'=1+1,'@x,'+49,'-a,'\tb\r\n");
  assert.equal(csvOf([[-1.5, 0.1 + 0.2, 12]]), "-1.5,0.3,12\r\n");
});

test("quotes, commas and line ends stay within their cell", () => {
  assert.equal(csvOf([['a "b"', "c,d", "e\nf", "g"]]), '"a ""b""","c,d","e\nf",g\r\n');
});

test("what is not known is left empty", () => {
  assert.equal(csvOf([[null, NaN, Infinity, 0]]), ",,,0\r\n");
});

test("a table has a row a moment and a column a series, whatever moments the series have", () => {
  const panels = [
    {
      title: "TTFT",
      spec: { measure: "seconds" },
      labels: ["p50", "p99"],
      series: [series([START, START + 1], [0.5, 0.6]), series([START, START + 1], [NaN, 0.9])],
    },
    { title: "Load", spec: { measure: "count" }, labels: ["running"], series: [series([START + 1], [3])] },
  ];
  assert.equal(
    csvOf(rowsOf(panels)),
    "time,TTFT: p50 (s),TTFT: p99 (s),Load: running\r\n" +
      "2023-11-14T22:13:20.000Z,0.5,,\r\n" +
      "2023-11-14T22:13:21.000Z,0.6,0.9,3\r\n",
  );
});

test("a picture says what of the page it leaves out, and the menu what it would", () => {
  const charts = [
    { title: "TTFT", place: "folded", group: "Latency" },
    { title: "ITL", place: "folded", group: "Latency" },
    { title: "Step time", place: "hidden", group: "Batch" },
    { title: "Tokens/s", place: "open", group: "Batch" },
  ];
  assert.equal(leftOutWords(charts), "Left out: Latency (folded away), Step time (hidden).");
  assert.equal(leftOutWords(charts.slice(3)), "");
  assert.equal(offerWords(charts), "The picture has what is open (1), the table all (4).");
  assert.deepEqual(charts.slice(2).map(titleWords), ["Step time (hidden)", "Tokens/s"]);
});
