/**
 * A request of the playground as code that sends the same. Pure functions.
 *
 * @typedef {import("./playground_body.js").Body} Body
 * @typedef {import("./playground_body.js").Endpoint} Endpoint
 */

const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };
const CALLS = { chat: "chat.completions", completion: "completions" };
const PIECES = { chat: "choice.delta.content or \"\"", completion: "choice.text" };

/** What OpenAI's client has an argument for; all else goes as `extra_body`, which it sends beside them. */
const ARGUMENTS = new Set([
  "model",
  "messages",
  "prompt",
  "max_tokens",
  "temperature",
  "top_p",
  "stop",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "logprobs",
  "top_logprobs",
  "stream",
]);

/**
 * @param {string} origin the server's, as `https://llm.example`
 * @param {Endpoint} endpoint
 * @param {Body} body
 * @returns {string} a command of a POSIX shell
 */
export function asCurl(origin, endpoint, body) {
  return [
    `curl --no-buffer ${quoted(origin + PATHS[endpoint])} \\`,
    `  -H "Authorization: Bearer $FOOTPLATE_API_KEY" \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d ${quoted(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

/**
 * @param {string} origin
 * @param {Endpoint} endpoint
 * @param {Body} body
 * @returns {string} a program for Python with the package `openai`
 */
export function asPython(origin, endpoint, body) {
  const known = Object.entries(body).filter(([name]) => ARGUMENTS.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !ARGUMENTS.has(name)));
  const lines = known.map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  if (Object.keys(extra).length > 0) lines.push(`    extra_body=${literal(extra, 4)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(`${origin}/v1`)}, api_key=os.environ["FOOTPLATE_API_KEY"])`,
    `stream = client.${CALLS[endpoint]}.create(`,
    ...lines,
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(${PIECES[endpoint]}, end="", flush=True)`,
    "print()",
  ].join("\n");
}

/** A word of a shell's command. @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * A JSON value as Python writes it. JSON's strings are Python's but for pairs of escapes, which nothing writes here.
 *
 * @param {unknown} value
 * @param {number} [indent] of the line that it begins on
 * @returns {string}
 */
function literal(value, indent = 0) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((item) => literal(item, indent + 4))]
    : ["{", "}", Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, indent + 4)}`)];
  const line = open + items.join(", ") + close;
  if (line.length + indent < 72 && !line.includes("\n")) return line;
  const pad = " ".repeat(indent + 4);
  return `${open}\n${items.map((item) => `${pad}${item},\n`).join("")}${" ".repeat(indent)}${close}`;
}
