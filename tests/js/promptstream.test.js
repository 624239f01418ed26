import assert from "node:assert/strict";
import { test } from "node:test";

import { readLines, streamPrompt } from "../../static/dashboard/js/promptstream.js";
import { seededRandom, under } from "./support/fakes.js";

const encoder = new TextEncoder();
const DONE = { done: { finish_reason: "stop", prompt_tokens: 12, completion_tokens: 3 } };

/** A stream of these pieces of text or bytes. */
function streamOf(pieces, { onCancel } = {}) {
  const rest = pieces.map((piece) => (typeof piece === "string" ? encoder.encode(piece) : piece));
  return new ReadableStream({
    pull(controller) {
      if (rest.length === 0) controller.close();
      else controller.enqueue(rest.shift());
    },
    cancel: onCancel,
  });
}

const lines = (...messages) => messages.map((message) => `${JSON.stringify(message)}\n`);

function ask(response, options = {}) {
  const calls = [];
  const progress = [];
  const fetch = async (...call) => {
    calls.push(call);
    return typeof response === "function" ? response(...call) : response;
  };
  const body = { text: "Hello", max_tokens: 16, temperature: 0.5 };
  const result = streamPrompt({
    url: "/prompt",
    csrfToken: "t0k3n",
    body,
    fetch,
    onProgress: (next) => progress.push(next),
    ...options,
  });
  return { calls, progress, result };
}

async function collect(stream) {
  const found = [];
  for await (const line of readLines(stream)) found.push(line);
  return found;
}

test("the request carries the prompt and the token against forgery", async () => {
  const { calls, result } = ask(new Response(streamOf(lines(DONE))));
  await result;
  const [url, { method, headers, body }] = calls[0];
  assert.deepEqual(
    [url, method, headers],
    ["/prompt", "POST", { "Content-Type": "application/json", "X-CSRFToken": "t0k3n" }],
  );
  assert.deepEqual(JSON.parse(body), { text: "Hello", max_tokens: 16, temperature: 0.5 });
});

test("the answer grows piece by piece, and is measured", async () => {
  const times = [0, 250, 350, 450];
  const clock = () => times.shift();
  const { progress, result } = ask(new Response(streamOf(lines({ text: "A" }, { text: " b" }, { text: " c" }, DONE))), {
    clock,
  });
  const end = await result;
  assert.deepEqual(
    progress.map(({ added }) => added),
    ["A", " b", " c"],
  );
  assert.deepEqual(progress[0], {
    added: "A",
    entries: [],
    numPieces: 1,
    numTokens: 1,
    ttftSeconds: 0.25,
    tokensPerSecond: null,
  });
  assert.deepEqual(end, {
    outcome: "done",
    finishReason: "stop",
    completionTokens: 3,
    usage: DONE.done,
    numPieces: 3,
    numTokens: 3,
    ttftSeconds: 0.25,
    tokensPerSecond: 10,
  });
});

test("an error in the stream keeps what came before it", async () => {
  const error = { error: { code: "engine_error", message: "the engine is gone" } };
  const { progress, result } = ask(new Response(streamOf(lines({ text: "A" }, error))));
  const end = await result;
  assert.deepEqual(
    [end.outcome, end.code, end.message, end.param],
    ["failed", "engine_error", "the engine is gone", null],
  );
  assert.deepEqual([progress.length, end.numPieces], [1, 1]);
});

test("a stream that ends without a last word was lost", async () => {
  const end = await ask(new Response(streamOf(lines({ text: "A" })))).result;
  assert.deepEqual([end.outcome, end.code, end.numPieces], ["failed", "connection_lost", 1]);
});

test("a server out of reach, and one that talks nonsense, are failures and no exceptions", async () => {
  const away = ask(() => {
    throw new TypeError("Failed to fetch");
  });
  assert.equal((await away.result).code, "connection_lost");
  assert.equal((await ask(new Response(streamOf(["<html>\n"]))).result).code, "connection_lost");
  assert.equal((await ask(new Response(streamOf(["null\n"]))).result).code, "connection_lost");
});

test("a refusal says what the server says", async () => {
  const error = {
    code: "invalid_value",
    message: "max_tokens must be an integer from 1 to 2048, not 0",
    param: "max_tokens",
  };
  const end = await ask(Response.json({ error }, { status: 400 })).result;
  assert.deepEqual(
    [end.outcome, end.code, end.message, end.param],
    ["failed", error.code, error.message, "max_tokens"],
  );
});

test("a refusal that is no JSON is told by its status", async () => {
  const end = await ask(new Response("<h1>Forbidden</h1>", { status: 403 })).result;
  assert.deepEqual([end.code, /sign in again/.test(end.message)], ["http_403", true]);
  assert.equal((await ask(new Response("", { status: 502 })).result).message, "The server answered with status 502.");
});

test("stopped by its caller, it ends with what it has and lets the stream go", async () => {
  const abort = new AbortController();
  let isCancelled = false;
  const stream = streamOf([...lines({ text: "A" }), ...lines({ text: "B" }), ...lines(DONE)], {
    onCancel: () => (isCancelled = true),
  });
  const { result } = ask(new Response(stream), {
    signal: abort.signal,
    onProgress: () => {
      abort.abort();
      throw abort.signal.reason;
    },
  });
  const end = await result;
  assert.deepEqual([end.outcome, end.numPieces, isCancelled], ["stopped", 1, true]);
});

test("lines are whole however the network cuts them, within characters too", async () => {
  const messages = Array.from({ length: 40 }, (_, index) => ({ text: `${index} – Größe 🚂 \\n "x"\u2028` }));
  const bytes = encoder.encode(lines(...messages).join(""));
  for (let seed = 1; seed <= 40; seed += 1) {
    const random = seededRandom(seed);
    const pieces = [];
    for (let start = 0; start < bytes.length;) {
      const end = Math.min(bytes.length, start + under(random, seed + 1));
      pieces.push(bytes.subarray(start, end));
      start = end;
    }
    assert.deepEqual(
      (await collect(streamOf(pieces))).map((line) => JSON.parse(line)),
      messages,
      `seed ${seed}`,
    );
  }
});

test("empty lines are none, and the last needs no newline", async () => {
  assert.deepEqual(await collect(streamOf(["\n\na\n\r\n", "b"])), ["a", "b"]);
  assert.deepEqual(await collect(streamOf([])), []);
});
