/**
 * The playground: asks a model, shows its answer as it comes, and the code that asks the same.
 *
 * @typedef {import("./playground_body.js").Body} Body
 * @typedef {import("./promptstream.js").PromptResult} PromptResult
 */
import { byId, chosen, setText, show } from "./dom.js";
import { focusFirst } from "./focus.js";
import { bodyOf } from "./playground_body.js";
import { asCurl, asPython } from "./playground_code.js";
import { linkTo, showEnd, showMeasured } from "./playground_facts.js";
import { address, clearErrors, csrfToken, endpoint, pool, tell, wish } from "./playground_form.js";
import { createTalk } from "./playground_talk.js";
import { streamPrompt } from "./promptstream.js";
import { offerCopy } from "./tenants.js";

/** Owns the page: what was said, and what is being answered. */
function start() {
  const form = /** @type {HTMLFormElement} */ (byId("play"));
  const text = /** @type {HTMLTextAreaElement} */ (byId("text"));
  const [sendButton, stopButton, againButton] = ["send", "stop", "again"].map((id) => byId(id));
  const talk = createTalk(byId("talk"));
  /** @type {AbortController | null} */
  let running = null;
  /** What was sent last, until the form says something else. @type {Body | null} */
  let sent = null;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null) send();
  });
  form.addEventListener("input", ({ target }) => {
    if (byId("language").contains(/** @type {Node} */ (target))) showCode();
    else changed();
  });
  byId("pool").addEventListener("change", () => {
    history.replaceState(null, "", `?pool=${encodeURIComponent(pool().value)}`);
  });
  byId("endpoint").addEventListener("change", begin);
  for (const place of [text, byId("system")]) {
    place.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
  }
  stopButton.addEventListener("click", () => running?.abort());
  againButton.addEventListener("click", () => {
    if (running !== null || talk.lastRole !== "assistant") return;
    const before = talk.drop();
    void answer(talk.messages(), () => talk.add("assistant", before));
  });
  byId("anew").addEventListener("click", begin);
  offerCopy(byId("copy"), {
    source: byId("code"),
    status: byId("copied"),
    write: (code) => navigator.clipboard.writeText(code),
  });
  begin();

  /** Nothing was said: what stands in the fields stays. */
  function begin() {
    running?.abort();
    if (running !== null) showStop(false);
    running = null;
    talk.clear();
    clearErrors();
    showMeasured(null);
    showEnd(null);
    const isChat = endpoint() === "chat";
    show(byId("system-field"), isChat);
    setText(byId("text-label"), isChat ? "Your message" : "Text to continue");
    show(againButton, false);
    changed();
  }

  function changed() {
    sent = null;
    setText(byId("copied"), "");
    showCode();
  }

  function send() {
    const typed = text.value;
    clearErrors();
    if (typed.trim() === "") {
      tell("messages", "Write something first.");
      return;
    }
    if (endpoint() === "chat") {
      talk.add("user", typed);
      text.value = "";
      void answer(talk.messages(), () => {
        talk.drop();
        if (text.value === "") text.value = typed;
      });
    } else {
      talk.clear();
      talk.add("user", typed);
      void answer([], talk.clear);
    }
  }

  /**
   * @param {import("./playground_body.js").Message[]} messages
   * @param {() => void} takeBack what was done for it, if there is no answer
   */
  async function answer(messages, takeBack) {
    clearErrors();
    const { body, errors } = bodyOf(wish(messages));
    for (const [param, message] of Object.entries(errors)) tell(param, message);
    if (Object.keys(errors).length > 0) {
      takeBack();
      return;
    }
    const stop = begun(body);
    const onProgress = (/** @type {import("./promptstream.js").Progress} */ progress) => {
      if (progress.numPieces === 1) setText(byId("status"), "answering");
      talk.extend(progress.added, progress.entries);
      showMeasured(progress);
    };
    const request = { url: address(), csrfToken: csrfToken(), body, signal: stop.signal };
    const result = await streamPrompt({ ...request, onProgress, onStart: linkTo });
    if (running === stop) ended(result, takeBack);
  }

  /** @param {Body} body */
  function begun(body) {
    running = new AbortController();
    sent = body;
    showCode();
    talk.add("assistant", "");
    talk.mark(true);
    showMeasured(null);
    showEnd(null);
    setText(byId("status"), "waiting for the first token");
    showStop(true);
    return running;
  }

  /** @param {PromptResult} result @param {() => void} takeBack */
  function ended(result, takeBack) {
    running = null;
    showStop(false);
    showMeasured(result);
    showEnd(result);
    setText(byId("status"), result.outcome === "failed" ? "failed" : "the answer is complete");
    if (result.outcome !== "failed") {
      talk.mark(false, result.outcome === "stopped" ? "stopped" : "");
    } else if (result.numPieces > 0) {
      talk.mark(false, "broken off");
      tell(null, result.message);
    } else {
      talk.drop();
      takeBack();
      tell(result.param, result.message);
    }
    show(againButton, endpoint() === "chat" && talk.lastRole === "assistant");
  }

  function showCode() {
    const draft = talk.messages();
    if (text.value !== "" || draft.length === 0) draft.push({ role: "user", content: text.value });
    const body = sent ?? bodyOf(wish(draft)).body;
    const write = chosen(byId("language")) === "curl" ? asCurl : asPython;
    setText(byId("code"), write(location.origin, endpoint(), body));
    setText(byId("code-state"), sent === null ? "What Send would ask for." : "What was asked for last.");
  }

  /** The two buttons take each other's place, and the focus with it. @param {boolean} isRunning */
  function showStop(isRunning) {
    const [shown, hidden] = isRunning ? [stopButton, sendButton] : [sendButton, stopButton];
    const hadFocus = document.activeElement === hidden;
    show(shown, true);
    show(hidden, false);
    if (isRunning) show(againButton, false);
    if (hadFocus) focusFirst([shown]);
  }
}

start();
