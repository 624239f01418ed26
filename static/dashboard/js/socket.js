/**
 * A websocket that comes back. It says what it does and decides nothing about what it carries.
 *
 * @typedef {import("./types.js").ClientMessage} ClientMessage
 * @typedef {import("./types.js").ServerMessage} ServerMessage
 * @typedef {import("./types.js").Timers} Timers
 * @typedef {import("./types.js").Clock} Clock
 */

const FIRST_DELAY_MS = 500;
export const LONGEST_DELAY_MS = 10_000;
export const SILENT_START_MS = 15_000;
export const STEADY_AFTER_MS = 10_000;

const OPEN = 1;
const CLOSE_CODES = new Map([
  [4401, "signed_out"],
  [4403, "refused"],
  [4404, "refused"],
]);

/**
 * `attempt` counts the connections in a row that failed, or ended within 10 s of their first word: a server that greets
 * and hangs up is not called in a loop. `retryAt` is when the next is tried, `code` the close code of the last
 * (null while it opens). After `signed_out` and `refused` nothing more is tried.
 *
 * @typedef {object} SocketState
 * @property {"connecting" | "open" | "lost" | "signed_out" | "refused"} state
 * @property {number} attempt
 * @property {number | null} retryAt milliseconds of the clock
 * @property {number | null} code
 */

/**
 * @typedef {object} LiveSocket
 * @property {(message: ClientMessage) => boolean} send false where there is no open socket: nothing is kept for later
 * @property {() => void} retryNow ends the wait for the next attempt
 * @property {() => void} reopen gives the present connection up, and connects again
 */

/**
 * The part of a WebSocket that is used here.
 *
 * @typedef {Pick<WebSocket, "readyState" | "send" | "close" | "onopen" | "onmessage" | "onclose">} Socket
 */

/**
 * Connects at once, and again with exponential backoff and jitter whenever the connection is lost: too slow, restarted,
 * broken, or without a word for 15 s after its start. `firstMessage` is asked for what to say on each.
 *
 * @param {object} parts
 * @param {string} parts.url
 * @param {() => ClientMessage} parts.firstMessage
 * @param {(message: ServerMessage) => void} parts.onMessage
 * @param {(state: SocketState) => void} parts.onState
 * @param {(url: string) => Socket} [parts.createSocket]
 * @param {Timers} [parts.timers]
 * @param {Clock} [parts.clock]
 * @param {() => number} [parts.random] from 0 to 1
 * @returns {LiveSocket}
 */
export function openLiveSocket({
  url,
  firstMessage,
  onMessage,
  onState,
  createSocket = (address) => new WebSocket(address),
  timers = globalThis,
  clock = Date.now,
  random = Math.random,
}) {
  /** @type {Socket | null} */
  let socket = null;
  let attempt = 0;
  /** @type {any} */
  let timer = null;
  let isWaiting = false;

  /** @param {() => void} call @param {number} delay */
  function startTimer(call, delay) {
    timers.clearTimeout(timer);
    timer = timers.setTimeout(call, delay);
  }

  function connect() {
    isWaiting = false;
    onState({ state: "connecting", attempt, retryAt: null, code: null });
    startTimer(() => lose(null), SILENT_START_MS);
    try {
      socket = createSocket(url);
    } catch {
      lose(null);
      return;
    }
    listenTo(socket);
  }

  /** What a socket that was given up still says is nobody's concern. @param {Socket} opened */
  function listenTo(opened) {
    let hasSpoken = false;
    opened.onopen = () => {
      if (opened !== socket) return;
      onState({ state: "open", attempt, retryAt: null, code: null });
      send(firstMessage());
    };
    opened.onmessage = ({ data }) => {
      if (opened !== socket) return;
      if (!hasSpoken) startTimer(() => (attempt = 0), STEADY_AFTER_MS);
      hasSpoken = true;
      const message = parse(data);
      if (message !== null) onMessage(message);
    };
    opened.onclose = ({ code }) => {
      if (opened === socket) lose(code);
    };
  }

  /** @param {number | null} code null where it is we who give it up */
  function lose(code) {
    drop();
    const end = code === null ? undefined : CLOSE_CODES.get(code);
    if (end !== undefined) {
      onState({ state: /** @type {"signed_out" | "refused"} */ (end), attempt, retryAt: null, code });
      return;
    }
    const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** attempt) * (0.5 + random() / 2);
    attempt += 1;
    isWaiting = true;
    startTimer(connect, delay);
    onState({ state: "lost", attempt, retryAt: clock() + delay, code });
  }

  function drop() {
    timers.clearTimeout(timer);
    const dropped = socket;
    socket = null;
    dropped?.close();
  }

  /** @param {ClientMessage} message */
  function send(message) {
    if (socket === null || socket.readyState !== OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  }

  connect();
  return {
    send,
    retryNow() {
      if (isWaiting) connect();
    },
    reopen() {
      if (socket !== null) lose(null);
    },
  };
}

/** @param {unknown} data @returns {ServerMessage | null} null for what is no message */
function parse(data) {
  try {
    const message = JSON.parse(String(data));
    return typeof message?.type === "string" ? message : null;
  } catch {
    return null;
  }
}
