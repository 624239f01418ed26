/** What a page finds again when it is loaded anew in the same tab, after a sign-in say. */

/**
 * @param {string} key
 * @returns {unknown} null where nothing is kept; otherwise anything, so that whoever asks for it checks it
 */
export function kept(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

/**
 * @param {string} key
 * @param {unknown} value
 */
export function keep(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // No storage: it lasts as long as the page.
  }
}
