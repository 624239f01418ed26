/** Making what a page shows like what the server says now, with every node kept that need not go. */

const KEPT_ATTRIBUTES = new Set(["open"]);

/**
 * Gives `shown` the attributes and children of `fresh`, in place: focus, selection and scrolling stay where they are.
 * Siblings with a `data-key` are the same where their key is; others where their tag is and none before them matches.
 *
 * @param {Element} shown
 * @param {Element} fresh
 */
export function morph(shown, fresh) {
  morphAttributes(shown, fresh);
  morphChildren(shown, fresh);
}

/** @param {Element} shown @param {Element} fresh */
function morphAttributes(shown, fresh) {
  for (const name of shown.getAttributeNames())
    if (!fresh.hasAttribute(name) && !KEPT_ATTRIBUTES.has(name)) shown.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    const value = /** @type {string} */ (fresh.getAttribute(name));
    if (shown.getAttribute(name) !== value && !KEPT_ATTRIBUTES.has(name)) shown.setAttribute(name, value);
  }
}

/** @param {Element} parent @param {Element} freshParent */
function morphChildren(parent, freshParent) {
  const wanted = new Set([...freshParent.childNodes].map(keyOf));
  // First out with what is gone: what follows then stands where it is to stand, and need not be moved.
  for (const node of [...parent.childNodes]) if (keyOf(node) !== null && !wanted.has(keyOf(node))) node.remove();
  const keyed = new Map([...parent.childNodes].map((node) => [keyOf(node), node]));
  let place = parent.firstChild;
  for (const fresh of [...freshParent.childNodes]) {
    const key = keyOf(fresh);
    const match = key === null ? nextAlike(place, fresh) : keyed.get(key);
    if (!match || !isAlike(match, fresh)) {
      parent.insertBefore(document.importNode(fresh, true), place);
      continue;
    }
    if (key === null) removeUntil(place, match);
    else if (match !== place) parent.insertBefore(match, place);
    if (key === null || match === place) place = match.nextSibling;
    morphNode(match, fresh);
  }
  removeUntil(place, null);
}

/**
 * The first node from `place` on that `fresh` may become; only an element is looked for further than at its place, and
 * never beyond a node with a key.
 *
 * @param {ChildNode | null} place
 * @param {Node} fresh
 * @returns {ChildNode | null}
 */
function nextAlike(place, fresh) {
  for (let node = place; node && keyOf(node) === null; node = node.nextSibling) {
    if (isAlike(node, fresh)) return node;
    if (fresh.nodeType !== 1) return null;
  }
  return null;
}

/** @param {ChildNode | null} node @param {ChildNode | null} end */
function removeUntil(node, end) {
  while (node && node !== end) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
}

/** @param {Node} shown @param {Node} fresh */
function morphNode(shown, fresh) {
  if (shown.nodeType === 1) morph(/** @type {Element} */ (shown), /** @type {Element} */ (fresh));
  else if (shown.nodeValue !== fresh.nodeValue) shown.nodeValue = fresh.nodeValue;
}

/** @param {Node} one @param {Node} other */
function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

/** @param {Node} node @returns {string | null} */
function keyOf(node) {
  return node.nodeType === 1 ? /** @type {Element} */ (node).getAttribute("data-key") : null;
}
