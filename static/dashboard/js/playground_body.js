/**
 * What the playground sends: the very body that the API takes. Pure functions.
 *
 * @typedef {"chat" | "completion"} Endpoint
 * @typedef {{role: "system" | "user" | "assistant", content: string}} Message
 * @typedef {Record<string, unknown>} Body
 *
 * What the form says: numbers as they were typed, `pool` where the body must name it.
 * @typedef {object} Wish
 * @property {Endpoint} endpoint
 * @property {string} model
 * @property {string | null} pool
 * @property {string} system
 * @property {Message[]} messages said so far, the new one last
 * @property {string} prompt of a completion
 * @property {Record<string, string>} numbers by parameter
 * @property {string} stop a text a line
 * @property {string} topLogprobs empty where none are wanted
 */

/**
 * The body, and what is wrong with which field; what a number may be is the server's to say.
 *
 * @param {Wish} wish
 * @returns {{body: Body, errors: Record<string, string>}}
 */
export function bodyOf(wish) {
  /** @type {Record<string, string>} */
  const errors = {};
  /** @type {Body} */
  const body = { model: wish.model };
  if (wish.pool !== null) body.pool = wish.pool;
  if (wish.endpoint === "chat") body.messages = conversation(wish);
  else body.prompt = wish.prompt;
  for (const [name, text] of Object.entries(wish.numbers)) setNumber(body, errors, name, text);
  const stops = stopsOf(wish.stop);
  if (stops.length > 0) body.stop = stops;
  setLogprobs(body, errors, wish);
  body.stream = true;
  return { body, errors };
}

/** @param {Wish} wish @returns {Message[]} */
function conversation({ system, messages }) {
  return system.trim() === "" ? messages : [{ role: "system", content: system }, ...messages];
}

/** @param {Body} body @param {Record<string, string>} errors @param {string} name @param {string} text */
function setNumber(body, errors, name, text) {
  const typed = text.trim();
  if (typed === "") return;
  const value = Number(typed);
  if (!Number.isFinite(value)) errors[name] = `${name} must be a number, not ${JSON.stringify(typed)}.`;
  else if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
    errors[name] = `${name} must be a number within ±${Number.MAX_SAFE_INTEGER}: a browser knows none beyond exactly.`;
  } else body[name] = value;
}

/** @param {Body} body @param {Record<string, string>} errors @param {Wish} wish */
function setLogprobs(body, errors, { endpoint, topLogprobs }) {
  setNumber(body, errors, "top_logprobs", topLogprobs);
  if (!("top_logprobs" in body)) return;
  if (endpoint === "chat") body.logprobs = true;
  else {
    body.logprobs = body.top_logprobs;
    delete body.top_logprobs;
  }
}

/**
 * One text a line, of which `\n` is a line end, `\t` a tab and `\\` a backslash. Empty lines say nothing.
 *
 * @param {string} text
 * @returns {string[]}
 */
export function stopsOf(text) {
  /** @type {Record<string, string>} */
  const meant = { n: "\n", t: "\t", "\\": "\\" };
  return text
    .split(/\r?\n/)
    .filter((line) => line !== "")
    .map((line) => line.replace(/\\([nt\\])/g, (_, letter) => meant[letter]));
}
