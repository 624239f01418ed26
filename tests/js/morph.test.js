import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { morph } from "../../static/dashboard/js/morph.js";

/** As much of a document's nodes as the morphing uses. */
class FakeNode {
  constructor(nodeName, attributes, children) {
    this.nodeName = nodeName;
    this.nodeType = attributes === null ? 3 : 1;
    this.nodeValue = attributes === null ? children : null;
    this.attributes = new Map(Object.entries(attributes ?? {}));
    this.childNodes = [];
    this.parent = null;
    if (attributes !== null) for (const child of children) this.insertBefore(child, null);
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get nextSibling() {
    return this.parent.childNodes[this.parent.childNodes.indexOf(this) + 1] ?? null;
  }
  getAttributeNames() {
    return [...this.attributes.keys()];
  }
  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }
  hasAttribute(name) {
    return this.attributes.has(name);
  }
  setAttribute(name, value) {
    this.attributes.set(name, value);
  }
  removeAttribute(name) {
    this.attributes.delete(name);
  }
  remove() {
    this.parent?.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
    this.parent = null;
  }
  insertBefore(node, place) {
    node.remove();
    const index = place === null ? this.childNodes.length : this.childNodes.indexOf(place);
    this.childNodes.splice(index, 0, node);
    node.parent = this;
    node.numMoves = (node.numMoves ?? -1) + 1;
  }
  get text() {
    return this.nodeType === 3 ? this.nodeValue : this.childNodes.map((child) => child.text).join("");
  }
}

const text = (value) => new FakeNode("#text", null, value);
const element = (name, attributes = {}, ...children) => new FakeNode(name, attributes, children);
const row = (key, value = key) => element("tr", { "data-key": key }, text(value));
const table = (...keys) => element("tbody", {}, ...keys.map((key) => row(key)));
const keysOf = (parent) => parent.childNodes.map((child) => child.getAttribute("data-key"));

before(() => {
  globalThis.document = { importNode: (node) => node };
});
after(() => {
  delete globalThis.document;
});

test("texts and attributes become the new ones, in the nodes that were there", () => {
  const shown = element("div", { class: "old", hidden: "" }, element("p", {}, text("one")));
  const [paragraph] = shown.childNodes;
  const [words] = paragraph.childNodes;
  morph(shown, element("div", { class: "new" }, element("p", { title: "t" }, text("two"))));
  assert.deepEqual([...shown.attributes], [["class", "new"]]);
  assert.equal(shown.childNodes[0], paragraph);
  assert.equal(paragraph.childNodes[0], words);
  assert.deepEqual([words.nodeValue, paragraph.getAttribute("title")], ["two", "t"]);
});

test("what a reader has opened stays open", () => {
  const shown = element("details", { open: "" }, text("more"));
  morph(shown, element("details", {}, text("more")));
  assert.equal(shown.hasAttribute("open"), true);
});

test("rows that stay are neither made anew nor moved when others come and go", () => {
  const shown = table("a", "b", "c", "d");
  const [, b, , d] = shown.childNodes;
  morph(shown, table("new", "b", "newer", "d", "last"));
  assert.deepEqual(keysOf(shown), ["new", "b", "newer", "d", "last"]);
  assert.equal(shown.childNodes[1], b);
  assert.equal(shown.childNodes[3], d);
  assert.deepEqual([b.numMoves, d.numMoves], [0, 0]);
});

test("rows follow their keys when the order changes", () => {
  const shown = table("a", "b", "c");
  const before = new Map(shown.childNodes.map((node) => [node.getAttribute("data-key"), node]));
  morph(shown, table("c", "a", "b"));
  assert.deepEqual(keysOf(shown), ["c", "a", "b"]);
  for (const node of shown.childNodes) assert.equal(node, before.get(node.getAttribute("data-key")));
});

test("what is another element is replaced, and what is too much goes", () => {
  const shown = element("div", {}, element("p", {}, text("gone")), text(" "), element("p", {}, text("too much")));
  morph(shown, element("div", {}, element("ul", {}, text("here"))));
  assert.deepEqual(
    shown.childNodes.map((child) => [child.nodeName, child.text]),
    [["ul", "here"]],
  );
});

test("what follows a paragraph that comes and goes stays the same", () => {
  const [alone, withNotice] = [[], [element("p", {}, text("a notice")), text(" ")]];
  const card = (notice) => element("section", {}, text(" "), ...notice, element("div", {}, text("a table")), text(" "));
  const shown = card(alone);
  const [, kept] = shown.childNodes;
  morph(shown, card(withNotice));
  assert.deepEqual([shown.childNodes[1].nodeName, shown.childNodes[3]], ["p", kept]);
  morph(shown, card(alone));
  assert.deepEqual([shown.text, shown.childNodes[1], kept.numMoves], [" a table ", kept, 0]);
});

test("nothing with a key is passed over in looking for what has none", () => {
  const shown = element("div", {}, row("a"), element("p", {}, text("old")));
  const [keyed] = shown.childNodes;
  morph(shown, element("div", {}, element("p", {}, text("first")), row("a"), element("p", {}, text("last"))));
  assert.equal(shown.childNodes[1], keyed);
  assert.equal(shown.text, "firstalast");
});

test("all goes, and all comes", () => {
  const shown = table("a", "b");
  morph(shown, table());
  assert.equal(shown.childNodes.length, 0);
  morph(shown, table("a", "b"));
  assert.deepEqual(keysOf(shown), ["a", "b"]);
});
