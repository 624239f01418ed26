/**
 * The table of engines, a row each.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").EngineSnapshot} EngineSnapshot
 */
import { byId, create, setText } from "./dom.js";
import { bytes, celsius, count, duration, milliseconds, percent, watts } from "./format.js";
import { shown } from "./selectors.js";

const NUM_COLUMNS = 11;
/** Columns with a small line below: load and memory. */
const TWO_LINED = [7, 8];
/** The end of an id, which tells engines of one host apart. */
const ID_LENGTH = 12;

/**
 * @param {HTMLElement} body
 * @returns {{render: (state: State) => void}}
 */
export function createEngines(body) {
  /** @type {Map<string, HTMLElement[]>} */
  let rows = new Map();
  const none = create("tr", {}, [create("td", { className: "none", colSpan: NUM_COLUMNS, text: "No engine runs." })]);
  const summary = byId("engines-summary");

  /** @param {EngineSnapshot[]} engines */
  function rebuild(engines) {
    rows = new Map(engines.map((engine) => [engine.engine_id, createCells()]));
    const lines = [...rows.values()].map((cells) => create("tr", {}, cells));
    body.replaceChildren(...(lines.length ? lines : [none]));
  }

  return {
    render(state) {
      const { frame, storedVersion } = shown(state);
      if (frame === null) return;
      const engines = [...frame.engines].sort((one, other) => (one.name < other.name ? -1 : 1));
      if (engines.map((engine) => engine.engine_id).join() !== [...rows.keys()].join() || body.childElementCount === 0)
        rebuild(engines);
      setText(summary, engines.length === 1 ? "1 engine" : `${engines.length} engines`);
      // While one engine tries a version, the others are not behind with it.
      const expected = frame.trial ? frame.announced_version : storedVersion;
      for (const engine of engines)
        fill(/** @type {HTMLElement[]} */ (rows.get(engine.engine_id)), engine, {
          expected,
          isCanary: frame.trial?.engine_id === engine.engine_id,
        });
    },
  };
}

function createCells() {
  const name = create("th", { scope: "row" }, [create("span"), create("small")]);
  const state = create("td", {}, [create("span", { className: "state" })]);
  const others = Array.from({ length: NUM_COLUMNS - 2 }, (_, index) =>
    create("td", { className: index === 0 ? "" : "end num" }),
  );
  const cells = [name, state, ...others];
  for (const index of TWO_LINED) cells[index].append(create("span"), create("small"));
  return cells;
}

/**
 * @param {HTMLElement[]} cells
 * @param {EngineSnapshot} engine
 * @param {{expected: number | null, isCanary: boolean}} standing the version that it should run, or a later one
 */
function fill(cells, engine, { expected, isCanary }) {
  const [name, state, device, version, running, waiting, kv, load, memory, step, uptime] = cells;
  setText(name.children[0], engine.name);
  setText(name.children[1], engine.engine_id === engine.name ? "" : engine.engine_id.slice(-ID_LENGTH));
  const standing = engine.leaves ? "leaving" : engine.state;
  setText(state.children[0], standing);
  /** @type {HTMLElement} */ (state.children[0]).dataset.state = standing;
  const backend = engine.backend && `${engine.backend} backend`;
  setText(device, [engine.device, engine.dtype, backend].filter((part) => part).join(" · "));
  const isBehind = expected !== null && engine.tunables_version < expected;
  version.classList.toggle("behind", isBehind);
  const own = `v${engine.tunables_version}`;
  setText(version, isBehind ? `${own} of v${expected}` : isCanary ? `${own}, tried` : own);
  setText(running, count(engine.num_running));
  setText(waiting, count(engine.num_waiting));
  setText(kv, percent(engine.kv_blocks_total ? engine.kv_blocks_used / engine.kv_blocks_total : null));
  setLines(load, loadOf(engine));
  setLines(memory, memoryOf(engine));
  setText(step, milliseconds(engine.last_step_ms));
  setText(uptime, duration(engine.uptime_seconds));
}

/** @param {HTMLElement} cell @param {[string, string]} lines the second small, or empty */
function setLines(cell, [first, second]) {
  setText(cell.children[0], first);
  setText(cell.children[1], second);
}

/** @param {EngineSnapshot} engine @returns {[string, string]} */
function loadOf(engine) {
  const ratio = engine.accelerator_ratio;
  const strain = [
    engine.accelerator_power_watts === null ? "" : watts(engine.accelerator_power_watts),
    engine.accelerator_celsius === null ? "" : celsius(engine.accelerator_celsius),
  ];
  return [
    ratio === null ? `${percent(engine.busy_ratio)} busy` : `${percent(ratio)} GPU`,
    strain.filter((part) => part).join(" · "),
  ];
}

/** @param {EngineSnapshot} engine @returns {[string, string]} */
function memoryOf(engine) {
  if (engine.accelerator_memory_bytes === null) return [`${bytes(engine.rss_bytes)} RSS`, ""];
  const total = engine.accelerator_memory_total_bytes;
  return [`${bytes(engine.accelerator_memory_bytes)} GPU`, total === null ? "" : `of ${bytes(total)}`];
}
