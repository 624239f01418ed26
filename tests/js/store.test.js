import assert from "node:assert/strict";
import { test } from "node:test";

import { createStore } from "../../static/dashboard/js/store.js";
import { settle } from "./support/fakes.js";

const add = (state, amount) => (amount === 0 ? state : state + amount);

test("the state is the new one at once, and listeners hear of a batch together", async () => {
  const store = createStore(add, 0);
  const heard = [];
  store.subscribe((state) => heard.push(state));
  store.dispatch(1);
  store.dispatch(2);
  assert.equal(store.getState(), 3);
  assert.deepEqual(heard, []);
  await settle();
  assert.deepEqual(heard, [3]);
  store.dispatch(4);
  await settle();
  assert.deepEqual(heard, [3, 7]);
});

test("an action that changes nothing is not announced", async () => {
  const store = createStore(add, 0);
  const heard = [];
  store.subscribe((state) => heard.push(state));
  store.dispatch(0);
  await settle();
  assert.deepEqual(heard, []);
});

test("a listener may dispatch, and is told of it later", async () => {
  const store = createStore(add, 0);
  const heard = [];
  store.subscribe((state) => {
    heard.push(state);
    if (state < 3) store.dispatch(1);
  });
  store.dispatch(1);
  await settle();
  assert.deepEqual(heard, [1, 2, 3]);
});

test("a listener that fails is reported, and keeps nothing from the others", async (context) => {
  const store = createStore(add, 0);
  const heard = [];
  const reported = [];
  globalThis.reportError = (error) => reported.push(error.message);
  context.after(() => delete globalThis.reportError);
  store.subscribe(() => {
    throw new Error("broken view");
  });
  store.subscribe((state) => heard.push(state));
  store.dispatch(1);
  await settle();
  assert.deepEqual([reported, heard], [["broken view"], [1]]);
});
