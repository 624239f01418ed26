/**
 * Forms that the browser sends by itself. Before it does, the server is asked whose session this is: where it is away,
 * or the session has ended, nothing is sent, and what was typed stays.
 */
import { currentToken } from "./csrf.js";
import { byId, create, setText, show } from "./dom.js";

const WITHIN_MS = 8000;
const AWAY = "Nothing was sent: the server does not answer. What you typed is still here; try again.";
const SIGNED_OUT = "Nothing was sent: you are signed out. Sign in in another tab, then send it again from here.";
const NO_OPERATOR = "Nothing was sent: your account may not use the console any more.";
const OTHERS_PASSWORD =
  "Nothing was sent: choose a password of your own first, on the page of your account. What you typed is still here.";
const REDRAWN = "Nothing was sent: the page changed meanwhile. Look at it, and try again.";

/** @typedef {{text: string, isSignedOut: boolean}} Hindrance why a form must not be sent */

/**
 * What keeps a form from being sent; null where nothing does.
 *
 * @param {object} parts
 * @param {string} parts.url
 * @param {string} parts.user whose page this is; empty where nobody is signed in, as on the page to sign in at
 * @param {boolean} [parts.isForAll] whether it is also for those who may not use the console, or not yet: they may sign
 *   out, and choose a password
 * @param {typeof globalThis.fetch} [parts.fetch]
 * @returns {Promise<Hindrance | null>}
 */
export async function hindranceTo({ url, user, isForAll = false, fetch = globalThis.fetch }) {
  try {
    const signal = AbortSignal.timeout(WITHIN_MS);
    const response = await fetch(url, { headers: { Accept: "application/json" }, cache: "no-store", signal });
    if (!response.ok) return { text: refusedWith(response.status), isSignedOut: false };
    const { user: now, may_watch: mayWatch, must_change_password: mustChange } = await response.json();
    if (user === "") return null;
    if (now === null) return { text: SIGNED_OUT, isSignedOut: true };
    if (now !== user) return { text: takenOverBy(now), isSignedOut: false };
    if (isForAll) return null;
    if (!mayWatch) return { text: NO_OPERATOR, isSignedOut: false };
    return mustChange ? { text: OTHERS_PASSWORD, isSignedOut: false } : null;
  } catch {
    return { text: AWAY, isSignedOut: false };
  }
}

/** @param {number} status */
function refusedWith(status) {
  return `Nothing was sent: the server answers with status ${status}. What you typed is still here; try again.`;
}

/** @param {string} user */
function takenOverBy(user) {
  return `Nothing was sent: ${user} has signed in in another window. Reload the page to go on as ${user}.`;
}

/** Owns all forms of the page that are posted. @param {HTMLElement} notice where it is said what went wrong */
function guard(notice) {
  const { url = "", user = "", signInUrl = "" } = notice.dataset;
  const text = create("span");
  const signIn = create("a", { href: signInUrl, target: "_blank", rel: "noopener", text: "Sign in", hidden: true });
  notice.replaceChildren(text, " ", signIn);
  /** @type {WeakSet<HTMLFormElement>} forms that are asked about now */
  const asking = new WeakSet();
  /** @type {WeakSet<HTMLFormElement>} forms that may go */
  const allowed = new WeakSet();

  /** @param {Hindrance | null} hindrance */
  function tell(hindrance) {
    show(notice, hindrance !== null);
    setText(text, hindrance?.text ?? "");
    show(signIn, hindrance?.isSignedOut ?? false);
  }

  /** @param {HTMLFormElement} form @param {HTMLElement | null} button */
  async function ask(form, button) {
    asking.add(form);
    tell(null);
    const hindrance = await hindranceTo({ url, user, isForAll: form.hasAttribute("data-for-all") });
    asking.delete(form);
    if (hindrance !== null) return tell(hindrance);
    if (!form.isConnected) return tell({ text: REDRAWN, isSignedOut: false });
    for (const token of document.querySelectorAll("[name=csrfmiddlewaretoken]"))
      /** @type {HTMLInputElement} */ (token).value = currentToken(/** @type {HTMLInputElement} */ (token).value);
    allowed.add(form);
    form.requestSubmit(button !== null && form.contains(button) ? button : null);
  }

  // Before the forms' own listeners: those are for what is really sent.
  document.addEventListener(
    "submit",
    (event) => {
      const form = /** @type {HTMLFormElement} */ (event.target);
      if (form.getAttribute("method") !== "post" || allowed.delete(form)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (!asking.has(form)) void ask(form, event.submitter);
    },
    { capture: true },
  );
}

if (globalThis.document?.getElementById("not-sent")) guard(byId("not-sent"));
