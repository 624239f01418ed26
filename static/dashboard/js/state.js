/**
 * The state of a Live page, and what may happen to it. Times `at`, `now`, `since` and `…At` are milliseconds of the
 * page's clock (unix), those of points and of the ring are unix seconds of Redis.
 *
 * @typedef {import("./types.js").Hello} Hello
 * @typedef {import("./types.js").Frame} Frame
 * @typedef {import("./types.js").ServerMessage} ServerMessage
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./ring.js").Ring} Ring
 * @typedef {import("./proposal.js").Proposal} Proposal
 * @typedef {import("./proposal.js").Kept} Kept
 * @typedef {import("./types.js").HistoryAnswer} HistoryAnswer
 * @typedef {import("./types.js").PoolEvent} PoolEvent
 * @typedef {import("./past.js").Past} Past
 * @typedef {import("./past.js").Wanted} Wanted
 * @typedef {import("./view.js").Stretch} Stretch
 */
import { NO_PROPOSAL } from "./proposal.js";

export const STALE_AFTER_MS = 2500;

/**
 * `live` begins with the server's hello. `code` is the close code that ended the last connection.
 *
 * @typedef {object} Connection
 * @property {"connecting" | "live" | "lost" | "signed_out" | "refused"} state
 * @property {number} since
 * @property {number} attempt how many attempts failed since the page was last connected
 * @property {number | null} retryAt
 * @property {number | null} code
 */

/**
 * @typedef {object} State
 * @property {Connection} connection
 * @property {number} now the page's clock, kept to about a second
 * @property {boolean} isStale no frame came for 2.5 s
 * @property {number | null} lastFrameAt
 * @property {Hello | null} hello
 * @property {Frame | null} frame the newest
 * @property {number} numMissed frames that were broadcast and not received, while connected
 * @property {Ring | null} ring mutable: its `revision` says whether there is something to draw
 * @property {Paused | null} paused what is shown while the page is paused; everything else goes on
 * @property {VersionInfo[]} versions newest first
 * @property {number | null} storedVersion the newest that was heard of
 * @property {boolean} knowsAllVersions false while a version was heard of that `versions` lacks
 * @property {number} window index into `hello.windows_seconds`
 * @property {number} spanSeconds how much of the past the charts show while they follow the present
 * @property {Stretch | null} stretch what they show instead
 * @property {string[]} folded groups of charts
 * @property {string[]} hidden charts
 * @property {Past | null} past what was last read of a longer past than the ring's
 * @property {number | null} pastFailedAt when reading it failed; null where it did not
 * @property {VersionInfo[]} pastVersions what was told of with it
 * @property {PoolEvent[]} events newest first
 * @property {Proposal} proposal
 */

/** What the figures are read from. @typedef {Pick<State, "frame" | "ring" | "versions" | "storedVersion" | "past">} Moment */
/** @typedef {{at: number} & Moment} Paused `ring` is a copy that nothing changes */

/**
 * The first five are the link's, those of the past its reader's, the others an operator's.
 *
 * @typedef {{type: "connection", state: "connecting" | "open" | "lost" | "signed_out" | "refused", at: number,
 *     attempt: number, retryAt: number | null, code: number | null}
 *   | {type: "received", message: ServerMessage, at: number}
 *   | {type: "sent", id: number}
 *   | {type: "answer_lost", id: number, wasSent: boolean}
 *   | {type: "tick", at: number}
 *   | {type: "pause", at: number}
 *   | {type: "resume"}
 *   | {type: "choose_window", index: number}
 *   | {type: "choose_span", seconds: number}
 *   | {type: "look_at", stretch: Stretch | null}
 *   | {type: "fold", group: string, isFolded: boolean}
 *   | {type: "hide", chart: string, isHidden: boolean}
 *   | {type: "past_read", answer: HistoryAnswer, wanted: Wanted, at: number}
 *   | {type: "past_failed", at: number}
 *   | {type: "edit", name: string, text: string}
 *   | {type: "withdraw", name: string}
 *   | {type: "edit_reason", text: string}
 *   | {type: "discard"}
 *   | {type: "rebase"}
 *   | {type: "restore", kept: Kept}} Action
 */

/**
 * The state of a page that knows nothing yet.
 *
 * @param {{now?: number} & Partial<import("./view.js").View>} [chosen]
 * @returns {State}
 */
export function initialState({ now = Date.now(), ...chosen } = {}) {
  const { window = 1, spanSeconds = 300, stretch = null, folded = [], hidden = [] } = chosen;
  return {
    connection: { state: "connecting", since: now, attempt: 0, retryAt: null, code: null },
    now,
    isStale: false,
    lastFrameAt: null,
    hello: null,
    frame: null,
    numMissed: 0,
    ring: null,
    paused: null,
    versions: [],
    storedVersion: null,
    knowsAllVersions: true,
    window,
    spanSeconds,
    stretch,
    folded,
    hidden,
    past: null,
    pastFailedAt: null,
    pastVersions: [],
    events: [],
    proposal: NO_PROPOSAL,
  };
}
