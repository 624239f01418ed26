"""All that a web process tells Prometheus: each figure from where it is true, under names that are as they should."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName, RequestId
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot, SequenceKey, Submit, encode
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.gateway.observer import Ended
from serving.telemetry.exposition import Exposition
from serving.telemetry.request_metrics import RequestMetrics
from tests.telemetry.conftest import POOL, snapshot
from tests.telemetry.scraping import Scrape, labels_of, scraped, sum_of, text_of
from tests.telemetry.server import Server

BULK = PoolName("bulk")
MODELS = {POOL: "tiny", BULK: "tiny"}
BUSY: dict[str, Any] = {
    "num_running": 4,
    "num_waiting": 2,
    "num_waiting_tokens": 70,
    "kv_blocks_used": 30,
    "kv_blocks_cached": 20,
    "kv_blocks_free": 50,
    "steps_total": 11,
    "prompt_tokens_total": 900,
    "generated_tokens_total": 300,
    "preemptions_total": 5,
    "prefix_query_tokens_total": 800,
    "prefix_hit_tokens_total": 600,
    "drafted_tokens_total": 40,
    "accepted_tokens_total": 30,
    "busy_ratio": 0.75,
    "last_step_ms": 12.5,
    "rss_bytes": 4096,
    "tunables_version": 3,
}


async def beat(redis: Redis, engine: EngineSnapshot) -> None:
    seconds, _ = await redis.time()
    await redis.set(keys.heartbeat(engine.engine_id), encode(engine), px=60_000)
    await redis.zadd(keys.engines(engine.pool), {engine.engine_id: seconds})


async def scrape_of(redis: Redis, requests: RequestMetrics | None = None, *, vllm_names: bool = False) -> Scrape:
    exposition = Exposition(redis, requests=requests or RequestMetrics(MODELS), models=MODELS)
    return scraped(text_of(await exposition.collect(vllm_names=vllm_names)))


async def test_a_pools_gauges_are_those_of_all_its_engines_and_of_what_none_has_read(redis: Redis) -> None:
    for name in ("engine-1", "engine-2"):
        await beat(redis, snapshot(name, **BUSY))
    await beat(redis, snapshot("other", pool=BULK, num_running=1))
    submit = Submit(
        key=SequenceKey(RequestId("r"), 0),
        attempt=1,
        owner_id=OwnerId("web-1"),
        tenant="t",
        prompt_ids=[1] * 10,
        params=SamplingParams(max_tokens=5, seed=1),
    )
    await redis.xadd(keys.inbox(POOL), {keys.FIELD: encode(submit)})
    await redis.hset(keys.permit_weights(POOL), mapping={"total:requests": 3, "total:tokens": 120})
    scrape = await scrape_of(redis)
    expected = {
        "engines": 2,
        "waiting_sequences": 5,
        "inbox_sequences": 1,
        "running_sequences": 8,
        "permits_requests": 3,
        "permits_tokens": 120,
        "kv_used_ratio": 0.3,
    }
    assert {name: sum_of(scrape, f"footplate_pool_{name}", pool=POOL, model="tiny") for name in expected} == expected
    blocks = {state: sum_of(scrape, "footplate_pool_kv_blocks", pool=POOL, state=state) for state in ("used", "cached")}
    assert blocks == {"used": 60, "cached": 40}
    assert sum_of(scrape, "footplate_pool_running_sequences", pool=BULK) == 1


async def test_an_engine_has_series_of_its_own(redis: Redis) -> None:
    device = {"accelerator_ratio": 0.9, "accelerator_memory_bytes": 2**30, "accelerator_memory_total_bytes": 2**31}
    device |= {"accelerator_power_watts": 612.5, "accelerator_power_limit_watts": 700.0, "accelerator_celsius": 64}
    device |= {"accelerator_clock_mhz": 1980, "accelerator_slowed_by": ("power",)}
    await beat(redis, snapshot("a", **BUSY, **device, device="cuda", state="draining"))
    await beat(redis, snapshot("b"))
    scrape = await scrape_of(redis)
    expected = {
        "ready": 0,
        "running_sequences": 4,
        "waiting_tokens": 70,
        "busy_ratio": 0.75,
        "last_step_seconds": 0.0125,
        "resident_memory_bytes": 4096,
        "accelerator_busy_ratio": 0.9,
        "accelerator_memory_bytes": 2**30,
        "accelerator_memory_total_bytes": 2**31,
        "accelerator_power_watts": 612.5,
        "accelerator_power_limit_watts": 700,
        "accelerator_temperature_celsius": 64,
        "accelerator_clock_hertz": 1.98e9,
        "steps_total": 11,
        "prompt_tokens_total": 900,
        "generated_tokens_total": 300,
        "preemptions_total": 5,
        "prefix_query_tokens_total": 800,
        "prefix_hit_tokens_total": 600,
        "drafted_tokens_total": 40,
        "accepted_tokens_total": 30,
    }
    assert {name: sum_of(scrape, f"footplate_engine_{name}", pool=POOL, engine="a") for name in expected} == expected
    assert sum_of(scrape, "footplate_engine_ready", engine="b") == 1
    # What a device does not tell is absent, and not nought.
    for name in ("busy_ratio", "memory_bytes", "memory_total_bytes", "power_watts", "temperature_celsius"):
        assert [labels["engine"] for labels in labels_of(scrape, f"footplate_engine_accelerator_{name}")] == ["a"]
    reasons = {
        reason: sum_of(scrape, "footplate_engine_accelerator_slowed", engine="a", reason=reason)
        for reason in ("power", "heat", "hardware")
    }
    assert reasons == {"power": 1, "heat": 0, "hardware": 0}
    assert {labels["engine"] for labels in labels_of(scrape, "footplate_engine_accelerator_slowed")} == {"a"}
    assert sum_of(scrape, "footplate_engine_info", engine="a", model="tiny", device="cuda", dtype="float32") == 1


async def test_tells_which_tunables_are_announced_and_how_many_engines_run_them(redis: Redis) -> None:
    tunables = Tunables(max_running=8, slo_ttft_ms=1500, slo_itl_ms=50)
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(8, tunables)))
    for name, version in (("a", 8), ("b", 7), ("c", 8)):
        await beat(redis, snapshot(name, tunables_version=version))
    scrape = await scrape_of(redis)
    expected = {
        "tunables_version": 8,
        "tunables_applied_engines": 2,
        "max_running_sequences": 8,
        "slo_ttft_seconds": 1.5,
        "slo_itl_seconds": 0.05,
    }
    assert {name: sum_of(scrape, f"footplate_pool_{name}", pool=POOL) for name in expected} == expected
    assert [labels["pool"] for labels in labels_of(scrape, "footplate_pool_tunables_version")] == [POOL]


async def test_after_the_last_request_every_gauge_is_nought(redis: Redis) -> None:
    """C88: gauges are what engines say now, idle as well, and never a last busy value that was kept."""
    await beat(redis, snapshot("a", **BUSY))
    exposition = Exposition(redis, requests=RequestMetrics(MODELS), models=MODELS)
    busy = scraped(text_of(await exposition.collect(vllm_names=True)))
    assert sum_of(busy, "footplate_pool_running_sequences") == sum_of(busy, "vllm:num_requests_running") == 4
    await beat(redis, snapshot("a"))
    idle = scraped(text_of(await exposition.collect(vllm_names=True)))
    gauges = ("pool_running_sequences", "pool_waiting_sequences", "pool_kv_used_ratio", "engine_running_sequences")
    for name in (*(f"footplate_{gauge}" for gauge in gauges), "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert labels_of(idle, name)
        assert sum_of(idle, name) == 0
    await redis.delete(keys.heartbeat(snapshot("a").engine_id))
    gone = scraped(text_of(await exposition.collect(vllm_names=True)))
    assert sum_of(gone, "footplate_pool_engines") == 0
    assert labels_of(gone, "footplate_engine_info") == []


async def test_pools_are_the_same_at_every_process_so_that_their_highest_is_the_truth(redis: Redis) -> None:
    await beat(redis, snapshot("a", **BUSY))
    first, second = [
        {series: value for series, value in (await scrape_of(redis)).items() if series[0].startswith("footplate_pool")}
        for _ in range(2)
    ]
    assert first == second
    assert sum_of(first, "footplate_pool_running_sequences") == 4


async def test_a_scrape_of_many_pools_is_a_few_reads_of_each_and_writes_nothing(redis: Redis) -> None:
    models = {PoolName(f"pool-{number}"): "tiny" for number in range(20)}
    for pool in models:
        for number in range(3):
            await beat(redis, snapshot(f"{pool}-{number}", pool=pool, **BUSY))
    exposition = Exposition(redis, requests=RequestMetrics(models), models=models)
    await redis.config_resetstat()
    families = await exposition.collect(vllm_names=True)
    stats = await redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    reads = {"exists": 1, "zrange": 20, "xlen": 20, "hmget": 20, "get": 20, "mget": 1}
    assert {name: calls.get(name) for name in reads} == reads
    assert set(calls) <= {*reads, "info", "config|resetstat", "client|setinfo", "hello"}
    assert sum_of(scraped(text_of(families)), "footplate_pool_engines") == 60


async def test_without_redis_what_the_process_counted_itself_is_told(server: Server) -> None:
    requests = RequestMetrics(MODELS)
    requests.submitted(POOL)
    async with Redis.from_url(server.url) as away:
        scrape = await scrape_of(away, requests, vllm_names=True)
        assert sum_of(scrape, "footplate_redis_up") == 0
        assert labels_of(scrape, "footplate_redis_up") == [{}]
        assert sum_of(scrape, "footplate_requests_in_flight", state="waiting") == 1
        # Nobody knows: that is no nought.
        assert labels_of(scrape, "footplate_pool_engines") == labels_of(scrape, "footplate_monitor_up") == []
        server.start()
        assert sum_of(await scrape_of(away, requests), "footplate_redis_up") == 1


@pytest.mark.waits
async def test_a_redis_that_is_silent_holds_up_no_scrape(server: Server) -> None:
    """What is connected and says nothing is away, long before the scraper's own patience ends."""
    server.start()
    async with Redis.from_url(server.url) as silent, Redis.from_url(server.url) as other:
        assert sum_of(await scrape_of(silent), "footplate_redis_up") == 1
        await other.client_pause(60_000)
        async with asyncio.timeout(9):
            scrape = await scrape_of(silent)
    assert sum_of(scrape, "footplate_redis_up") == 0
    assert labels_of(scrape, "footplate_requests_in_flight")


async def test_tells_whether_a_monitor_is_at_work(redis: Redis) -> None:
    assert sum_of(await scrape_of(redis), "footplate_monitor_up") == 0
    await redis.set(keys.monitor_lease(), b"somebody")
    assert sum_of(await scrape_of(redis), "footplate_monitor_up") == 1


async def test_what_another_version_left_in_redis_breaks_nothing(redis: Redis) -> None:
    await beat(redis, snapshot("a", **BUSY))
    await beat(redis, snapshot("b"))
    await redis.set(keys.heartbeat(snapshot("b").engine_id), b"\x01nonsense")
    await redis.set(keys.announced_tunables(POOL), b"\x01nonsense")
    scrape = await scrape_of(redis)
    assert sum_of(scrape, "footplate_pool_engines", pool=POOL) == 1
    assert labels_of(scrape, "footplate_pool_tunables_version") == []


# --- names ---------------------------------------------------------------------------------------------------------

_UNITS = "milliseconds microseconds nanoseconds minutes hours days kilobytes megabytes gigabytes bits percent celsius_"
_SHORT_UNITS = "ms us ns s sec secs m min b kb mb gb h d pct perc"


async def told(redis: Redis, *, vllm_names: bool = False) -> list[Metric]:
    await beat(redis, snapshot("a", **BUSY, accelerator_ratio=0.5, accelerator_memory_bytes=1))
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, Tunables())))
    requests = RequestMetrics(MODELS)
    requests.rejected("not_found")
    return await Exposition(redis, requests=requests, models=MODELS).collect(vllm_names=vllm_names)


async def test_names_are_as_prometheus_wants_them(redis: Redis) -> None:
    """The rules of `promtool check metrics`: help, base units, types by their suffixes and nowhere else."""
    families = await told(redis)
    assert len(families) > 40
    assert len({family.name for family in families}) == len(families)
    for family in families:
        if family.name.startswith("process_"):
            continue
        words = family.name.split("_")
        assert re.fullmatch(r"footplate(_[a-z0-9]+)+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not {*_UNITS.split(), *_SHORT_UNITS.split()} & {*words}, family.name
        assert not {"counter", "gauge", "histogram", "summary", "metric"} & {*words}, family.name
        assert words[-1] not in {"total", "count", "sum", "bucket", "created"}, family.name
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z]+", label) for label in sample.labels)
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert "le" not in sample.labels or family.type == "histogram"
            assert not sample.name.endswith("_created")
        if family.type == "histogram":
            assert words[-1] in {"seconds", "bytes", "ratio"}, family.name


async def test_what_is_the_same_at_every_process_says_so(redis: Redis) -> None:
    for family in await told(redis):
        if family.name.startswith(("footplate_pool_", "footplate_engine_", "footplate_monitor_")):
            assert "same at every web process" in family.documentation, family.name
            assert "take max by" in family.documentation, family.name


async def test_no_label_has_values_of_a_clients_making(redis: Redis) -> None:
    labels = {label for family in await told(redis) for sample in family.samples for label in sample.labels}
    own = {"pool", "model", "state", "outcome", "code", "le"}
    engines = {"engine", "name", "device", "dtype", "backend"}
    assert labels == own | engines


# --- vLLM's names --------------------------------------------------------------------------------------------------

VLLM_NAMES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
}


async def test_vllms_names_come_only_where_they_are_asked_for(redis: Redis) -> None:
    assert not any(family.name.startswith("vllm:") for family in await told(redis))
    families = {f.name: f.type for f in await told(redis, vllm_names=True) if f.name.startswith("vllm:")}
    assert families == VLLM_NAMES


async def test_vllms_names_have_the_same_figures_as_ours(redis: Redis) -> None:
    await beat(redis, snapshot("a", **BUSY))
    requests = RequestMetrics(MODELS)
    for outcome, scheduled in (("finished:length", True), ("aborted", True), ("failed:x", True), ("refused:y", False)):
        requests.submitted(POOL)
        if scheduled:
            requests.scheduled(POOL, queue_seconds=0.2)
            requests.first_token(POOL, ttft_seconds=0.3)
            requests.token_gap(POOL, itl_seconds=0.02)
        requests.ended(
            Ended(
                request_id=RequestId(outcome),
                pool=POOL,
                outcome=outcome,
                was_scheduled=scheduled,
                e2e_seconds=2.0,
                prompt_tokens=3,
                completion_tokens=5,
            )
        )
    scrape = await scrape_of(redis, requests, vllm_names=True)
    for ours, theirs in {
        "footplate_request_ttft_seconds": "vllm:time_to_first_token_seconds",
        "footplate_request_itl_seconds": "vllm:inter_token_latency_seconds",
        "footplate_request_e2e_seconds": "vllm:e2e_request_latency_seconds",
        "footplate_request_queue_seconds": "vllm:request_queue_time_seconds",
    }.items():
        for suffix in ("_count", "_sum"):
            assert sum_of(scrape, theirs + suffix, model_name="tiny") == sum_of(scrape, ours + suffix) > 0
        bounds = {labels["le"] for labels in labels_of(scrape, f"{ours}_bucket")}
        assert {labels["le"] for labels in labels_of(scrape, f"{theirs}_bucket")} == bounds
    reasons = {
        labels["finished_reason"]: sum_of(scrape, "vllm:request_success_total", **labels)
        for labels in labels_of(scrape, "vllm:request_success_total")
        if labels["pool"] == POOL
    }
    assert reasons == {"stop": 0, "length": 1, "abort": 1, "error": 1}
    assert sum_of(scrape, "vllm:prompt_tokens_total") == 12
    assert sum_of(scrape, "vllm:generation_tokens_total") == 20
    assert sum_of(scrape, "vllm:num_requests_waiting", model_name="tiny") == 2
    assert sum_of(scrape, "vllm:kv_cache_usage_perc", engine="a") == pytest.approx(0.3)
    assert sum_of(scrape, "vllm:num_preemptions_total", engine="a") == 5
    assert sum_of(scrape, "vllm:spec_decode_num_draft_tokens_total", engine="a") == 40
    assert sum_of(scrape, "vllm:spec_decode_num_accepted_tokens_total", engine="a") == 30
    assert sum_of(scrape, "vllm:prefix_cache_hits_total") / sum_of(scrape, "vllm:prefix_cache_queries_total") == 0.75
