/**
 * The prompt box: a question to the model, its answer as it comes, and what it took.
 *
 * @typedef {import("./promptstream.js").Progress} Progress
 * @typedef {import("./promptstream.js").PromptResult} PromptResult
 */
import { byId, find, setText, show } from "./dom.js";
import { focusFirst } from "./focus.js";
import { rate, seconds, tokens } from "./format.js";
import { streamPrompt } from "./promptstream.js";

/** @param {{url: string}} options where prompts are sent */
export function createPrompt({ url }) {
  const form = /** @type {HTMLFormElement} */ (byId("prompt-form"));
  const text = /** @type {HTMLTextAreaElement} */ (byId("prompt-text"));
  const answer = byId("prompt-answer");
  const facts = byId("prompt-facts");
  const problem = byId("prompt-error");
  const [sendButton, stopButton] = [byId("prompt-send"), byId("prompt-stop")];
  /** @type {AbortController | null} */
  let running = null;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running !== null) return;
    if (text.value.trim() === "") refuse();
    else void ask();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stopButton.addEventListener("click", () => running?.abort());

  /** Of spaces the server would say no more than that they are too few. */
  function refuse() {
    tell("Write something first.");
    text.focus();
  }

  /** @param {string} message a problem's; empty where there is none */
  function tell(message) {
    setText(problem, message);
    show(problem, message !== "");
  }

  async function ask() {
    const stop = new AbortController();
    begin(stop);
    const result = await streamPrompt({ ...request(), signal: stop.signal, onProgress });
    running = null;
    showStop(false);
    setText(facts, factsOf(result));
    tell(result.outcome === "failed" ? result.message : "");
  }

  /** @param {AbortController} stop */
  function begin(stop) {
    running = stop;
    showStop(true);
    answer.replaceChildren();
    tell("");
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

  /** The two buttons take each other's place, and the focus with it. @param {boolean} isRunning */
  function showStop(isRunning) {
    const [shown, hidden] = isRunning ? [stopButton, sendButton] : [sendButton, stopButton];
    const hadFocus = document.activeElement === hidden;
    show(shown, true);
    show(hidden, false);
    if (hadFocus) focusFirst([shown]);
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
