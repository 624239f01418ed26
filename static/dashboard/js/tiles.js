/**
 * The row of figures above the charts.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./selectors.js").Totals} Totals
 * @typedef {import("./selectors.js").Strain} Strain
 *
 * @typedef {object} Reading what one tile shows
 * @property {string} [title]
 * @property {string} value
 * @property {string} [unit]
 * @property {string} note
 * @property {string} [hint] for whoever points at the tile
 * @property {number | null} [ratio] fills the tile's meter
 * @property {number} [second] fills more of it, in another colour
 * @property {boolean} [isMissed] the objective is
 */
import { create, find, setData, setText } from "./dom.js";
import { bytes, celsius, compact, count, percent, rate, seconds, watts } from "./format.js";
import { latency, outcomes, totals } from "./selectors.js";

export const UTILISATION_TITLES = { accelerator: "GPU busy", busy: "Engine busy", mixed: "GPU or engine busy" };
export const MEMORY_TITLES = { accelerator: "GPU memory", rss: "Memory (RSS)", mixed: "GPU memory or RSS" };

/**
 * @param {HTMLElement} root
 * @returns {{render: (state: State) => void}}
 */
export function createTiles(root) {
  const tiles = [...root.querySelectorAll(".tile")].map((tile) => createTile(/** @type {HTMLElement} */ (tile)));
  return {
    render(state) {
      const readings = read(state);
      for (const tile of tiles) tile.render(readings[tile.name]);
    },
  };
}

/** @param {HTMLElement} tile */
function createTile(tile) {
  const name = tile.dataset.tile ?? "";
  const title = find(tile, ".tile-title");
  const value = find(tile, ".tile-value");
  const unit = find(tile, ".tile-figure small");
  const note = find(tile, ".tile-note");
  const bar = create("i");
  const second = create("i", { className: "second" });
  if (["running", "kv", "busy"].includes(name))
    note.after(create("dd", { className: "meter", ariaHidden: "true" }, [second, bar]));
  return {
    name,
    /** @param {Reading} reading */
    render(reading) {
      if (reading.title) setText(title, reading.title);
      setText(value, reading.value);
      setText(unit, reading.unit ?? "");
      setText(note, reading.note);
      setData(tile, "missed", String(reading.isMissed ?? false));
      if (tile.title !== (reading.hint ?? "")) tile.title = reading.hint ?? "";
      scaleTo(bar, reading.ratio ?? 0);
      scaleTo(second, (reading.ratio ?? 0) + (reading.second ?? 0));
    },
  };
}

/** @param {HTMLElement} bar @param {number} ratio */
function scaleTo(bar, ratio) {
  bar.style.transform = `scaleX(${Math.min(1, Math.max(0, ratio)).toFixed(3)})`;
}

/** @param {State} state @returns {Record<string, Reading>} */
function read(state) {
  const now = totals(state);
  return { ...(now === null ? nothing() : load(now)), ...felt(state), outcomes: ends(state) };
}

/** @returns {Record<string, Reading>} */
function nothing() {
  const names = ["waiting", "running", "kv", "prompt", "generated", "busy", "memory"];
  return Object.fromEntries(names.map((name) => [name, { value: "–", note: "" }]));
}

/** @param {Totals} now @returns {Record<string, Reading>} */
function load(now) {
  const { kv, utilisation, memory, strain } = now;
  const engines = now.numEngines === 1 ? "1 engine" : `${now.numEngines} engines`;
  return {
    waiting: { value: count(now.waiting), note: `${count(now.waitingTokens)} tokens` },
    running: {
      value: count(now.running),
      unit: now.maxRunning === null ? "" : `of ${count(now.maxRunning)}`,
      note: engines,
      ratio: now.maxRunning ? now.running / now.maxRunning : null,
    },
    kv: {
      value: now.numEngines ? percent(kv.usedRatio) : "–",
      note: `${compact(kv.usedBlocks)}/${compact(kv.totalBlocks)} blocks`,
      ratio: kv.usedRatio,
      second: kv.cachedRatio,
    },
    prompt: { value: rate(now.promptTokensPerSecond), note: "tokens/s, prefill" },
    generated: { value: rate(now.generatedTokensPerSecond), note: "tokens/s, decode" },
    busy: {
      title: UTILISATION_TITLES[utilisation.kind ?? "busy"],
      value: percent(utilisation.ratio),
      note: utilisation.kind === "busy" ? "time in steps" : effort(strain) || "mean of engines",
      ratio: utilisation.ratio,
      hint: strain === null ? "" : strainInWords(strain),
    },
    memory: {
      title: MEMORY_TITLES[memory.kind ?? "rss"],
      value: bytes(memory.bytes),
      note: memory.kind === "accelerator" && strain?.memoryBytes ? `of ${bytes(strain.memoryBytes)}` : engines,
    },
  };
}

/** `612 W · 64 °C` @param {Strain | null} strain */
function effort(strain) {
  if (strain === null) return "";
  return [strain.watts === null ? "" : watts(strain.watts), strain.celsius === null ? "" : celsius(strain.celsius)]
    .filter((part) => part)
    .join(" · ");
}

/** @param {Strain} strain */
function strainInWords(strain) {
  const most = strain.watts === null || strain.limitWatts === null ? "" : `At most ${watts(strain.limitWatts)}.`;
  const slowed = strain.slowedBy.length ? `The clock is held down by ${strain.slowedBy.join(" and ")}.` : "";
  return [most, slowed].filter((part) => part).join(" ");
}

/** What users feel of it, against the objectives. @param {State} state @returns {Record<string, Reading>} */
function felt(state) {
  const { ttft, itl, goodputPerSecond } = latency(state);
  return {
    ttft: against(ttft),
    itl: against(itl),
    goodput: { value: rate(goodputPerSecond), note: "requests/s within SLO" },
  };
}

/** @param {import("./selectors.js").Latency} latency @returns {Reading} */
function against({ p95Seconds, objectiveSeconds }) {
  const isMissed = p95Seconds !== null && objectiveSeconds !== null && p95Seconds > objectiveSeconds;
  const objective = objectiveSeconds === null ? "" : `SLO ${seconds(objectiveSeconds)}`;
  return { value: seconds(p95Seconds), note: isMissed ? `over the ${objective}` : objective, isMissed };
}

/** @param {State} state @returns {Reading} */
function ends(state) {
  const ended = outcomes(state);
  if (ended === null) return { value: "–", note: "" };
  const kinds = /** @type {const} */ (["refused", "aborted", "failed"]);
  const note = kinds.map((kind) => `${compact(ended[kind])} ${kind}`).join(" · ");
  return { value: count(ended.finished), note, hint: `Counted since Redis began. Others: ${note}.` };
}
