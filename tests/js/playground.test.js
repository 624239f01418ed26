/** What the playground sends, and the code that sends the same. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";

import { bodyOf, stopsOf } from "../../static/dashboard/js/playground_body.js";
import { asCurl, asPython } from "../../static/dashboard/js/playground_code.js";

const USER = { role: "user", content: "Hi" };
const WISH = {
  endpoint: "chat",
  model: "a-model",
  pool: null,
  system: "",
  messages: [USER],
  prompt: "",
  numbers: { temperature: "0.7", top_k: "", seed: " 7 " },
  stop: "",
  topLogprobs: "",
};
const HOSTILE = "it's \"quoted\" \\n $HOME `id` !\n\t\u2028 ďábel 👩‍👧";

test("what is empty is left out, and numbers are numbers", () => {
  assert.deepEqual(bodyOf(WISH), {
    body: { model: "a-model", messages: [USER], temperature: 0.7, seed: 7, stream: true },
    errors: {},
  });
});

test("the system message comes first, and the pool is named where it must be", () => {
  const { body } = bodyOf({ ...WISH, system: "Be brief.", pool: "bulk" });
  assert.deepEqual(body.messages, [{ role: "system", content: "Be brief." }, USER]);
  assert.equal(body.pool, "bulk");
});

test("a completion has a prompt, and says otherwise how many probable tokens it wants", () => {
  const wish = { ...WISH, prompt: "Once", numbers: {}, topLogprobs: "3" };
  assert.deepEqual(bodyOf({ ...wish, endpoint: "completion" }).body, {
    model: "a-model",
    prompt: "Once",
    logprobs: 3,
    stream: true,
  });
  const chat = bodyOf(wish).body;
  assert.deepEqual([chat.logprobs, chat.top_logprobs], [true, 3]);
});

test("what is no number is told beside its field, and nothing else is judged here", () => {
  const { body, errors } = bodyOf({
    ...WISH,
    numbers: { temperature: "hot", top_p: "7", seed: "9007199254740993", min_p: "Infinity" },
  });
  assert.equal(errors.temperature, 'temperature must be a number, not "hot".');
  assert.match(errors.seed, /^seed must be a number within/);
  assert.match(errors.min_p, /^min_p must be a number/);
  assert.deepEqual([body.top_p, "temperature" in body, "seed" in body], [7, false, false]);
});

test("stop texts stand a line each, with line ends written out", () => {
  assert.deepEqual(stopsOf("END\n\n\\n\\n\r\na\\\\n\\t"), ["END", "\n\n", "a\\n\t"]);
});

test("curl's command says to a shell just what is sent", () => {
  const { body } = bodyOf({ ...WISH, messages: [{ role: "user", content: HOSTILE }] });
  const command = asCurl("http://host:1", "chat", body).replace(/^curl/, "printf '%s\\0'");
  const words = execFileSync("sh", ["-c", command], { encoding: "utf8", env: { FOOTPLATE_API_KEY: "fp-key" } }).split("\0");
  assert.deepEqual(words.slice(0, 6), [
    "--no-buffer",
    "http://host:1/v1/chat/completions",
    "-H",
    "Authorization: Bearer fp-key",
    "-H",
    "Content-Type: application/json",
  ]);
  assert.deepEqual(JSON.parse(words[7]), body);
});

test("Python's program hands the client just what is sent, whatever is quoted in it", () => {
  const { body } = bodyOf({
    ...WISH,
    pool: "bulk",
    messages: [{ role: "user", content: HOSTILE }],
    numbers: { top_k: "20", temperature: "0" },
    stop: "'\\n",
    topLogprobs: "2",
  });
  const program = asPython("http://host:1", "chat", body);
  const fake = `
import json, sys, types
def create(**sent):
    print(json.dumps({**{k: v for k, v in sent.items() if k != "extra_body"}, **sent.get("extra_body", {})}))
    print(json.dumps(sorted(sent)))
    return []
client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=create)))
def OpenAI(**given):
    print(json.dumps(given))
    return client
sys.modules["openai"] = types.SimpleNamespace(OpenAI=OpenAI)
`;
  const output = execFileSync("python3", ["-"], {
    input: fake + program,
    encoding: "utf8",
    env: { FOOTPLATE_API_KEY: "fp-key", PATH: process.env.PATH, PYTHONIOENCODING: "utf8" },
  });
  const [client, sent, names] = output.split("\n").slice(0, 3).map((line) => JSON.parse(line));
  assert.deepEqual(client, { base_url: "http://host:1/v1", api_key: "fp-key" });
  assert.deepEqual(sent, body);
  assert.ok(names.includes("extra_body") && !names.includes("top_k"));
});

test("of a completion it prints the text", () => {
  const program = asPython("http://host:1", "completion", { model: "m", prompt: "Once", stream: true });
  assert.match(program, /client\.completions\.create\(\n {4}model="m",\n {4}prompt="Once",\n {4}stream=True,\n\)/);
  assert.match(program, /print\(choice\.text, end="", flush=True\)/);
  assert.doesNotMatch(program, /extra_body/);
});
