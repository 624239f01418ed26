import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { offerCopy, sendOnce } from "../../static/dashboard/js/tenants.js";

function fakeButton() {
  const button = new EventTarget();
  return Object.assign(button, { hidden: true, click: () => button.dispatchEvent(new Event("click")) });
}

/** Lets what a click began come to its end. */
async function settle() {
  await new Promise((resolve) => setImmediate(resolve));
}

afterEach(() => {
  delete globalThis.getSelection;
});

test("a key is copied whole, and it is said so", async () => {
  const [button, source, status] = [fakeButton(), { textContent: "fp-0123-secret" }, { textContent: "" }];
  const copied = [];
  offerCopy(button, { source, status, write: async (text) => void copied.push(text) });
  assert.equal(button.hidden, false);
  button.click();
  await settle();
  assert.deepEqual([copied, status.textContent], [["fp-0123-secret"], "Copied."]);
});

test("where the browser refuses to copy, the key is marked instead", async () => {
  const [button, source, status] = [fakeButton(), { textContent: "fp-0123-secret" }, { textContent: "" }];
  const marked = [];
  globalThis.getSelection = () => ({ selectAllChildren: (element) => marked.push(element) });
  offerCopy(button, { source, status, write: () => Promise.reject(new Error("refused")) });
  button.click();
  await settle();
  assert.deepEqual(marked, [source]);
  assert.match(status.textContent, /by hand/);
});

test("a form is sent once, and anew only after the page is come back to", () => {
  const form = new EventTarget();
  const listened = [];
  const before = globalThis.addEventListener;
  globalThis.addEventListener = (kind, listener) => listened.push([kind, listener]);
  try {
    sendOnce(form);
  } finally {
    globalThis.addEventListener = before;
  }
  const send = () => form.dispatchEvent(new Event("submit", { cancelable: true }));
  assert.deepEqual([send(), send(), send()], [true, false, false]);
  const [[kind, comeBack]] = listened;
  assert.equal(kind, "pageshow");
  comeBack();
  assert.deepEqual([send(), send()], [true, false]);
});
