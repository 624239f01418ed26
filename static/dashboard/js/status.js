/**
 * How the page is connected, as the badge says it, and whether it was drawn for other rights than its user has by now;
 * what a screen reader is told of both, once a change.
 *
 * @typedef {import("./state.js").State} State
 */
import { byId, create, setData, setText, show } from "./dom.js";
import { count } from "./format.js";

const SPOKEN = {
  connecting: "Connecting",
  live: "Live",
  stale: "No news from the monitor: figures are stale",
  paused: "Paused",
  lost: "Connection lost: figures are stale",
  signed_out: "Signed out",
  refused: "Connection refused",
};
const OTHER_RIGHTS = "Your permissions changed.";

/**
 * @param {HTMLElement} root
 * @param {{onRetry: () => void}} actions
 * @returns {{render: (state: State) => void}}
 */
export function createStatus(root, { onRetry }) {
  const badge = byId("badge");
  const text = byId("badge-text");
  const retry = byId("retry");
  const announcer = byId("announcer");
  /** @type {keyof typeof SPOKEN} */
  let spoken = "connecting";
  const reload = create("button", { type: "button", className: "link", text: "Reload" });
  const rights = create("p", { className: "problem", hidden: true }, [OTHER_RIGHTS, " ", reload]);
  badge.after(rights);
  reload.addEventListener("click", () => location.reload());
  // Whoever is signed out is led to the sign-in, and from there back to this page.
  retry.addEventListener("click", () => (spoken === "signed_out" ? location.reload() : onRetry()));
  return {
    render(state) {
      const kind = kindOf(state);
      setData(badge, "state", kind);
      setText(text, wordsOf(kind, state));
      const missed = missedWords(state.numMissed);
      if (badge.title !== missed) badge.title = missed;
      show(retry, kind === "lost" || kind === "signed_out");
      setText(retry, kind === "signed_out" ? "Sign in" : "Retry now");
      setData(root, "stale", String(kind !== "live" && kind !== "paused"));
      if (kind !== spoken) setText(announcer, SPOKEN[kind]);
      spoken = kind;
      const isOutdated = hasOtherRights(state, root.dataset.maySteer);
      if (isOutdated && rights.hidden) setText(announcer, OTHER_RIGHTS);
      show(rights, isOutdated);
    },
  };
}

/** Frames that were broadcast while the page was connected, and not taken in. @param {number} numMissed */
function missedWords(numMissed) {
  return numMissed === 0 ? "" : `${count(numMissed)} ${numMissed === 1 ? "frame" : "frames"} missed`;
}

/**
 * Whether the server says other than the page was drawn with: what may be done is decided there, and its levers are
 * drawn there.
 *
 * @param {Pick<State, "hello">} state
 * @param {string | undefined} drawnFor `data-may-steer`
 */
export function hasOtherRights({ hello }, drawnFor) {
  return hello !== null && String(hello.may_steer) !== drawnFor;
}

/** @param {State} state @returns {keyof typeof SPOKEN} */
function kindOf({ connection, isStale, lastFrameAt, paused }) {
  if (connection.state === "signed_out" || connection.state === "refused") return connection.state;
  if (connection.state === "lost" || (connection.state === "connecting" && connection.attempt > 0)) return "lost";
  if (connection.state === "connecting") return "connecting";
  if (paused) return "paused";
  return isStale ? "stale" : lastFrameAt === null ? "connecting" : "live";
}

/** @param {keyof typeof SPOKEN} kind @param {State} state */
function wordsOf(kind, { connection, now, lastFrameAt, paused }) {
  if (kind === "lost") {
    const seconds = connection.retryAt === null ? 0 : Math.ceil((connection.retryAt - now) / 1000);
    return seconds > 0 ? `reconnecting in ${seconds} s` : "reconnecting";
  }
  if (kind === "stale")
    return lastFrameAt === null ? "no figures yet" : `stale ${Math.round((now - lastFrameAt) / 1000)} s`;
  if (kind === "paused" && paused) return `paused ${Math.max(0, Math.round((now - paused.at) / 1000))} s ago`;
  if (kind === "signed_out") return "signed out";
  if (kind === "refused") return connection.code === 4404 ? "pool not configured" : "not allowed";
  return kind;
}
