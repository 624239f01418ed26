import assert from "node:assert/strict";
import { test } from "node:test";

import { reduce } from "../../static/dashboard/js/reducers.js";
import { confirmedValues, enginesApplied, outcomes, shown, totals } from "../../static/dashboard/js/selectors.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { engine, frame, hello, stored, version } from "./support/messages.js";

const NOW = 1_700_000_000_000;
const REDIS = 1_700_000_000;

const received = (message) => ({ type: "received", message, at: NOW });
const EIGHT = version(2, { values: { max_running: 8 } });

function showing(values, helloValues = { versions: [EIGHT, version(1)] }) {
  return [received(hello(helloValues)), received(frame(1, REDIS, { announced_version: 2, ...values }))].reduce(
    reduce,
    initialState({ now: NOW }),
  );
}

const running = (...numbers) => ({ engines: numbers.map((number) => engine({ tunables_version: number })) });

test("before anything is known nothing is said", () => {
  const state = initialState({ now: NOW });
  assert.deepEqual([confirmedValues(state), totals(state), outcomes(state)], [null, null, null]);
  assert.deepEqual(enginesApplied(state), { version: null, applied: 0, total: 0 });
});

test("a version is applied on the engines that run it or a later one", () => {
  const state = showing(running(1, 2, 3));
  assert.deepEqual(enginesApplied(state), { version: 2, applied: 2, total: 3 });
  assert.deepEqual(enginesApplied(state, 3), { version: 3, applied: 1, total: 3 });
});

test("the confirmed values are those that every engine runs", () => {
  const half = confirmedValues(showing(running(2, 1)));
  assert.deepEqual([half.version, half.values.max_running, half.confirmed], [1, 32, true]);
  const all = confirmedValues(showing(running(2, 2)));
  assert.deepEqual([all.version, all.values.max_running, all.confirmed], [2, 8, true]);
});

test("without an engine, or with one of a version not known, the stored values are shown unconfirmed", () => {
  for (const state of [showing(running()), showing(running(0, 2))]) {
    const { version: number, confirmed } = confirmedValues(state);
    assert.deepEqual([number, confirmed], [2, false]);
  }
});

test("totals are the point's figures with the engines' blocks added up", () => {
  const engines = [engine({ tunables_version: 2 }), engine({ tunables_version: 2, kv_blocks_used: 20 })];
  const point = { num_running: 3, num_waiting: 4, num_waiting_tokens: 500, kv_used_ratio: 0.15, kv_cached_ratio: 0.05 };
  const rates = {
    prompt_tokens_per_second: 120,
    generated_tokens_per_second: 30,
    utilisation_ratio: 0.7,
    memory_bytes: 2000,
  };
  assert.deepEqual(totals(showing({ engines, point: { ...point, ...rates } })), {
    numEngines: 2,
    running: 3,
    maxRunning: 16,
    waiting: 4,
    waitingTokens: 500,
    kv: { usedRatio: 0.15, cachedRatio: 0.05, usedBlocks: 30, cachedBlocks: 10, totalBlocks: 200 },
    promptTokensPerSecond: 120,
    generatedTokensPerSecond: 30,
    utilisation: { ratio: 0.7, kind: "busy" },
    memory: { bytes: 2000, kind: "rss" },
    strain: null,
  });
});

test("utilisation and memory say whose they are", () => {
  const own = engine();
  const device = engine({ accelerator_ratio: 0, accelerator_memory_bytes: 0 });
  const shy = engine({ accelerator_ratio: 0.5 });
  const kinds = (...engines) => {
    const { utilisation, memory } = totals(showing({ engines }));
    return [utilisation.kind, memory.kind];
  };
  assert.deepEqual(kinds(own, own), ["busy", "rss"]);
  assert.deepEqual(kinds(device, device), ["accelerator", "accelerator"]);
  assert.deepEqual(kinds(device, own), ["mixed", "mixed"]);
  assert.deepEqual(kinds(shy), ["accelerator", "rss"]);
});

test("accelerators' strain is added up over devices, and the hottest is told", () => {
  const device = (id, values = {}) =>
    engine({
      accelerator_id: id,
      accelerator_memory_total_bytes: 100,
      accelerator_power_watts: 300,
      accelerator_power_limit_watts: 700,
      accelerator_celsius: 60,
      ...values,
    });
  const strainOf = (...engines) => totals(showing({ engines })).strain;
  const hot = device("GPU-2", { accelerator_celsius: 88, accelerator_slowed_by: ["heat"] });
  const both = { memoryBytes: 200, watts: 600, limitWatts: 1400, celsius: 88, slowedBy: ["heat"] };
  assert.deepEqual(strainOf(device("GPU-1"), device("GPU-1"), hot, engine()), both);
  const part = device("MIG-1", { accelerator_power_watts: null, accelerator_power_limit_watts: null });
  assert.deepEqual(strainOf(device("GPU-1"), part), {
    memoryBytes: 200,
    watts: null,
    limitWatts: null,
    celsius: 60,
    slowedBy: [],
  });
});

test("without an engine there is no utilisation, no memory and no capacity", () => {
  const now = totals(showing({ engines: [] }));
  assert.deepEqual(now.utilisation, { ratio: null, kind: null });
  assert.deepEqual(now.memory, { bytes: null, kind: null });
  assert.equal(now.maxRunning, null);
});

test("outcomes are added up over reasons and codes", () => {
  const books = {
    submitted: 20,
    "finished:stop": 5,
    "finished:length": 2,
    aborted: 1,
    "refused:queue_full": 3,
    "failed:owner_lost": 4,
    waiting: 2,
    running: 3,
  };
  assert.deepEqual(outcomes(showing({ outcomes: books })), {
    submitted: 20,
    finished: 7,
    aborted: 1,
    refused: 3,
    failed: 4,
  });
});

test("a paused page shows the moment of the pause, but steers the present", () => {
  const paused = reduce(showing(running(1)), { type: "pause", at: NOW });
  const later = reduce(
    paused,
    received(frame(2, REDIS + 9, { ...running(2), announced_version: 2, point: { num_running: 7 } })),
  );
  assert.equal(totals(later).running, 0);
  assert.equal(shown(later).ring.newestSeconds, REDIS);
  assert.equal(confirmedValues(later).version, 2);
  assert.deepEqual(enginesApplied(later), { version: 2, applied: 1, total: 1 });
});

test("all that a paused page shows is of one moment: capacity and stored version too", () => {
  const paused = reduce(showing(running(1)), { type: "pause", at: NOW });
  const later = [
    received(stored(1, version(3, { values: { max_running: 4 } }))),
    received(frame(2, REDIS + 9, { ...running(3), announced_version: 3 })),
  ].reduce(reduce, paused);
  assert.deepEqual([shown(later).storedVersion, totals(later).maxRunning], [2, 32]);
  const resumed = reduce(later, { type: "resume" });
  assert.deepEqual([shown(resumed).storedVersion, totals(resumed).maxRunning], [3, 4]);
});
