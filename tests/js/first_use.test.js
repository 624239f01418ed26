/** What the button that sends sample traffic says beside itself. */
import assert from "node:assert/strict";
import test from "node:test";

import { inWords, read } from "../../static/dashboard/js/first_use.js";

test("while traffic is sent, who sends it and for how much longer", () => {
  assert.equal(inWords({ author: "ann", seconds_left: 12.3 }), "ann sends sample traffic, for 13 more s.");
});

test("else what the button does", () => {
  assert.match(inWords({}), /half a minute/);
});

test("a server that does not say whether traffic is sent has not said that none is", async () => {
  const answers = [
    async () => new Response("{}"),
    async () => new Response("", { status: 503 }),
    () => Promise.reject(new TypeError("network error")),
  ];
  assert.deepEqual(await Promise.all(answers.map((fetch) => read("/state", fetch))), [{}, null, null]);
});
