/**
 * The playground's form: what it says, and what is wrong with it.
 *
 * @typedef {import("./playground_body.js").Endpoint} Endpoint
 * @typedef {import("./playground_body.js").Message} Message
 * @typedef {import("./playground_body.js").Wish} Wish
 */
import { byId, chosen, find, setText, show } from "./dom.js";

/** What the API calls a field, and where it is typed, where that is not its own name. */
const PLACES = /** @type {Record<string, string>} */ ({
  messages: "text",
  prompt: "text",
  stop: "stop_texts",
  logprobs: "top_logprobs",
});
const ERRORS = /** @type {Record<string, string>} */ ({ messages: "text", prompt: "text", logprobs: "top_logprobs" });

/** @param {string} id */
const field = (id) => /** @type {HTMLInputElement} */ (byId(id));

/** @returns {Endpoint} */
export function endpoint() {
  return chosen(byId("endpoint")) === "completion" ? "completion" : "chat";
}

/** The chosen pool's option. */
export function pool() {
  const select = /** @type {HTMLSelectElement} */ (/** @type {unknown} */ (byId("pool")));
  return select.selectedOptions[0];
}

/** Where the wish is sent. @returns {string} */
export function address() {
  const { chatUrl, completionUrl } = pool().dataset;
  return (endpoint() === "chat" ? chatUrl : completionUrl) ?? "";
}

/** @returns {string} */
export function csrfToken() {
  return /** @type {HTMLInputElement} */ (find(byId("play"), "[name=csrfmiddlewaretoken]")).value;
}

/** @param {Message[]} messages what is to be answered @returns {Wish} */
export function wish(messages) {
  const { value, dataset } = pool();
  const inputs = /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("[data-parameter]"));
  return {
    endpoint: endpoint(),
    model: dataset.model ?? "",
    pool: dataset.only === "true" ? null : value,
    system: field("system").value,
    messages,
    prompt: field("text").value,
    numbers: Object.fromEntries([...inputs].map((input) => [input.id, input.value])),
    stop: field("stop_texts").value,
    topLogprobs: field("top_logprobs").value,
  };
}

/** Forgets what was wrong. */
export function clearErrors() {
  for (const place of document.querySelectorAll("#play [aria-invalid]")) place.removeAttribute("aria-invalid");
  for (const text of document.querySelectorAll("#play .field-error")) show(/** @type {HTMLElement} */ (text), false);
  show(byId("problem"), false);
}

/**
 * Says what is wrong beside the field that the API calls `param` (`messages[3].content` is the message's), or else over
 * the buttons. The first that is told gets the focus.
 *
 * @param {string | null} param
 * @param {string} message
 */
export function tell(param, message) {
  const name = /^[a-z_]+/.exec(param ?? "")?.[0] ?? "";
  const place = document.getElementById(PLACES[name] ?? name);
  const text = document.getElementById(`${ERRORS[name] ?? name}-error`);
  if (!place || !text || !byId("play").contains(place)) {
    setText(byId("problem"), message);
    show(byId("problem"), true);
    return;
  }
  if (document.querySelector("#play [aria-invalid]") === null) place.focus();
  place.setAttribute("aria-invalid", "true");
  setText(text, message);
  show(text, true);
}
