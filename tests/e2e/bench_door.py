"""What the door does under overload: `make bench-door`. Prints a table and JSON; asserts nothing.

- Overload: requests come at ten times the rate that was measured as capacity, once with `early_reject` on and once off.
  Goodput (requests a second whose first token met `slo_ttft_ms`) stands beside the capacity, how long a refusal takes,
  what memory grows by, and how far the predicted time to the first token was from the real one.
- Flood: one tenant keeps three times as many requests going as there are places, another asks now and then. The time to
  the other's first token, under `fcfs`, under `fair`, and for a lone request that joins an engine which is as busy but
  has a place free.

`--quick` runs each part for a few seconds, to see that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from serving.admission.prediction import Load, Predictor, predict
from serving.config.env import embedded_socket
from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import decode_snapshot
from serving.engine.models.importer import import_model
from tests.e2e.asking import Seen, ask, new_client, percentile, sleep_until
from tests.e2e.stack import REPOSITORY, Stack

POOL = PoolName("default")
_PLACES = 16
_SLO_MS = 5000
_BYTES_A_TOKEN = 3
"""As the door estimates."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long each part takes, in seconds."""

    capacity: float
    overload: float
    flood: float
    between_little: float


QUICK = Scale(capacity=6, overload=6, flood=8, between_little=1.0)
WHOLE = Scale(capacity=30, overload=60, flood=60, between_little=1.5)


class Forecaster:
    """Owns a predictor of its own that sees what a web process sees; on the bench's event loop."""

    def __init__(self, redis: Redis, max_running: int) -> None:
        self._redis = redis
        self._max_running = max_running
        self._predictor = Predictor(redis, [POOL])

    async def watch(self) -> None:
        """Look at the engines a few times a second, until cancelled."""
        while True:
            ids = [EngineId(raw.decode()) for raw in await self._redis.zrange(keys.engines(POOL), 0, -1)]
            beats = await self._redis.mget([keys.heartbeat(each) for each in ids]) if ids else []
            snapshots = [decode_snapshot(beat) for beat in beats if beat is not None]
            self._predictor.look(POOL, snapshots, max_running=self._max_running)
            await asyncio.sleep(0.25)

    async def forecast(self, own: Load) -> float:
        """Seconds to the first token of a request that comes now."""
        stored = await self._redis.hmget(keys.permit_weights(POOL), ["total:requests", "total:tokens"])
        sequences, tokens = (int(value or 0) for value in stored)
        return predict(own, ahead=Load(sequences, tokens), pace=self._predictor.pace_of(POOL)).ttft_seconds


def main() -> None:
    """Start a stack, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="where the figures go, beside standard output")
    options = parser.parse_args()
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        stack = Stack.over(Path(name), model).start()
        try:
            figures = asyncio.run(_measure(stack, QUICK if options.quick else WHOLE))
        finally:
            stack.stop()
    _print_table(figures)
    _say(json.dumps(figures, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


async def _measure(stack: Stack, scale: Scale) -> dict[str, Any]:
    stack.tune(max_running=_PLACES, slo_ttft_ms=_SLO_MS, max_queue_requests=64)
    redis = Redis.from_url(f"unix://{embedded_socket(stack.home)}")
    forecaster = Forecaster(redis, _PLACES)
    watching = asyncio.create_task(forecaster.watch())
    try:
        return await _measure_all(stack, scale, forecaster)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await redis.aclose()


async def _measure_all(stack: Stack, scale: Scale, forecaster: Forecaster) -> dict[str, Any]:
    key = stack.first_run["api_key"]
    await _keep_busy(stack, [key] * _PLACES, seconds=scale.capacity / 2)  # kernels, caches and threads are warm then
    done = await _keep_busy(stack, [key] * _PLACES, seconds=scale.capacity)
    capacity = len(done) / scale.capacity
    figures: dict[str, Any] = {"capacity_requests_per_second": round(capacity, 2)}
    for early_reject in ("on", "off"):  # each differs from what is in force
        stack.tune(early_reject=early_reject)
        stack.wait_until_idle()
        figures[f"overload, early_reject {early_reject}"] = await _overload(
            stack, capacity, scale.overload, forecaster=forecaster
        )
    stack.tune(max_queue_requests=256)
    for order in ("fair", "fcfs"):
        stack.tune(order=order)
        stack.wait_until_idle()
        figures[f"flood, {order}"] = await _flood(stack, scale, num_clients=3 * _PLACES)
    stack.wait_until_idle()
    figures["flood, none waits"] = await _flood(stack, scale, num_clients=_PLACES - 1)
    return figures


def _body(rng: random.Random) -> dict[str, Any]:
    return {
        "model": "SmolLM2-135M-Instruct",
        # Of 32 to 256 tokens, of which no beginning is cached.
        "prompt": f"{rng.random()}" + " engine" * rng.randint(16, 240),
        "max_tokens": rng.randint(16, 48),
        "ignore_eos": True,
    }


async def _keep_busy(stack: Stack, client_keys: list[str], *, seconds: float) -> list[Seen]:
    """Clients that ask one thing after another; what was served of it in that time."""
    ends_at = time.monotonic() + seconds
    served: list[Seen] = []

    async def ask_on(number: int, key: str) -> None:
        rng = random.Random(number)
        while time.monotonic() < ends_at:
            seen = await ask(client, _body(rng), key=key)
            if seen.is_served and time.monotonic() < ends_at:
                served.append(seen)

    async with new_client(stack.url) as client:
        await asyncio.gather(*(ask_on(number, key) for number, key in enumerate(client_keys)))
    return served


async def _overload(stack: Stack, capacity: float, seconds: float, *, forecaster: Forecaster) -> dict[str, Any]:
    before = _resident_mb(stack)
    rng, key = random.Random(1), stack.first_run["api_key"]

    async def forecast_and_ask(client: Any) -> Seen:
        body = _body(rng)
        predicted = await forecaster.forecast(Load(1, len(body["prompt"]) // _BYTES_A_TOKEN))
        seen = await ask(client, body, key=key)
        seen.predicted_seconds = predicted
        return seen

    async with new_client(stack.url) as client:
        began, asking = time.monotonic(), []
        for number in itertools.count():
            moment = number / (10 * capacity)
            if moment >= seconds:
                break
            await sleep_until(began + moment)
            asking.append(asyncio.create_task(forecast_and_ask(client)))
        after = _resident_mb(stack)
        seen = await asyncio.gather(*asking)
    return _summary(seen, began=began, seconds=seconds) | {
        "memory_mb": {name: [before.get(name), size] for name, size in after.items()}
    }


def _summary(seen: list[Seen], *, began: float, seconds: float) -> dict[str, Any]:
    """Rates count what ended while requests came; all else counts what ended later as well."""
    served = [each for each in seen if each.is_served]
    ended = [each for each in served if each.sent_at + each.answered_seconds <= began + seconds]
    good = [each for each in ended if each.ttft_seconds is not None and each.ttft_seconds * 1000 <= _SLO_MS]
    refused_ms = [each.answered_seconds * 1000 for each in seen if each.status == 429]
    ttfts = [each.ttft_seconds for each in served if each.ttft_seconds is not None]
    errors = [
        abs(each.predicted_seconds - each.ttft_seconds)
        for each in served[len(served) // 4 :]
        if each.predicted_seconds and each.ttft_seconds is not None
    ]
    return {
        "sent": len(seen),
        "outcomes": dict(Counter(each.code or "served" for each in seen)),
        "served_per_second": round(len(ended) / seconds, 2),
        "goodput_per_second": round(len(good) / seconds, 2),
        "ttft_p50_p95_seconds": [round(percentile(ttfts, percent), 2) for percent in (50, 95)],
        "refusal_p50_p99_ms": [round(percentile(refused_ms, percent), 1) for percent in (50, 99)],
        "without_retry_after": sum(each.status == 429 and each.retry_after is None for each in seen),
        "prediction_error_p50_p95_seconds": [round(percentile(errors, percent), 2) for percent in (50, 95)],
    }


async def _flood(stack: Stack, scale: Scale, *, num_clients: int) -> dict[str, Any]:
    flooding, little = stack.first_run["api_key"], _create_key(stack, "little")
    flood = asyncio.create_task(_keep_busy(stack, [flooding] * num_clients, seconds=scale.flood))
    began, seen = time.monotonic(), []
    await sleep_until(began + scale.flood / 4)
    rng = random.Random(2)
    async with new_client(stack.url) as client:
        while time.monotonic() < began + scale.flood * 0.9:
            next_at = time.monotonic() + scale.between_little
            seen.append(await ask(client, _body(rng), key=little))
            await sleep_until(next_at)
    done = await flood
    ttfts = [each.ttft_seconds for each in seen if each.ttft_seconds is not None]
    return {
        "littles_requests": len(seen),
        "littles_ttft_p50_p95_seconds": [round(percentile(ttfts, percent), 3) for percent in (50, 95)],
        "flood_served_per_second": round(len(done) / scale.flood, 2),
    }


def _create_key(stack: Stack, tenant: str) -> str:
    made = subprocess.run(
        [sys.executable, "manage.py", "createkey", tenant],
        cwd=REPOSITORY,
        env=stack.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.strip()


def _resident_mb(stack: Stack) -> dict[str, int]:
    """Memory of each child, by its command's last word."""
    sizes = {}
    for command, pid in stack.pids().items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        name = next((word for word in command.split() if word.startswith("run")), command.split()[0].split("/")[-1])
        sizes[name] = pages * 4096 // 2**20
    return sizes


def _print_table(figures: dict[str, Any]) -> None:
    for name, figure in figures.items():
        if not isinstance(figure, dict):
            _say(f"{name:<36} {figure}")
            continue
        _say(name)
        for label, value in figure.items():
            _say(f"  {label:<34} {value}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
