import assert from "node:assert/strict";
import { test } from "node:test";

import { streamPrompt } from "../../static/dashboard/js/promptstream.js";

/** What becomes of a prompt whose answer is these messages, after which the connection breaks. */
function askAndBreak(...messages) {
  const pieces = messages.map((message) => new TextEncoder().encode(`${JSON.stringify(message)}\n`));
  const stream = new ReadableStream({
    pull(controller) {
      if (pieces.length === 0) controller.error(new TypeError("network error"));
      else controller.enqueue(pieces.shift());
    },
  });
  return streamPrompt({
    url: "/prompt",
    csrfToken: "t0k3n",
    body: { text: "Hello", max_tokens: 16, temperature: 0 },
    onProgress: () => {},
    fetch: async () => new Response(stream),
  });
}

test("an answer that has ended stays ended, though the connection breaks after its last word", async () => {
  const done = { finish_reason: "stop", prompt_tokens: 3, completion_tokens: 1 };
  const end = await askAndBreak({ text: "A" }, { done });
  assert.deepEqual([end.outcome, end.finishReason, end.completionTokens], ["done", "stop", 1]);
  const failed = await askAndBreak({ error: { code: "engine_error", message: "the engine is gone" } });
  assert.deepEqual([failed.outcome, failed.code], ["failed", "engine_error"]);
});

test("an answer that breaks off before its last word was lost", async () => {
  assert.equal((await askAndBreak({ text: "A" })).code, "connection_lost");
});
