/**
 * What the views read out of the state. Figures are those shown: of the moment of the pause, while paused.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").EngineSnapshot} EngineSnapshot
 * @typedef {import("./types.js").TunableValues} TunableValues
 * @typedef {import("./state.js").Moment} Moment
 */

/** Figures and whose they are: the accelerators', the engines', or of some the one and of others the other. */
/** @typedef {{ratio: number | null, kind: "accelerator" | "busy" | "mixed" | null}} Utilisation */
/** @typedef {{bytes: number | null, kind: "accelerator" | "rss" | "mixed" | null}} Memory */
/**
 * The accelerators' strain: all their memory and power together, and the hottest. Null where one does not tell.
 *
 * @typedef {object} Strain
 * @property {number | null} memoryBytes that there is
 * @property {number | null} watts drawn
 * @property {number | null} limitWatts
 * @property {number | null} celsius
 * @property {string[]} slowedBy what holds a clock down
 */
/** @typedef {{usedRatio: number, cachedRatio: number}} KvShares of all blocks */
/** @typedef {KvShares & {usedBlocks: number, cachedBlocks: number, totalBlocks: number}} KvUse */

/**
 * @typedef {object} Totals
 * @property {number} numEngines
 * @property {number} running sequences
 * @property {number | null} maxRunning of all engines together; null where no values are known
 * @property {number} waiting sequences
 * @property {number} waitingTokens
 * @property {KvUse} kv
 * @property {number} promptTokensPerSecond
 * @property {number} generatedTokensPerSecond
 * @property {Utilisation} utilisation
 * @property {Memory} memory
 * @property {Strain | null} strain null where there is no accelerator
 */

/**
 * What is drawn, all of one moment.
 *
 * @param {State} state
 * @returns {Moment}
 */
export function shown(state) {
  return state.paused ?? state;
}

/**
 * How many engines run `version` (the newest stored one unless given) or a later one.
 *
 * @param {State} state
 * @param {number | null} [version]
 * @returns {{version: number | null, applied: number, total: number}}
 */
export function enginesApplied(state, version = state.storedVersion) {
  const engines = state.frame?.engines ?? [];
  const applied = engines.filter((engine) => version !== null && engine.tunables_version >= version);
  return { version, applied: applied.length, total: engines.length };
}

/**
 * The values that every engine runs. Where none lives, or theirs are not known here, those stored last, unconfirmed.
 *
 * @param {Pick<State, "frame" | "versions">} moment
 * @returns {{values: TunableValues, version: number, confirmed: boolean} | null}
 */
export function confirmedValues({ frame, versions }) {
  const running = (frame?.engines ?? []).map((engine) => engine.tunables_version);
  const lowest = running.length > 0 ? Math.min(...running) : null;
  const confirmed = versions.find((version) => version.number === lowest);
  const info = confirmed ?? versions[0];
  return info ? { values: info.values, version: info.number, confirmed: confirmed !== undefined } : null;
}

/**
 * All engines together; null before the first frame.
 *
 * @param {State} state
 * @returns {Totals | null}
 */
export function totals(state) {
  const moment = shown(state);
  const { frame, ring } = moment;
  if (frame === null || ring === null) return null;
  const { engines } = frame;
  const field = (/** @type {string} */ name) => Number(frame.point[ring.shape.fields.indexOf(name)]);
  const maxRunning = confirmedValues(moment)?.values.max_running;
  return {
    numEngines: engines.length,
    running: field("num_running"),
    maxRunning: typeof maxRunning === "number" && engines.length > 0 ? maxRunning * engines.length : null,
    waiting: field("num_waiting"),
    waitingTokens: field("num_waiting_tokens"),
    kv: {
      usedRatio: field("kv_used_ratio"),
      cachedRatio: field("kv_cached_ratio"),
      usedBlocks: sum(engines, (engine) => engine.kv_blocks_used),
      cachedBlocks: sum(engines, (engine) => engine.kv_blocks_cached),
      totalBlocks: sum(engines, (engine) => engine.kv_blocks_total),
    },
    promptTokensPerSecond: field("prompt_tokens_per_second"),
    generatedTokensPerSecond: field("generated_tokens_per_second"),
    utilisation: utilisationOf(engines, field("utilisation_ratio")),
    memory: memoryOf(engines, field("memory_bytes")),
    strain: strainOf(engines),
  };
}

/**
 * How the pool's requests ended, added up over reasons and codes.
 *
 * @param {State} state
 * @returns {{submitted: number, finished: number, aborted: number, refused: number, failed: number} | null}
 */
export function outcomes(state) {
  const { frame } = shown(state);
  if (frame === null) return null;
  const counts = Object.entries(frame.outcomes);
  const ended = (/** @type {string} */ kind) =>
    sum(counts, ([name, count]) => (name === kind || name.startsWith(`${kind}:`) ? count : 0));
  return {
    submitted: ended("submitted"),
    finished: ended("finished"),
    aborted: ended("aborted"),
    refused: ended("refused"),
    failed: ended("failed"),
  };
}

/** @typedef {{p95Seconds: number | null, objectiveSeconds: number | null}} Latency */

/**
 * What users feel now, over the window that is chosen, and what was promised to them.
 *
 * @param {State} state
 * @returns {{ttft: Latency, itl: Latency, goodputPerSecond: number | null}}
 */
export function latency(state) {
  const moment = shown(state);
  const values = confirmedValues(moment)?.values ?? {};
  const { ring } = moment;
  /** @param {string} interval @param {unknown} milliseconds @returns {Latency} */
  const of = (interval, milliseconds) => ({
    p95Seconds: last(ring?.percentiles({ window: state.window, interval, percentile: 95 })),
    objectiveSeconds: typeof milliseconds === "number" ? milliseconds / 1000 : null,
  });
  const hasGoodput = ring?.shape.fields.includes("goodput_per_second") ?? false;
  return {
    ttft: of("ttft_seconds", values.slo_ttft_ms),
    itl: of("itl_seconds", values.slo_itl_ms),
    goodputPerSecond: hasGoodput ? last(ring?.series("goodput_per_second")) : null,
  };
}

/** The newest value, null where it is not known. @param {import("./ring.js").Series} [series] */
function last(series) {
  const value = series?.y[series.y.length - 1] ?? NaN;
  return Number.isNaN(value) ? null : value;
}

/** @param {EngineSnapshot[]} engines @param {number} ratio @returns {Utilisation} */
function utilisationOf(engines, ratio) {
  const kind = kindOf(engines, (engine) => typeof engine.accelerator_ratio === "number", "busy");
  return { ratio: kind === null ? null : ratio, kind };
}

/** @param {EngineSnapshot[]} engines @param {number} bytes @returns {Memory} */
function memoryOf(engines, bytes) {
  const kind = kindOf(engines, (engine) => typeof engine.accelerator_memory_bytes === "number", "rss");
  return { bytes: kind === null ? null : bytes, kind };
}

/** @param {EngineSnapshot[]} engines @returns {Strain | null} */
function strainOf(engines) {
  // Engines that share a device tell the same of it.
  const devices = [...new Map(engines.map((engine) => [engine.accelerator_id, engine])).values()];
  const told = devices.filter((device) => device.accelerator_id);
  if (told.length === 0) return null;
  /** @param {(device: EngineSnapshot) => number | null} figureOf */
  const known = (figureOf) => {
    const figures = told.map(figureOf);
    return figures.includes(null) ? null : /** @type {number[]} */ (figures);
  };
  /** @param {number[] | null} figures */
  const added = (figures) => figures && sum(figures, (figure) => figure);
  const celsius = known((device) => device.accelerator_celsius);
  return {
    memoryBytes: added(known((device) => device.accelerator_memory_total_bytes)),
    watts: added(known((device) => device.accelerator_power_watts)),
    limitWatts: added(known((device) => device.accelerator_power_limit_watts)),
    celsius: celsius && Math.max(...celsius),
    slowedBy: [...new Set(told.flatMap((device) => device.accelerator_slowed_by))],
  };
}

/**
 * @template {string} Own
 * @param {EngineSnapshot[]} engines
 * @param {(engine: EngineSnapshot) => boolean} isAccelerators
 * @param {Own} own
 * @returns {"accelerator" | "mixed" | Own | null}
 */
function kindOf(engines, isAccelerators, own) {
  if (engines.length === 0) return null;
  const num = engines.filter(isAccelerators).length;
  return num === 0 ? own : num === engines.length ? "accelerator" : "mixed";
}

/**
 * @template Item
 * @param {Item[]} items
 * @param {(item: Item) => number} valueOf
 */
function sum(items, valueOf) {
  return items.reduce((total, item) => total + valueOf(item), 0);
}
