/**
 * What the server says and is told over the websocket, as `dashboard/protocol.py` and `serving/telemetry/frames.py`
 * define it. Types only: nothing here runs.
 */

/**
 * @typedef {string | number} TunableValue
 * @typedef {Record<string, TunableValue>} TunableValues
 * @typedef {Record<string, [TunableValue, TunableValue]>} TunableDiff `{name: [old, new]}`
 */

/**
 * What is known of one tunable.
 *
 * @typedef {object} TunableSpec
 * @property {string} name
 * @property {"choice" | "integer" | "name" | "number"} kind
 * @property {TunableValue} default
 * @property {string} unit
 * @property {"next step" | "next request"} effect
 * @property {string} help
 * @property {number | null} low
 * @property {number | null} high
 * @property {string[]} choices
 */

/**
 * One stored version. `created_at` is ISO 8601, UTC.
 *
 * @typedef {object} VersionInfo
 * @property {number} number
 * @property {TunableValues} values
 * @property {TunableDiff} changes
 * @property {string} reason
 * @property {string} author
 * @property {string} created_at
 */

/**
 * @typedef {object} EngineSnapshot
 * @property {string} engine_id
 * @property {string} name
 * @property {string} pool
 * @property {string} model
 * @property {"ready" | "draining" | "drained"} state
 * @property {boolean} leaves it drains, and ends then
 * @property {string} device
 * @property {string} dtype
 * @property {string} backend
 * @property {number} max_model_len
 * @property {number} tunables_version
 * @property {number} num_waiting
 * @property {number} num_waiting_tokens
 * @property {number} num_running
 * @property {number} block_size
 * @property {number} kv_blocks_total
 * @property {number} kv_blocks_used
 * @property {number} kv_blocks_cached
 * @property {number} kv_blocks_free
 * @property {number} steps_total
 * @property {number} prompt_tokens_total
 * @property {number} generated_tokens_total
 * @property {number} preemptions_total
 * @property {number} padded_tokens_total
 * @property {number} discarded_tokens_total
 * @property {number} busy_ratio
 * @property {number} last_step_ms
 * @property {number} rss_bytes
 * @property {number} uptime_seconds
 * @property {number | null} accelerator_ratio
 * @property {number | null} accelerator_memory_bytes
 * @property {string} accelerator_id the same where engines share a device, and empty where there is none
 * @property {number | null} accelerator_memory_total_bytes
 * @property {number | null} accelerator_power_watts
 * @property {number | null} accelerator_power_limit_watts
 * @property {number | null} accelerator_celsius
 * @property {number | null} accelerator_clock_mhz
 * @property {string[]} accelerator_slowed_by what holds its clock down: power, heat or hardware
 * @property {number} prefix_query_tokens_total
 * @property {number} prefix_hit_tokens_total
 * @property {number} drafted_tokens_total
 * @property {number} accepted_tokens_total
 */

/** @typedef {(number | null)[][][]} Percentiles seconds, `[window][interval][percentile]` as `Hello` orders them */

/**
 * One moment of a pool, in the order of `Hello.point_fields`; what is told by name is null where a monitor did not know.
 *
 * @typedef {(number | null | Percentiles | import("./named.js").Named)[]} PointRow
 */

/**
 * @typedef {object} Hello
 * @property {"hello"} type
 * @property {string} pool
 * @property {string} model
 * @property {string} user
 * @property {boolean} may_steer
 * @property {string[]} point_fields
 * @property {number[]} windows_seconds
 * @property {string[]} interval_names
 * @property {number[]} percentiles
 * @property {TunableSpec[]} tunables
 * @property {VersionInfo[]} versions newest first
 */

/** @typedef {{type: "history", points: PointRow[]}} History oldest first */

/**
 * @typedef {object} Frame
 * @property {"frame"} type
 * @property {number} sequence
 * @property {string} pool
 * @property {PointRow} point
 * @property {number | null} announced_version
 * @property {Record<string, number>} outcomes
 * @property {EngineSnapshot[]} engines
 * @property {{ttft_ms: number, itl_ms: number} | null} [slo] of the announced tunables
 * @property {PoolEvent[]} [events] of the last minute, newest first; the same one may be in many frames
 * @property {Trial | null} [trial] the version that one engine tries
 */

/** @typedef {{version: number, engine_id: string, since: number}} Trial since when, in unix seconds */

/**
 * Something that happened and is marked in the charts, but for changes of tunables.
 *
 * @typedef {object} PoolEvent
 * @property {string} event_id
 * @property {number} at unix seconds
 * @property {string} kind
 * @property {string} subject the engine or rule that it is about
 * @property {string} text
 */

/**
 * What `history.json` answers. A stretch with nothing kept has no row. `unix_seconds` is a stretch's middle, gauges are
 * means, and `percentiles` has one window: the stretch itself.
 *
 * @typedef {object} HistoryAnswer
 * @property {number} seconds how long a stretch is
 * @property {string[]} fields in a row's order
 * @property {PointRow[]} points oldest first
 * @property {VersionInfo[]} versions of the time asked for and the one before, newest first
 * @property {PoolEvent[]} events newest first
 */

/** @typedef {{type: "versions", id: number, versions: VersionInfo[]}} Versions newest first */
/** @typedef {{type: "stored", id: number, version: VersionInfo}} Stored */

/**
 * @typedef {object} Refused
 * @property {"refused"} type
 * @property {number} id
 * @property {string} code
 * @property {string} message
 * @property {string | null} param
 * @property {VersionInfo[]} newer with `stale_version`, what was stored meanwhile, newest first
 */

/** @typedef {Hello | History | Frame | Versions | Stored | Refused} ServerMessage */

/** What a change may be stored with. @typedef {{guardrail?: Guardrail, canary?: true, canary_engine?: string}} Terms */
/**
 * @typedef {object} Guardrail
 * @property {string} metric
 * @property {number} bound
 * @property {number} window_seconds
 * @property {number} watch_seconds
 */

/**
 * @typedef {{type: "watch", since: number | null}
 *   | {type: "ack", sequence: number}
 *   | {type: "change", id: number, changes: TunableValues, based_on: number, reason: string} & Terms
 *   | {type: "roll_back", id: number, version: number, based_on: number, reason: string}
 *   | {type: "list_versions", id: number}} ClientMessage
 */

/**
 * The host's timers, so that tests bring their own.
 *
 * @typedef {object} Timers
 * @property {(call: () => void, milliseconds: number) => any} setTimeout
 * @property {(handle: any) => void} clearTimeout
 */

/** Milliseconds of the page's clock. @typedef {() => number} Clock */

export {};
