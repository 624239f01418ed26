import assert from "node:assert/strict";
import { test } from "node:test";

import { refreshOnce } from "../../static/dashboard/js/fleet.js";
import { SignedOut } from "../../static/dashboard/js/parts.js";

/** What a refreshing needs, and what came of it. */
function parts(changes = {}) {
  const log = [];
  return {
    log,
    load: async () => "the region",
    isWatched: () => true,
    isHeld: () => false,
    say: (text) => log.push(`say ${text}`),
    show: (region) => log.push(`show ${region}`),
    clock: () => "12:00:03",
    since: "12:00:00",
    ...changes,
  };
}

test("what the server says now is shown, and since when", async () => {
  const given = parts();
  assert.equal(await refreshOnce(given), "12:00:03");
  assert.deepEqual(given.log, ["show the region", "say "]);
});

test("nothing is asked for while nobody looks, or while text is marked", async () => {
  const load = () => assert.fail("nobody asked");
  for (const held of [{ isWatched: () => false }, { isHeld: () => true }]) {
    const given = parts({ load, ...held });
    assert.equal(await refreshOnce(given), "12:00:00");
    assert.deepEqual(given.log, []);
  }
});

test("what comes after text was marked is not shown", async () => {
  let isHeld = false;
  const given = parts({ load: async () => void (isHeld = true), isHeld: () => isHeld });
  assert.equal(await refreshOnce(given), "12:00:00");
  assert.deepEqual(given.log, []);
});

test("a failure is said with the time of what is shown, and the page stays", async () => {
  const given = parts({ load: () => Promise.reject(new Error("away")) });
  assert.equal(await refreshOnce(given), "12:00:00");
  assert.equal(given.log.length, 1);
  assert.match(given.log[0], /^say Not refreshed since 12:00:00: /);
});

test("whoever is signed out is told so", async () => {
  const given = parts({ load: () => Promise.reject(new SignedOut()) });
  assert.equal(await refreshOnce(given), "12:00:00");
  assert.match(given.log[0], /^say Not refreshed since 12:00:00: you are signed out/);
});
