import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { keep, kept } from "../../static/dashboard/js/kept.js";

/** @param {unknown} storage */
function useStorage(storage) {
  Object.defineProperty(globalThis, "sessionStorage", { value: storage, configurable: true, writable: true });
}

function storageWith(entries = {}) {
  const held = new Map(Object.entries(entries));
  return { getItem: (key) => held.get(key) ?? null, setItem: (key, text) => held.set(key, text) };
}

afterEach(() => {
  delete globalThis.sessionStorage;
});

test("what is kept is found again, each under its own key", () => {
  useStorage(storageWith());
  keep("view", { window: "2" });
  keep("other", [1]);
  assert.deepEqual([kept("view"), kept("other"), kept("nothing")], [{ window: "2" }, [1], null]);
});

test("what cannot be read is not there", () => {
  useStorage(storageWith({ view: "{window", empty: "" }));
  assert.deepEqual([kept("view"), kept("empty")], [null, null]);
});

test("a browser that refuses storage, or whose storage is full, keeps nothing and breaks nothing", () => {
  const refuse = () => {
    throw new Error("refused");
  };
  useStorage({ getItem: refuse, setItem: refuse });
  keep("view", {});
  assert.equal(kept("view"), null);
});
