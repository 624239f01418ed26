"""What Redis knows of pools and engines, as Prometheus gauges and counters, made anew for every reading.

It is the same at every web process, so over processes it is never summed: `max by (pool) (…)`, and of an engine's
counters `max by (pool, engine) (rate(…))` before anything is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.pool_states import PoolState, Surroundings

_EVERYWHERE = "The same at every web process: take max by (pool)."
_ENGINE_EVERYWHERE = "The same at every web process: take max by (pool, engine)."


class _PoolGauge(NamedTuple):
    name: str
    help: str
    read: Callable[[PoolState], float | None]


class _EngineMetric(NamedTuple):
    name: str
    help: str
    read: Callable[[EngineSnapshot], float | None]


_POOL_GAUGES = (
    _PoolGauge("engines", "Engines whose heart beats.", lambda pool: len(pool.engines)),
    _PoolGauge(
        "waiting_sequences",
        "Sequences that wait to be scheduled, those that no engine has read yet included.",
        lambda pool: pool.num_unread + sum(engine.num_waiting for engine in pool.engines),
    ),
    _PoolGauge("inbox_sequences", "Sequences that no engine has read yet.", lambda pool: pool.num_unread),
    _PoolGauge(
        "running_sequences",
        "Sequences in the running batch.",
        lambda pool: sum(engine.num_running for engine in pool.engines),
    ),
    _PoolGauge("permits_requests", "Requests that the door counts as waiting.", lambda pool: pool.permits_requests),
    _PoolGauge("permits_tokens", "Tokens that the door counts as waiting.", lambda pool: pool.permits_tokens),
    _PoolGauge(
        "kv_used_ratio",
        "Share of the KV blocks that live sequences hold; absent without an engine.",
        lambda pool: _used_ratio(pool.engines),
    ),
    _PoolGauge(
        "tunables_version",
        "Version of the tunables that engines are told to run; absent where none is announced.",
        lambda pool: None if pool.announced is None else pool.announced.version,
    ),
    _PoolGauge(
        "tunables_applied_engines",
        "Engines that run the version of the tunables that is announced.",
        lambda pool: _num_applied(pool),
    ),
    _PoolGauge(
        "max_running_sequences",
        "The tunable max_running: sequences in an engine's running batch at most.",
        lambda pool: None if pool.announced is None else pool.announced.tunables.max_running,
    ),
    _PoolGauge(
        "max_queue_requests",
        "The tunable max_queue_requests: requests that may wait.",
        lambda pool: None if pool.announced is None else pool.announced.tunables.max_queue_requests,
    ),
    _PoolGauge(
        "slo_ttft_seconds",
        "The tunable slo_ttft_ms: the objective for the first token.",
        lambda pool: None if pool.announced is None else pool.announced.tunables.slo_ttft_ms / 1000,
    ),
    _PoolGauge(
        "slo_itl_seconds",
        "The tunable slo_itl_ms: the objective for a gap between two tokens.",
        lambda pool: None if pool.announced is None else pool.announced.tunables.slo_itl_ms / 1000,
    ),
)
_ENGINE_GAUGES = (
    _EngineMetric("ready", "1 where the engine takes requests, 0 where it drains.", lambda e: e.state == "ready"),
    _EngineMetric("uptime_seconds", "Since the engine's start.", lambda e: e.uptime_seconds),
    _EngineMetric("running_sequences", "Sequences in the running batch.", lambda e: e.num_running),
    _EngineMetric(
        "waiting_sequences", "Sequences that the engine has read and not scheduled.", lambda e: e.num_waiting
    ),
    _EngineMetric(
        "waiting_tokens", "Context tokens of the engine's waiting sequences.", lambda e: e.num_waiting_tokens
    ),
    _EngineMetric("tunables_version", "Version of the tunables that the engine runs.", lambda e: e.tunables_version),
    _EngineMetric("busy_ratio", "Share of the last ten seconds that was spent in steps.", lambda e: e.busy_ratio),
    _EngineMetric("last_step_seconds", "Duration of the last step.", lambda e: e.last_step_ms / 1000),
    _EngineMetric("resident_memory_bytes", "The engine process's resident memory.", lambda e: e.rss_bytes),
    _EngineMetric(
        "accelerator_busy_ratio", "The device's own account of its use, where it tells.", lambda e: e.accelerator_ratio
    ),
    _EngineMetric(
        "accelerator_memory_bytes", "Memory in use on the device, where it tells.", lambda e: e.accelerator_memory_bytes
    ),
    _EngineMetric(
        "accelerator_memory_total_bytes",
        "Memory that the device has, where it tells.",
        lambda e: e.accelerator_memory_total_bytes,
    ),
    _EngineMetric(
        "accelerator_power_watts", "Power that the device draws, where it tells.", lambda e: e.accelerator_power_watts
    ),
    _EngineMetric(
        "accelerator_power_limit_watts",
        "Power that the device may draw, where it tells.",
        lambda e: e.accelerator_power_limit_watts,
    ),
    _EngineMetric(
        "accelerator_temperature_celsius", "The device's temperature, where it tells.", lambda e: e.accelerator_celsius
    ),
    _EngineMetric(
        "accelerator_clock_hertz",
        "The clock that the device computes with, where it tells.",
        lambda e: None if e.accelerator_clock_mhz is None else e.accelerator_clock_mhz * 1e6,
    ),
)
_ENGINE_COUNTERS = (
    _EngineMetric("steps", "Steps since the engine's start.", lambda e: e.steps_total),
    _EngineMetric("prompt_tokens", "Prompt tokens computed or found cached.", lambda e: e.prompt_tokens_total),
    _EngineMetric("generated_tokens", "Tokens generated.", lambda e: e.generated_tokens_total),
    _EngineMetric(
        "preemptions", "Sequences that went back to the queue for want of memory.", lambda e: e.preemptions_total
    ),
    _EngineMetric("padded_tokens", "Tokens that static batches would have padded.", lambda e: e.padded_tokens_total),
    _EngineMetric(
        "discarded_tokens",
        "Tokens computed in vain, for sequences that had ended before their step did.",
        lambda e: e.discarded_tokens_total,
    ),
    _EngineMetric("left_sequences", "Sequences that gave up their place for good.", lambda e: e.left_total),
    _EngineMetric(
        "prefix_query_tokens",
        "Context tokens of sequences that started.",
        lambda e: e.prefix_query_tokens_total,
    ),
    _EngineMetric("prefix_hit_tokens", "Those of them found cached.", lambda e: e.prefix_hit_tokens_total),
    _EngineMetric("drafted_tokens", "Tokens guessed by speculation and computed.", lambda e: e.drafted_tokens_total),
    _EngineMetric("accepted_tokens", "Those of them that were right.", lambda e: e.accepted_tokens_total),
)
_SLOWED_BY = ("power", "heat", "hardware")
_INFO = ("pool", "engine", "model", "name", "device", "dtype", "backend")


def up_gauges(surroundings: Surroundings | None) -> list[Metric]:
    """Whether Redis answers, and whether a monitor is at work; without `surroundings` Redis does not."""
    gauges: list[Metric] = [
        GaugeMetricFamily(
            "footplate_redis_up",
            "1 where this web process reaches Redis. Without it there is nothing here of pools and engines.",
            value=surroundings is not None,
        )
    ]
    if surroundings is not None:
        help_text = f"1 where a monitor is at work. {_EVERYWHERE}"
        gauges.append(GaugeMetricFamily("footplate_monitor_up", help_text, value=surroundings.has_monitor))
    return gauges


def pool_metrics(pools: Sequence[PoolState], models: Mapping[PoolName, str]) -> list[Metric]:
    """Gauges of every pool, and gauges and counters of every engine that lives. `models` are names by pool."""
    return [
        *(_pool_gauge(gauge, pools, models) for gauge in _POOL_GAUGES),
        _kv_blocks(pools, models),
        _engine_info(pools),
        *(_engine_gauge(metric, pools) for metric in _ENGINE_GAUGES),
        _accelerator_slowed(pools),
        _engine_kv_blocks(pools),
        *(_engine_counter(metric, pools) for metric in _ENGINE_COUNTERS),
    ]


def _pool_gauge(gauge: _PoolGauge, pools: Sequence[PoolState], models: Mapping[PoolName, str]) -> Metric:
    family = GaugeMetricFamily(f"footplate_pool_{gauge.name}", f"{gauge.help} {_EVERYWHERE}", labels=("pool", "model"))
    for pool in pools:
        value = gauge.read(pool)
        if value is not None:
            family.add_metric((pool.pool, models[pool.pool]), value)
    return family


def _kv_blocks(pools: Sequence[PoolState], models: Mapping[PoolName, str]) -> Metric:
    family = GaugeMetricFamily(
        "footplate_pool_kv_blocks",
        f"KV blocks by state: used by live sequences, cached or free. {_EVERYWHERE}",
        labels=("pool", "model", "state"),
    )
    for pool in pools:
        for state in ("used", "cached", "free"):
            value = sum(_blocks(engine)[state] for engine in pool.engines)
            family.add_metric((pool.pool, models[pool.pool], state), value)
    return family


def _engine_kv_blocks(pools: Sequence[PoolState]) -> Metric:
    family = GaugeMetricFamily(
        "footplate_engine_kv_blocks",
        f"KV blocks by state: used by live sequences, cached or free. {_ENGINE_EVERYWHERE}",
        labels=("pool", "engine", "state"),
    )
    for engine in _engines(pools):
        for state, value in _blocks(engine).items():
            family.add_metric((engine.pool, engine.engine_id, state), value)
    return family


def _accelerator_slowed(pools: Sequence[PoolState]) -> Metric:
    family = GaugeMetricFamily(
        "footplate_engine_accelerator_slowed",
        "1 where the device's clock is held down, by its bound of power, its heat or something that it does not tell. "
        f"Absent where it tells no temperature. {_ENGINE_EVERYWHERE}",
        labels=("pool", "engine", "reason"),
    )
    for engine in _engines(pools):
        if engine.accelerator_celsius is not None:
            for reason in _SLOWED_BY:
                family.add_metric((engine.pool, engine.engine_id, reason), reason in engine.accelerator_slowed_by)
    return family


def _engine_info(pools: Sequence[PoolState]) -> Metric:
    family = GaugeMetricFamily(
        "footplate_engine_info",
        f"1: what an engine is. Its id is another after each start. {_ENGINE_EVERYWHERE}",
        labels=_INFO,
    )
    for engine in _engines(pools):
        family.add_metric(
            (engine.pool, engine.engine_id, engine.model, engine.name, engine.device, engine.dtype, engine.backend), 1
        )
    return family


def _engine_gauge(metric: _EngineMetric, pools: Sequence[PoolState]) -> Metric:
    family = GaugeMetricFamily(
        f"footplate_engine_{metric.name}", f"{metric.help} {_ENGINE_EVERYWHERE}", labels=("pool", "engine")
    )
    for engine in _engines(pools):
        value = metric.read(engine)
        if value is not None:
            family.add_metric((engine.pool, engine.engine_id), value)
    return family


def _engine_counter(metric: _EngineMetric, pools: Sequence[PoolState]) -> Metric:
    family = CounterMetricFamily(
        f"footplate_engine_{metric.name}", f"{metric.help} {_ENGINE_EVERYWHERE}", labels=("pool", "engine")
    )
    for engine in _engines(pools):
        value = metric.read(engine)
        assert value is not None, "a counter is told of from the start"
        family.add_metric((engine.pool, engine.engine_id), value)
    return family


def _engines(pools: Iterable[PoolState]) -> list[EngineSnapshot]:
    return [engine for pool in pools for engine in pool.engines]


def _blocks(engine: EngineSnapshot) -> dict[str, int]:
    return {"used": engine.kv_blocks_used, "cached": engine.kv_blocks_cached, "free": engine.kv_blocks_free}


def _used_ratio(engines: Sequence[EngineSnapshot]) -> float | None:
    total = sum(engine.kv_blocks_total for engine in engines)
    return sum(engine.kv_blocks_used for engine in engines) / total if total else None


def _num_applied(pool: PoolState) -> int:
    version = None if pool.announced is None else pool.announced.version
    return sum(engine.tunables_version == version for engine in pool.engines)
