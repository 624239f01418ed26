/**
 * Commands and their answers, told apart by id.
 *
 * @typedef {import("./types.js").ClientMessage} ClientMessage
 * @typedef {import("./types.js").ServerMessage} ServerMessage
 * @typedef {import("./types.js").TunableValues} TunableValues
 * @typedef {import("./types.js").Terms} Terms
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./types.js").Timers} Timers
 */

export const ANSWER_WITHIN_MS = 15_000;

/**
 * `unknown`: no answer came in time, or the socket was lost: the command may have been carried out. `not_sent`: it was
 * not, since there was no socket.
 *
 * @typedef {{outcome: "stored", version: VersionInfo}
 *   | {outcome: "versions", versions: VersionInfo[]}
 *   | {outcome: "refused", code: string, message: string, param: string | null, newer: VersionInfo[]}
 *   | {outcome: "unknown"}
 *   | {outcome: "not_sent"}} Answer
 */

/** A command on its way. `answer` is never rejected. @typedef {{id: number, answer: Promise<Answer>}} Pending */

/**
 * @typedef {object} Commands
 * @property {(change: {changes: TunableValues, basedOn: number, reason: string} & Terms) => Pending} change
 * @property {(rollBack: {version: number, basedOn: number, reason: string}) => Pending} rollBack
 * @property {(options?: {withinMs?: number}) => Pending} listVersions
 * @property {(message: ServerMessage) => void} receive any message: answers end what they answer
 * @property {() => void} loseAll the socket is gone, and with it every answer
 */

/**
 * @param {object} parts
 * @param {(message: ClientMessage) => boolean} parts.send false where it could not be sent
 * @param {Timers} [parts.timers]
 * @returns {Commands}
 */
export function createCommands({ send, timers = globalThis }) {
  /** @type {Map<number, (answer: Answer) => void>} */
  const waiting = new Map();
  let lastId = 0;

  /** @param {(id: number) => ClientMessage} build @param {number} [withinMs] @returns {Pending} */
  function issue(build, withinMs = ANSWER_WITHIN_MS) {
    lastId += 1;
    const id = lastId;
    if (!send(build(id))) return { id, answer: Promise.resolve({ outcome: "not_sent" }) };
    /** @type {Promise<Answer>} */
    const answer = new Promise((resolve) => {
      const timer = timers.setTimeout(() => settle(id, { outcome: "unknown" }), withinMs);
      waiting.set(id, (given) => {
        timers.clearTimeout(timer);
        resolve(given);
      });
    });
    return { id, answer };
  }

  /** @param {number} id @param {Answer} answer */
  function settle(id, answer) {
    const resolve = waiting.get(id);
    waiting.delete(id);
    resolve?.(answer);
  }

  return {
    change: ({ changes, basedOn, reason, ...terms }) =>
      issue((id) => ({ type: "change", id, changes, based_on: basedOn, reason, ...terms })),
    rollBack: ({ version, basedOn, reason }) =>
      issue((id) => ({ type: "roll_back", id, version, based_on: basedOn, reason })),
    listVersions: ({ withinMs } = {}) => issue((id) => ({ type: "list_versions", id }), withinMs),
    receive(message) {
      const answer = answerIn(message);
      if (answer !== null && "id" in message) settle(message.id, answer);
    },
    loseAll() {
      for (const id of [...waiting.keys()]) settle(id, { outcome: "unknown" });
    },
  };
}

/** @param {ServerMessage} message @returns {Answer | null} */
function answerIn(message) {
  switch (message.type) {
    case "stored":
      return { outcome: "stored", version: message.version };
    case "versions":
      return { outcome: "versions", versions: message.versions };
    case "refused": {
      const { code, message: text, param, newer } = message;
      return { outcome: "refused", code, message: text, param, newer };
    }
    default:
      return null;
  }
}
