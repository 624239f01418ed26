/** Steps as the server sends them. */

export const FIELDS = [
  "step",
  "unix_seconds",
  "total_ms",
  "schedule_ms",
  "prepare_ms",
  "forward_ms",
  "sample_ms",
  "update_ms",
  "num_prefill_tokens",
  "num_decode_tokens",
  "num_padded_tokens",
  "max_batch_tokens",
  "num_running",
  "num_waiting",
  "kv_blocks_used",
  "tunables_version",
  "is_static",
  "failed",
  "decoding",
  "others",
  "ended",
  "waiting",
];
const KINDS = { prefill: 0, decode: 1, preempted: 2 };

/**
 * A batch of steps told in words: `{step: 1, decode: ["a"], prefill: {b: 7}, preempted: ["c"], ended: ["a"],
 * waiting: ["d"], padded: 3, isStatic: true, ms: 10, …}`.
 */
export function batchOf(steps, { dropped = 0 } = {}) {
  const names = [];
  const place = (name) => {
    if (!names.includes(name)) names.push(name);
    return names.indexOf(name);
  };
  const rows = steps.map(({ step, decode = [], prefill = {}, preempted = [], ended = [], waiting = [], ...rest }) => {
    const { ms = 10, at = 1_700_000_000 + step / 100, padded = 0, budget = 512, version = 1, isStatic = false } = rest;
    const numPrefill = Object.values(prefill).reduce((sum, tokens) => sum + tokens, 0);
    const others = Object.entries(prefill).flatMap(([name, tokens]) => [place(name), KINDS.prefill, tokens]);
    for (const name of preempted) others.push(place(name), KINDS.preempted, 0);
    const values = {
      step,
      unix_seconds: at,
      total_ms: ms,
      schedule_ms: 0.01 * ms,
      prepare_ms: 0.05 * ms,
      forward_ms: 0.8 * ms,
      sample_ms: 0.1 * ms,
      update_ms: 0.02 * ms,
      num_prefill_tokens: numPrefill,
      num_decode_tokens: decode.length,
      num_padded_tokens: padded,
      max_batch_tokens: budget,
      num_running: decode.length + Object.keys(prefill).length,
      num_waiting: waiting.length,
      kv_blocks_used: 1,
      tunables_version: version,
      is_static: isStatic,
      failed: rest.failed ?? false,
      decoding: decode.map(place),
      others,
      ended: ended.map(place),
      waiting: waiting.map(place),
    };
    return FIELDS.map((field) => values[field]);
  });
  return { sequences: names.map((name) => [name, 0]), rows, num_dropped: dropped };
}
