/** Pages about tenants: copying a key that is shown this once, and forms that are sent once. */
import { setText, show } from "./dom.js";

/** A form that is on its way is not sent again by a second click. */
export function sendOnce(/** @type {HTMLFormElement} */ form) {
  let isSent = false;
  form.addEventListener("submit", (event) => {
    if (isSent) event.preventDefault();
    isSent = true;
  });
  // Back again from the page that it led to, the form can be sent anew.
  globalThis.addEventListener("pageshow", () => (isSent = false));
}

/**
 * Offers to copy the text of `source`. Where the browser refuses, the text is marked, so that it can be copied by hand.
 *
 * @param {HTMLElement} button
 * @param {{source: HTMLElement, status: HTMLElement, write: (text: string) => Promise<void>}} parts
 */
export function offerCopy(button, { source, status, write }) {
  show(button, true);
  button.addEventListener("click", async () => {
    try {
      await write(source.textContent ?? "");
      setText(status, "Copied.");
    } catch {
      getSelection()?.selectAllChildren(source);
      setText(status, "The browser did not let it be copied: it is marked, copy it by hand.");
    }
  });
}

function start() {
  for (const form of document.querySelectorAll("form[data-once]")) sendOnce(/** @type {HTMLFormElement} */ (form));
  const made = document.getElementById("key-made");
  const [button, source, status] = ["copy", "secret", "copied"].map((id) => document.getElementById(id));
  if (!made || !button || !source || !status) return;
  // To load the page again must not make another key.
  history.replaceState(null, "", made.dataset.address);
  offerCopy(button, { source, status, write: (text) => navigator.clipboard.writeText(text) });
}

if (globalThis.document) start();
