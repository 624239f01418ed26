"""What an engine's command makes of its pool's settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError

from serving.config.pools import PoolSettings
from serving.engine.kv_cache import KVCacheProblem
from serving.management import engine_runner


@pytest.mark.parametrize(
    ("num_cores", "allowed_threads", "num_engines", "num_threads"),
    [(8, 8, 1, 8), (8, 8, 2, 4), (8, 8, 3, 2), (2, 2, 2, 1), (1, 1, 3, 1), (8, 4, 1, 4), (8, 4, 2, 2)],
)
def test_engines_beside_each_other_divide_the_cores(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, allowed_threads: int, num_engines: int, num_threads: int
) -> None:
    monkeypatch.setattr(engine_runner, "usable_cores", lambda: num_cores)
    monkeypatch.setattr(engine_runner.torch, "get_num_threads", lambda: allowed_threads)  # as OMP_NUM_THREADS says
    assert engine_runner.part_of_cores(num_engines) == num_threads


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PoolSettings:
    """A pool whose weights take 3 MiB, where 7 MiB are to be had."""
    (tmp_path / "model-1.safetensors").write_bytes(bytes(2 << 20))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(1 << 20))
    config = SimpleNamespace(vocab_size=8, eos_token_ids=frozenset({0}))
    monkeypatch.setattr(engine_runner, "read_config", lambda folder: config)
    monkeypatch.setattr(engine_runner, "load_masks", lambda folder, **_: None)
    monkeypatch.setattr(engine_runner, "available_bytes", lambda: 7 << 20)
    return PoolSettings(name="chat", model=tmp_path, kv_cache_mb=4096)


def refuse(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def make(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(engine_runner, "ModelRunner", make)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("no memory for 67108864 bytes"), "no memory for 67108864 bytes"),
        (OSError(12, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes\nframe #0"), "DefaultCPUAllocator: can't"),
        (KVCacheProblem("no memory for a KV cache of 4294967296 bytes"), "no memory for a KV cache of 4294967296"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line_with_the_numbers(
    pool: PoolSettings, monkeypatch: pytest.MonkeyPatch, problem: Exception, reason: str
) -> None:
    refuse(monkeypatch, problem)
    with pytest.raises(CommandError) as raised:
        engine_runner.build_runner(pool)
    line = str(raised.value)
    assert line.startswith(
        "memory is short for pool chat: weights of 3 MiB and a KV cache of 4,096 MiB are needed, and 7 MiB were "
        f"available ({reason}"
    )
    assert line.endswith("); see FOOTPLATE_KV_CACHE_MB")
    assert "\n" not in line


def test_of_an_accelerator_the_memory_of_the_machine_tells_nothing(
    pool: PoolSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, KVCacheProblem("no memory for a KV cache of 4294967296 bytes on cuda (CUDA out of memory.)"))
    with pytest.raises(CommandError, match=r"of 4,096 MiB are needed \(no memory .* \(CUDA out of memory.\)\)"):
        engine_runner.build_runner(pool, device="cuda")


def test_a_cache_that_is_set_too_small_is_no_shortage(pool: PoolSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, KVCacheProblem("a KV cache of 9 bytes holds 0 blocks"))
    with pytest.raises(CommandError, match=r"^a KV cache of 9 bytes holds 0 blocks$"):
        engine_runner.build_runner(pool)


def test_any_other_fault_keeps_its_traceback(pool: PoolSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine_runner.build_runner(pool)
