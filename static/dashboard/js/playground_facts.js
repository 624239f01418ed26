/**
 * What an answer took: measured here as it comes, and the engine's own account at its end.
 *
 * @typedef {import("./promptstream.js").Measured} Measured
 * @typedef {import("./promptstream.js").PromptResult} PromptResult
 * @typedef {import("./promptstream.js").Usage} Usage
 */
import { byId, create, find, setText, show } from "./dom.js";
import { NOTHING, rate, seconds } from "./format.js";

const ENDINGS = { stop: "the model itself", length: "max tokens" };

/** @param {Measured | null} measured null before anything is */
export function showMeasured(measured) {
  const perSecond = measured?.tokensPerSecond ?? null;
  setText(byId("ttft"), measured === null ? NOTHING : seconds(measured.ttftSeconds));
  setText(byId("itl"), perSecond === null || perSecond === 0 ? NOTHING : seconds(1 / perSecond));
  setText(byId("rate"), perSecond === null ? NOTHING : rate(perSecond));
  setText(byId("tokens"), measured === null ? NOTHING : String(measured.numTokens));
}

/** @param {PromptResult | null} result null while there is none */
export function showEnd(result) {
  setText(byId("ended"), result === null ? NOTHING : endingOf(result));
  const usage = result?.outcome === "done" ? result.usage : null;
  if (usage !== null) setText(byId("tokens"), `${usage.prompt_tokens} → ${usage.completion_tokens}`);
  show(byId("intervals"), usage?.queue_ms !== undefined);
  if (usage?.queue_ms !== undefined) showIntervals(usage);
}

/** @param {string} requestId */
export function linkTo(requestId) {
  const link = /** @type {HTMLAnchorElement} */ (byId("request-link"));
  link.href = `${link.dataset.requests}${encodeURIComponent(requestId)}/`;
}

/** @param {PromptResult} result */
function endingOf(result) {
  if (result.outcome === "stopped") return "you";
  if (result.outcome === "failed") return "an error";
  return ENDINGS[/** @type {keyof typeof ENDINGS} */ (result.finishReason)] ?? result.finishReason;
}

/** @param {Usage} usage */
function showIntervals(usage) {
  const parts = /** @type {const} */ ([
    ["queue", "waited", usage.queue_ms ?? 0],
    ["prefill", "prompt read", usage.prefill_ms ?? 0],
    ["decode", "answered", usage.decode_ms ?? 0],
  ]);
  const total = parts.reduce((sum, [, , ms]) => sum + ms, 0) || 1;
  let x = 0;
  for (const [kind, , ms] of parts) {
    const bar = find(/** @type {any} */ (byId("intervals-bar")), `.interval-${kind}`);
    bar.setAttribute("x", String(x));
    bar.setAttribute("width", String((ms / total) * 100));
    x += (ms / total) * 100;
  }
  const words = parts.map(([kind, word, ms]) =>
    create("li", { text: `${word} ${seconds(ms / 1000)}`, data: { kind } }),
  );
  words.push(create("li", { text: `${usage.num_cached_tokens ?? 0} of ${usage.prompt_tokens} prompt tokens cached` }));
  if (usage.num_preemptions) words.push(create("li", { text: `preempted ${usage.num_preemptions} times` }));
  byId("intervals-words").replaceChildren(...words);
}
