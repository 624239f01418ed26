/**
 * A prompt's answer as it comes: newline-delimited JSON, cut anywhere by the network.
 *
 * @typedef {import("./types.js").Clock} Clock
 */

const LOST = { code: "connection_lost", message: "The connection was lost before the answer ended.", param: null };

/** @typedef {{text: string, max_tokens: number, temperature: number}} PromptBody */

/**
 * Measured here, at the end of the way: rates count pieces, which are tokens but for characters of several tokens.
 *
 * @typedef {object} Progress
 * @property {string} added since the last call
 * @property {number} numPieces
 * @property {number | null} ttftSeconds
 * @property {number | null} tokensPerSecond after the first; null before the second
 */

/** @typedef {Omit<Progress, "added">} Measured */
/**
 * `stopped`: by the caller's signal.
 *
 * @typedef {Measured & {outcome: "done", finishReason: string, completionTokens: number}
 *   | Measured & {outcome: "failed", code: string, message: string, param: string | null}
 *   | Measured & {outcome: "stopped"}} PromptResult
 */

/**
 * Sends a prompt and reads its answer. Never rejected: every end is a result.
 *
 * @param {object} request
 * @param {string} request.url
 * @param {string} request.csrfToken
 * @param {PromptBody} request.body
 * @param {(progress: Progress) => void} request.onProgress
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
  signal,
  fetch = globalThis.fetch,
  clock = () => performance.now(),
}) {
  const meter = createMeter(clock);
  /** @type {PromptResult | null} */
  let result = null;
  try {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": csrfToken };
    const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok || response.body === null) return fail(meter, await readRefusal(response));
    for await (const line of readLines(response.body)) {
      const message = JSON.parse(line);
      // Read on to the end: a stream that is given up counts as a failed request.
      if (message.done) result = finish(meter, message.done);
      if (message.error) result = fail(meter, message.error);
      if (typeof message.text === "string") onProgress(meter.add(message.text));
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

  /** @returns {Measured} */
  function measured() {
    const seconds = firstAt === null ? 0 : (lastAt - firstAt) / 1000;
    return {
      numPieces,
      ttftSeconds: firstAt === null ? null : (firstAt - startedAt) / 1000,
      tokensPerSecond: numPieces > 1 && seconds > 0 ? (numPieces - 1) / seconds : null,
    };
  }

  return {
    /** @param {string} added @returns {Progress} */
    add(added) {
      lastAt = clock();
      firstAt ??= lastAt;
      numPieces += 1;
      return { ...measured(), added };
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

/**
 * @param {Meter} meter
 * @param {{finish_reason: string, completion_tokens: number}} done
 * @returns {PromptResult}
 */
function finish(meter, { finish_reason, completion_tokens }) {
  return {
    outcome: "done",
    finishReason: finish_reason,
    completionTokens: completion_tokens,
    ...meter.measured(),
  };
}
