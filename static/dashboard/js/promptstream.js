/**
 * A prompt's answer as it comes: newline-delimited JSON, cut anywhere by the network.
 *
 * @typedef {import("./types.js").Clock} Clock
 */
import { currentToken } from "./csrf.js";

const LOST = { code: "connection_lost", message: "The connection was lost before the answer ended.", param: null };

/**
 * A token of an answer and how probable it was (natural logarithm), beside the most probable ones at its place.
 *
 * @typedef {{token: string, logprob: number | null}} Candidate
 * @typedef {Candidate & {top: Candidate[]}} TokenEntry
 */

/**
 * What the last line of an answer tells; the engine's own account, where there is one.
 *
 * @typedef {object} Usage
 * @property {string} finish_reason
 * @property {number} prompt_tokens
 * @property {number} completion_tokens
 * @property {number} [queue_ms]
 * @property {number} [prefill_ms]
 * @property {number} [decode_ms]
 * @property {number} [num_preemptions]
 * @property {number} [num_cached_tokens]
 */

/**
 * Measured here, at the end of the way. Rates count tokens where the server tells of them, and else pieces, which are
 * tokens but for characters of several tokens.
 *
 * @typedef {object} Progress
 * @property {string} added since the last call
 * @property {TokenEntry[]} entries of the tokens added, where they were asked for
 * @property {number} numPieces
 * @property {number} numTokens
 * @property {number | null} ttftSeconds
 * @property {number | null} tokensPerSecond after the first; null before the second
 */

/** @typedef {Omit<Progress, "added" | "entries">} Measured */
/**
 * `stopped`: by the caller's signal.
 *
 * @typedef {Measured & {outcome: "done", finishReason: string, completionTokens: number, usage: Usage}
 *   | Measured & {outcome: "failed", code: string, message: string, param: string | null}
 *   | Measured & {outcome: "stopped"}} PromptResult
 */

/**
 * Sends a prompt and reads its answer. Never rejected: every end is a result.
 *
 * @param {object} request
 * @param {string} request.url
 * @param {string} request.csrfToken
 * @param {object} request.body
 * @param {(progress: Progress) => void} request.onProgress
 * @param {(requestId: string) => void} [request.onStart] once it is let in
 * @param {AbortSignal} [request.signal]
 * @param {typeof globalThis.fetch} [request.fetch]
 * @param {Clock} [request.clock]
 * @returns {Promise<PromptResult>}
 */
export async function streamPrompt({
  url,
  csrfToken,
  body,
  onProgress,
  onStart = () => {},
  signal,
  fetch = globalThis.fetch,
  clock = () => performance.now(),
}) {
  const meter = createMeter(clock);
  /** @type {PromptResult | null} */
  let result = null;
  try {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": currentToken(csrfToken) };
    const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok || response.body === null) return fail(meter, await readRefusal(response));
    onStart(response.headers?.get("x-request-id") ?? "");
    for await (const line of readLines(response.body)) {
      const message = JSON.parse(line);
      // Read on to the end: a stream that is given up counts as a failed request.
      if (message.done) result = finish(meter, message.done);
      if (message.error) result = fail(meter, message.error);
      if (typeof message.text === "string") onProgress(meter.add(message));
    }
    return result ?? fail(meter, LOST);
  } catch {
    if (result !== null) return result;
    return signal?.aborted ? { outcome: "stopped", ...meter.measured() } : fail(meter, LOST);
  }
}

/**
 * The lines of a stream of bytes, without empty ones. An end without a newline ends a line too. A reader that stops
 * early cancels the stream.
 *
 * @param {ReadableStream<Uint8Array>} stream UTF-8
 * @returns {AsyncGenerator<string>}
 */
export async function* readLines(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : (lines.pop() ?? "");
      for (const line of lines) if (line.trim() !== "") yield line;
      if (done) return;
    }
  } finally {
    // What is refused here is an answer that nobody waits for any more.
    reader.cancel().catch(() => {});
  }
}

/** @param {Response} response */
async function readRefusal(response) {
  const unexplained = { code: `http_${response.status}`, message: explain(response), param: null };
  try {
    const { error } = await response.json();
    return typeof error?.message === "string" ? error : unexplained;
  } catch {
    return unexplained;
  }
}

/** @param {Response} response */
function explain({ status }) {
  if (status === 401 || status === 403) return "The server refused: sign in again, or ask for the permission.";
  return `The server answered with status ${status}.`;
}

/** @param {Clock} clock */
function createMeter(clock) {
  const startedAt = clock();
  /** @type {number | null} */
  let firstAt = null;
  let lastAt = startedAt;
  let numPieces = 0;
  let numTokens = 0;
  let numAtFirst = 0;

  /** @returns {Measured} */
  function measured() {
    const seconds = firstAt === null ? 0 : (lastAt - firstAt) / 1000;
    return {
      numPieces,
      numTokens,
      ttftSeconds: firstAt === null ? null : (firstAt - startedAt) / 1000,
      tokensPerSecond: numPieces > 1 && seconds > 0 ? (numTokens - numAtFirst) / seconds : null,
    };
  }

  return {
    /** @param {{text: string, tokens?: number, logprobs?: TokenEntry[]}} piece @returns {Progress} */
    add({ text, tokens, logprobs = [] }) {
      lastAt = clock();
      numPieces += 1;
      numTokens = tokens ?? numPieces;
      if (firstAt === null) [firstAt, numAtFirst] = [lastAt, numTokens];
      return { ...measured(), added: text, entries: logprobs };
    },
    measured,
  };
}

/** @typedef {ReturnType<typeof createMeter>} Meter */

/**
 * @param {Meter} meter
 * @param {{code?: string, message: string, param?: string | null}} error
 * @returns {PromptResult}
 */
function fail(meter, { code = "internal_error", message, param = null }) {
  return { outcome: "failed", code, message, param, ...meter.measured() };
}

/** @param {Meter} meter @param {Usage} usage @returns {PromptResult} */
function finish(meter, usage) {
  return {
    outcome: "done",
    finishReason: usage.finish_reason,
    completionTokens: usage.completion_tokens,
    usage,
    ...meter.measured(),
  };
}
