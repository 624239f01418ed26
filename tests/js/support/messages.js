/** Messages as the server sends them. */

export const POINT_FIELDS = [
  "unix_seconds",
  "num_waiting",
  "num_waiting_tokens",
  "num_running",
  "kv_used_ratio",
  "kv_cached_ratio",
  "prompt_tokens_per_second",
  "generated_tokens_per_second",
  "utilisation_ratio",
  "memory_bytes",
  "tunables_version",
  "percentiles",
  "num_waiting_long",
  "prefill_tokens_per_step",
  "decode_tokens_per_step",
  "step_ms",
  "preemptions_per_second",
  "prefix_hit_ratio",
  "finished_per_second",
  "refused_per_second",
  "failed_per_second",
  "aborted_per_second",
  "goodput_per_second",
  "kv_free_ratio",
  "num_waiting_long_tokens",
  "waiting_by_priority",
  "refusals_per_second",
  "utilisation_by_engine",
  "memory_by_engine",
  "draft_acceptance_ratio",
];
export const WINDOWS = [10, 60, 300, 900];
export const INTERVALS = ["queue_time_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds"];
export const PERCENTILES = [50, 90, 95, 99];
export const SHAPE = { fields: POINT_FIELDS, numWindows: 4, intervals: INTERVALS, percentiles: PERCENTILES };

export const SPECS = [
  { name: "mode", kind: "choice", default: "continuous", unit: "", choices: ["continuous", "static"] },
  { name: "batch_window_ms", kind: "number", default: 0, unit: "ms", low: 0, high: 10_000 },
  { name: "max_running", kind: "integer", default: 32, unit: "sequences", low: 1, high: 1024 },
  { name: "prefill_share", kind: "number", default: 0.5, unit: "ratio", low: 0, high: 1 },
].map((spec) => ({ effect: "next step", help: "", low: null, high: null, choices: [], ...spec }));

export const DEFAULTS = { mode: "continuous", batch_window_ms: 0, max_running: 32, prefill_share: 0.5 };

export const specOf = (name) => SPECS.find((spec) => spec.name === name);

/** Every percentile is told apart: window, interval and percentile are digits of the milliseconds. */
export function percentiles(scale = 1) {
  return WINDOWS.map((_, window) =>
    INTERVALS.map((_, interval) =>
      PERCENTILES.map((_, index) => (scale * (100 * window + 10 * interval + index)) / 1000),
    ),
  );
}

export function point(unixSeconds, values = {}) {
  const defaults = {
    num_waiting: 0,
    num_waiting_tokens: 0,
    num_running: 0,
    kv_used_ratio: 0,
    kv_cached_ratio: 0,
    prompt_tokens_per_second: 0,
    generated_tokens_per_second: 0,
    utilisation_ratio: 0,
    memory_bytes: 0,
    tunables_version: 1,
    percentiles: percentiles(),
    num_waiting_long: 0,
    prefill_tokens_per_step: 0,
    decode_tokens_per_step: 0,
    step_ms: null,
    preemptions_per_second: 0,
    prefix_hit_ratio: null,
    finished_per_second: 0,
    refused_per_second: 0,
    failed_per_second: 0,
    aborted_per_second: 0,
    goodput_per_second: 0,
    kv_free_ratio: 1,
    num_waiting_long_tokens: 0,
    waiting_by_priority: {},
    refusals_per_second: {},
    utilisation_by_engine: {},
    memory_by_engine: {},
    draft_acceptance_ratio: null,
  };
  const all = { ...defaults, ...values, unix_seconds: unixSeconds };
  return POINT_FIELDS.map((field) => all[field]);
}

export function engine(values = {}) {
  return {
    engine_id: "e1",
    name: "engine-1",
    state: "ready",
    leaves: false,
    tunables_version: 1,
    kv_blocks_total: 100,
    kv_blocks_used: 10,
    kv_blocks_cached: 5,
    busy_ratio: 0.5,
    rss_bytes: 1000,
    accelerator_ratio: null,
    accelerator_memory_bytes: null,
    accelerator_id: "",
    accelerator_memory_total_bytes: null,
    accelerator_power_watts: null,
    accelerator_power_limit_watts: null,
    accelerator_celsius: null,
    accelerator_clock_mhz: null,
    accelerator_slowed_by: [],
    ...values,
  };
}

export function frame(sequence, unixSeconds, { point: values, ...rest } = {}) {
  return {
    type: "frame",
    sequence,
    pool: "default",
    point: point(unixSeconds, values),
    announced_version: 1,
    outcomes: { submitted: 0, waiting: 0, running: 0 },
    engines: [engine()],
    ...rest,
  };
}

/** Version `number`: the defaults with `values`; `changes` is what it changed. */
export function version(number, { values = {}, changes = {}, author = "ann", ...rest } = {}) {
  return {
    number,
    values: { ...DEFAULTS, ...values },
    changes,
    reason: "",
    author,
    created_at: "2025-03-07T14:03:12Z",
    ...rest,
  };
}

export function hello(values = {}) {
  return {
    type: "hello",
    pool: "default",
    model: "smollm2",
    user: "ann",
    may_steer: true,
    point_fields: POINT_FIELDS,
    windows_seconds: WINDOWS,
    interval_names: INTERVALS,
    percentiles: PERCENTILES,
    tunables: SPECS,
    versions: [version(1, { author: "first start" })],
    ...values,
  };
}

export const stored = (id, info) => ({ type: "stored", id, version: info });
export const refused = (id, values) => ({
  type: "refused",
  id,
  code: "invalid_value",
  message: "no",
  param: null,
  newer: [],
  ...values,
});
