/** The few things that every view does to the document. Text is always set as text. */

/**
 * The element with this id; the page has it, or it is broken.
 *
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {string} id
 * @returns {Kind}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no #${id}`);
  return /** @type {Kind} */ (element);
}

/**
 * The first match within `parent`; it is there, or the page is broken.
 *
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {ParentNode} parent
 * @param {string} selector
 * @returns {Kind}
 */
export function find(parent, selector) {
  const element = parent.querySelector(selector);
  if (element === null) throw new Error(`the page has no ${selector}`);
  return /** @type {Kind} */ (element);
}

/**
 * Sets the text where it differs, so that what stays the same costs nothing.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * @param {HTMLElement} element
 * @param {boolean} isShown
 */
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/**
 * @param {HTMLElement} element
 * @param {string} name
 * @param {string} value
 */
export function setData(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

/**
 * A new element. `text` and `data` aside, `properties` are set as the element's own.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{text?: string, data?: Record<string, string>} & Record<string, unknown>} [properties]
 * @param {(Node | string)[]} [children]
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function create(tag, { text, data, ...properties } = {}, children = []) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  Object.assign(element.dataset, data);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

/**
 * The chosen radio button's value within `parent` (null where none is).
 *
 * @param {ParentNode} parent
 * @returns {string | null}
 */
export function chosen(parent) {
  return /** @type {HTMLInputElement | null} */ (parent.querySelector("input:checked"))?.value ?? null;
}
