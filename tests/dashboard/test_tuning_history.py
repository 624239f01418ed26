"""What the Tuning page and a version's say of the minutes before and after, and how long they know."""

from __future__ import annotations

import datetime
import re

import httpx
import msgspec
from django.utils import timezone

from serving.telemetry.intervals import Intervals
from serving.telemetry.models import Rollup
from serving.telemetry.rollups import Gauge, RollupContent
from serving.telemetry.sketches import sketch_values
from serving.tuning import canaries
from serving.tuning.effect_keeping import keep_effects
from serving.tuning.models import TunablesVersion
from tests.dashboard.harness import POOL, Services
from tests.dashboard.steering import TUNING, store, tune
from tests.dashboard.tenancy import in_thread, page_of, words
from tests.tuning.engines import beat


async def test_history_compares_what_was_measured_before_and_after(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    number = await tune(services, max_running=8)
    at = timezone.now().replace(microsecond=0) - datetime.timedelta(hours=1)
    at -= datetime.timedelta(seconds=at.timestamp() % 10)
    await in_thread(TunablesVersion.objects.filter(number=number).update)(created_at=at)
    await in_thread(TunablesVersion.objects.filter(number=1).update)(created_at=at - datetime.timedelta(hours=1))
    await in_thread(measure)(at - datetime.timedelta(minutes=5), ttft_seconds=0.4, rate=50)
    await in_thread(measure)(at + datetime.timedelta(minutes=5), ttft_seconds=0.2, rate=80)
    await in_thread(measure)(at + datetime.timedelta(minutes=11), ttft_seconds=9, rate=0)
    page = words(await page_of(steerer, TUNING))
    assert re.search(r"TTFT p95 from (39|40)\d ms → to (19|20)\d ms ↓ 50 % better", page)
    assert "Generated tokens/s from 50.0 → to 80.0 ↑ 60 % more" in page
    one = words(await page_of(steerer, f"/console/pools/{POOL}/versions/2/"))
    assert re.search(r"TTFT p50 \d+ ms 20 \d+ ms 20 ↓ 50 % better", one)
    assert re.search(r"ITL p95 – 0 – 0 too few to compare", one)
    assert (await steerer.get(f"/console/pools/{POOL}/versions/99999999999/")).status_code == 404
    later = timezone.now()
    assert await in_thread(keep_effects)(services.blocking_redis, now=later) == 1
    await in_thread(Rollup.objects.all().delete)()
    for path, before in ((TUNING, page), (f"/console/pools/{POOL}/versions/2/", one)):
        told = re.search(r"TTFT p95 .*? Change|TTFT p95 .*? better", before)
        assert told is not None
        assert told[0] in words(await page_of(steerer, path))


async def test_a_version_that_one_engine_alone_ran_has_no_effect_on_the_pool(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True)
    assert "Not enough yet" not in words(await page_of(steerer, TUNING))
    assert "10 minutes before and after" not in words(await page_of(steerer, f"/console/pools/{POOL}/versions/2/"))
    await in_thread(canaries.take_to_all)(POOL, 2, reason="", author="ann", redis=services.blocking_redis)
    assert "Not enough yet" in words(await page_of(steerer, TUNING))


def measure(at: datetime.datetime, *, ttft_seconds: float, rate: float) -> None:
    content = RollupContent(
        seconds=10,
        intervals=Intervals(ttft=sketch_values([ttft_seconds] * 20)),
        gauges={"generated_tokens_per_second": Gauge(10, 10 * rate, rate)},
    )
    Rollup.objects.create(pool=POOL, seconds=10, starts_at=at, content=msgspec.msgpack.encode(content))
