"""What results depend on: read from living engines, compared in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineBuild, encode
from serving.lab.fingerprints import (
    LENGTHS,
    Fingerprint,
    decode_fingerprint,
    differences,
    differences_now,
    glimpse_fingerprint,
    in_words,
    is_stale,
    read_fingerprint,
)
from tests.telemetry.conftest import snapshot

POOL = PoolName("default")
BUILD = EngineBuild(processor="A CPU", num_threads=4, footplate_version="0.1.0", torch_version="2.9")
KNOWN = Fingerprint(
    model="tiny",
    device="cpu",
    processor="A CPU",
    num_threads=4,
    dtype="float32",
    backend="own",
    max_model_len=1024,
    kv_blocks=100,
    num_engines=1,
    footplate_version="0.1.0",
    torch_version="2.9",
)


@pytest.fixture
def redis(valkey: str) -> Redis:
    return Redis.from_url(valkey)


def live(redis: Redis, name: str = "one", **changes: Any) -> None:
    engine = snapshot(name, **{"backend": "own", "build": BUILD, **changes})
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    redis.zadd(keys.engines(POOL), {engine.engine_id: 1})


def without_redis() -> Redis:
    return Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.1)


def test_an_engine_tells_what_its_figures_depend_on(redis: Redis) -> None:
    live(redis)
    assert read_fingerprint(redis, POOL) == KNOWN


def test_of_several_engines_names_stand_together_and_the_smallest_counts(redis: Redis) -> None:
    live(redis)
    other = msgspec.structs.replace(BUILD, processor="B CPU", num_threads=2)
    live(redis, "two", max_model_len=512, max_step_tokens=256, build=other)
    found = read_fingerprint(redis, POOL)
    assert (found.processor, found.num_threads, found.num_engines) == ("A CPU, B CPU", 2, 2)
    assert (found.max_model_len, found.max_step_tokens, found.kv_blocks) == (512, 256, 200)


def test_no_engine_leaves_nothing_to_tell(redis: Redis) -> None:
    assert read_fingerprint(redis, POOL) == Fingerprint()
    assert differences_now(msgspec.to_builtins(KNOWN), redis=redis, pool=POOL) == ()


def test_redis_that_is_away_is_told_by_the_reading_and_not_by_the_glimpse() -> None:
    with pytest.raises(Unavailable):
        read_fingerprint(without_redis(), POOL)
    assert glimpse_fingerprint(without_redis(), POOL) == Fingerprint()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model", "big", "model: tiny → big"),
        ("processor", "B CPU", "processor: A CPU → B CPU"),
        ("num_threads", 8, "threads: 4 → 8"),
        ("dtype", "int8", "weights: float32 → int8"),
        ("max_model_len", 2048, "context limit: 1,024 → 2,048"),
        ("kv_blocks", 90, "KV blocks: 100 → 90"),
        ("num_engines", 2, "engines: 1 → 2"),
        ("footplate_version", "0.2.0", "Footplate: 0.1.0 → 0.2.0"),
        ("torch_version", "2.10", "PyTorch: 2.9 → 2.10"),
    ],
)
def test_each_difference_makes_a_result_stale_and_is_said(name: str, value: Any, said: str) -> None:
    new = msgspec.structs.replace(KNOWN, **{name: value})
    assert differences(KNOWN, new) == (said,)
    assert is_stale(KNOWN, new)


def test_the_same_is_not_stale_and_neither_is_what_one_of_both_does_not_know() -> None:
    older = decode_fingerprint({"model": "tiny", "device": "cpu", "num_engines": 1, "of_the_future": 1})
    assert not is_stale(KNOWN, KNOWN)
    assert not is_stale(older, KNOWN)
    assert not is_stale(Fingerprint(), KNOWN)
    assert not is_stale(KNOWN, Fingerprint())


def test_only_the_fields_that_are_named_are_compared() -> None:
    new = msgspec.structs.replace(KNOWN, model="big", kv_blocks=7)
    assert differences(KNOWN, new, of=LENGTHS) == ("model: tiny → big",)


def test_what_was_kept_is_held_against_the_pool_as_it_is(redis: Redis) -> None:
    live(redis, max_model_len=512)
    kept = msgspec.to_builtins(KNOWN)
    assert differences_now(kept, redis=redis, pool=POOL) == ("context limit: 1,024 → 512",)


def test_what_is_known_is_told_by_name_and_the_rest_left_out() -> None:
    assert in_words(Fingerprint()) == ()
    told = dict(in_words(KNOWN))
    assert (told["context limit"], told["Footplate"]) == ("1,024", "0.1.0")
    assert "largest step" not in told
