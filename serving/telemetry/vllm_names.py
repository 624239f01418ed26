"""The same measurements under vLLM's names, for boards and routers that ask for those.

Names, labels and finish reasons are those that vLLM's V1 engine registers in `vllm/v1/metrics/loggers.py` (as it is
since release 0.12; `docs/design/metrics.md` explains them): `num_requests_running`, `num_requests_waiting`,
`kv_cache_usage_perc`, `prefix_cache_queries` and `…_hits` (tokens), `num_preemptions`, `spec_decode_num_draft_tokens`
and `…_accepted_tokens` (of `vllm/v1/spec_decode/metrics.py`), `prompt_tokens`, `generation_tokens`,
`request_success{finished_reason}`, `time_to_first_token_seconds`, `inter_token_latency_seconds`
(until 0.11 `time_per_output_token_seconds`, which is given too), `e2e_request_latency_seconds` and
`request_queue_time_seconds`. Where vLLM numbers its engines, `engine` is our engine's id; the series without it are
those of no engine alone. Buckets are ours: quantiles over `le` do not mind. What Footplate does not measure is not
given: `request_time_per_output_token_seconds`, prefill and decode time, the histograms of lengths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.pool_states import PoolState
from serving.telemetry.request_metrics import E2E, ENDED, GENERATED_TOKENS, ITL, PROMPT_TOKENS, QUEUE, TTFT

_RENAMED = {
    TTFT: ("vllm:time_to_first_token_seconds",),
    ITL: ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    E2E: ("vllm:e2e_request_latency_seconds",),
    QUEUE: ("vllm:request_queue_time_seconds",),
    PROMPT_TOKENS: ("vllm:prompt_tokens",),
    GENERATED_TOKENS: ("vllm:generation_tokens",),
}
_LABELS = ("model_name", "pool")
_REASONS = {"aborted": "abort", "failed": "error"}
_COUNTERS: dict[str, Callable[[EngineSnapshot], int]] = {
    "vllm:num_preemptions": lambda engine: engine.preemptions_total,
    "vllm:prefix_cache_queries": lambda engine: engine.prefix_query_tokens_total,
    "vllm:prefix_cache_hits": lambda engine: engine.prefix_hit_tokens_total,
    "vllm:spec_decode_num_draft_tokens": lambda engine: engine.drafted_tokens_total,
    "vllm:spec_decode_num_accepted_tokens": lambda engine: engine.accepted_tokens_total,
}


def requests_under_vllm_names(families: Iterable[Metric]) -> list[Metric]:
    """What of a process's own metrics (`RequestMetrics.collect`) vLLM has a name for."""
    renamed: list[Metric] = []
    for family in families:
        renamed += [_under(name, family) for name in _RENAMED.get(family.name, ())]
        if family.name == ENDED:
            renamed.append(_successes(family))
    return renamed


def pools_under_vllm_names(pools: Sequence[PoolState], models: Mapping[PoolName, str]) -> list[Metric]:
    """What of the pools' state vLLM has a name for, engine by engine. `models` are names by pool."""
    running = _gauge("vllm:num_requests_running", "Sequences in the running batch.")
    waiting = _gauge("vllm:num_requests_waiting", "Sequences that wait to be scheduled.")
    usage = _gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks that live sequences hold, 0 to 1.")
    counters = {
        name: CounterMetricFamily(name, "The engine's count since its start.", labels=(*_LABELS, "engine"))
        for name in _COUNTERS
    }
    for pool in pools:
        labels = (models[pool.pool], pool.pool)
        waiting.add_metric((*labels, ""), pool.num_unread)
        for engine in pool.engines:
            own = (*labels, engine.engine_id)
            running.add_metric(own, engine.num_running)
            waiting.add_metric(own, engine.num_waiting)
            if engine.kv_blocks_total:
                usage.add_metric(own, engine.kv_blocks_used / engine.kv_blocks_total)
            for name, count in _COUNTERS.items():
                counters[name].add_metric(own, count(engine))
    return [running, waiting, usage, *counters.values()]


def _gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, f"{help_text} The same at every web process.", labels=(*_LABELS, "engine"))


def _under(name: str, family: Metric) -> Metric:
    renamed = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        labels = {"model_name" if label == "model" else label: value for label, value in sample.labels.items()}
        renamed.add_sample(name + sample.name.removeprefix(family.name), labels, sample.value)
    return renamed


def _successes(ended: Metric) -> Metric:
    counts: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for sample in ended.samples:
        outcome = sample.labels["outcome"]
        reason = sample.labels["code"] if outcome == "finished" else _REASONS.get(outcome)
        if sample.name.endswith("_total") and reason is not None:
            counts[sample.labels["model"], sample.labels["pool"], reason] += sample.value
    family = CounterMetricFamily(
        "vllm:request_success",
        "Requests that ended, by reason; those that were refused are none of them.",
        labels=(*_LABELS, "finished_reason"),
    )
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family
