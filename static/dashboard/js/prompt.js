/**
 * The prompt box: a question to the model, its answer as it comes, and what it took.
 *
 * @typedef {import("./promptstream.js").Progress} Progress
 * @typedef {import("./promptstream.js").PromptResult} PromptResult
 */
import { byId, find, setText, show } from "./dom.js";
import { rate, seconds, tokens } from "./format.js";
import { streamPrompt } from "./promptstream.js";

/** @param {{url: string}} options where prompts are sent */
export function createPrompt({ url }) {
  const form = /** @type {HTMLFormElement} */ (byId("prompt-form"));
  const text = /** @type {HTMLTextAreaElement} */ (byId("prompt-text"));
  const answer = byId("prompt-answer");
  const facts = byId("prompt-facts");
  const problem = byId("prompt-error");
  /** @type {AbortController | null} */
  let running = null;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null) void ask();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  byId("prompt-stop").addEventListener("click", () => running?.abort());

  async function ask() {
    const stop = new AbortController();
    begin(stop);
    const result = await streamPrompt({ ...request(), signal: stop.signal, onProgress });
    running = null;
    showStop(false);
    setText(facts, factsOf(result));
    setText(problem, result.outcome === "failed" ? result.message : "");
    show(problem, result.outcome === "failed");
  }

  /** @param {AbortController} stop */
  function begin(stop) {
    running = stop;
    showStop(true);
    answer.replaceChildren();
    show(problem, false);
    setText(facts, "waiting for the first token");
  }

  /** @param {Progress} progress */
  function onProgress({ added, numPieces }) {
    if (numPieces === 1) setText(facts, "generating");
    const isAtEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 24;
    answer.append(added);
    if (isAtEnd) answer.scrollTop = answer.scrollHeight;
  }

  function request() {
    return {
      url,
      csrfToken: /** @type {HTMLInputElement} */ (find(form, "[name=csrfmiddlewaretoken]")).value,
      body: {
        text: text.value,
        max_tokens: /** @type {HTMLInputElement} */ (byId("prompt-max-tokens")).valueAsNumber,
        temperature: /** @type {HTMLInputElement} */ (byId("prompt-temperature")).valueAsNumber,
      },
    };
  }

  /** @param {boolean} isRunning */
  function showStop(isRunning) {
    show(byId("prompt-stop"), isRunning);
    show(byId("prompt-send"), !isRunning);
  }
}

/** @param {PromptResult} result */
function factsOf(result) {
  if (result.ttftSeconds === null) return result.outcome === "stopped" ? "stopped" : "";
  const num = result.outcome === "done" ? result.completionTokens : result.numPieces;
  const parts = [`TTFT ${seconds(result.ttftSeconds)}`, tokens(num)];
  if (result.tokensPerSecond !== null) parts.push(`${rate(result.tokensPerSecond)} tokens/s`);
  if (result.outcome === "stopped") parts.push("stopped");
  if (result.outcome === "done" && result.finishReason === "length") parts.push("ended at max tokens");
  return parts.join(" · ");
}
