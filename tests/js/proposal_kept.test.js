/** What an operator proposed and a page that was loaded anew finds again. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { keepProposal } from "../../static/dashboard/js/kept_proposal.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { createStore } from "../../static/dashboard/js/store.js";
import { hello, version } from "./support/messages.js";

/** @type {Map<string, string>} */
let held;

beforeEach(() => {
  held = new Map();
  const storage = { getItem: (key) => held.get(key) ?? null, setItem: (key, text) => held.set(key, text) };
  Object.defineProperty(globalThis, "sessionStorage", { value: storage, configurable: true });
});

afterEach(() => {
  delete globalThis.sessionStorage;
});

const settle = () => new Promise((resolve) => setImmediate(resolve));

/** A page that has heard the server's hello. */
async function openPage({ pool = "default", ...values } = {}) {
  const store = createStore(reduce, initialState({ now: 0 }));
  keepProposal({ pool, store });
  store.dispatch({ type: "received", message: hello({ versions: [version(5), version(4)], ...values }), at: 1 });
  await settle();
  return {
    proposal: () => store.getState().proposal,
    async act(...actions) {
      for (const action of actions) store.dispatch(action);
      await settle();
    },
  };
}

const edit = (name, text) => ({ type: "edit", name, text });
const twoEdits = [edit("max_running", "8"), edit("batch_window_ms", "x"), { type: "edit_reason", text: "too slow" }];

async function leaveEdits(options) {
  const page = await openPage(options);
  await page.act(...twoEdits);
}

test("edits, wrong ones too, and their reason are back after a reload", async () => {
  await leaveEdits();
  const { phase, base, texts, changes, errors, reason, conflict } = (await openPage()).proposal();
  assert.deepEqual([phase, base.number, texts], ["editing", 5, { max_running: "8", batch_window_ms: "x" }]);
  assert.deepEqual([changes, Object.keys(errors)], [{ max_running: 8 }, ["batch_window_ms"]]);
  assert.deepEqual([reason, conflict], ["too slow", null]);
});

test("what others stored meanwhile stands against them", async () => {
  await leaveEdits();
  const newer = version(6, { author: "bob", changes: { mode: ["continuous", "static"] } });
  const { base, conflict } = (await openPage({ versions: [newer, version(5)] })).proposal();
  assert.deepEqual([base.number, conflict.newer], [5, [newer]]);
});

test("where their base is out of sight all known versions but the oldest stand against them", async () => {
  await leaveEdits();
  const { base, conflict } = (await openPage({ versions: [version(60), version(59), version(58)] })).proposal();
  assert.deepEqual([base.number, conflict.newer.map(({ number }) => number)], [58, [60, 59]]);
});

test("edits that are discarded or stored do not come back", async () => {
  const page = await openPage();
  await page.act(...twoEdits, { type: "discard" });
  assert.equal((await openPage()).proposal().phase, "idle");

  await page.act(edit("max_running", "8"), { type: "sent", id: 1 });
  const info = version(6, { values: { max_running: 8 }, changes: { max_running: [32, 8] } });
  await page.act({ type: "received", message: { type: "stored", id: 1, version: info }, at: 2 });
  assert.deepEqual((await openPage({ versions: [info, version(5)] })).proposal().texts, {});
});

test("they are one user's, one pool's, and of nobody who may only watch", async () => {
  await leaveEdits();
  assert.equal((await openPage({ pool: "other" })).proposal().phase, "idle");
  assert.equal((await openPage({ may_steer: false })).proposal().phase, "idle");
  await leaveEdits();
  assert.equal((await openPage({ user: "bob" })).proposal().phase, "idle");
  assert.equal((await openPage()).proposal().phase, "idle", "and the other user's page has taken their place");
});

test("what makes no sense is passed over", async () => {
  await leaveEdits();
  const [[key, text]] = held;
  const good = JSON.parse(text);
  const nonsense = [
    null,
    [],
    "text",
    { ...good, texts: ["8"] },
    { ...good, texts: null },
    { ...good, texts: { max_running: 8 } },
    { ...good, texts: { unheard_of: "8" } },
    { ...good, texts: { max_running: "32" } },
    { ...good, reason: 7 },
    { ...good, basedOn: "5" },
    { ...good, basedOn: 6 },
  ];
  for (const value of nonsense) {
    held.set(key, JSON.stringify(value));
    const { phase, texts, reason } = (await openPage()).proposal();
    assert.deepEqual([phase, texts, reason], ["idle", {}, ""], JSON.stringify(value));
  }
});
