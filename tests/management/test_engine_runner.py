"""What an engine's command makes of its pool's settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from django.core.management import CommandError

from serving.config.pools import PoolSettings
from serving.contracts.messages import EngineBuild
from serving.engine.kv_cache import KVCacheProblem
from serving.engine.memory import MemoryShortage
from serving.engine.models.config import ModelConfig
from serving.engine.models.quantisation_config import Quantisation
from serving.management import engine_runner
from serving.version import software_version


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


def test_an_engine_tells_its_processor_its_threads_and_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_runner, "processor_name", lambda: "A CPU")
    monkeypatch.setattr(engine_runner.torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(engine_runner.torch.cuda, "get_device_name", lambda device: f"A GPU, {device}")
    versions = {"footplate_version": software_version(), "torch_version": torch.__version__}
    assert engine_runner.build_of("cpu") == EngineBuild(processor="A CPU", num_threads=3, **versions)
    assert engine_runner.build_of("cuda") == EngineBuild(processor="A GPU, cuda", num_threads=0, **versions)


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


@pytest.mark.parametrize(
    ("device", "kv_cache_mb", "num_bytes"),
    [("cpu", 0, 2**30), ("cpu", 64, 64 * 2**20), ("cuda", 0, None), ("cuda", 512, 512 * 2**20)],
)
def test_the_kv_cache_of_an_accelerator_gets_what_is_left_unless_a_pool_says_how_much(
    pool: PoolSettings, monkeypatch: pytest.MonkeyPatch, device: str, kv_cache_mb: int, num_bytes: int | None
) -> None:
    given: dict[str, object] = {}

    def make(*_: object, **options: object) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(config=SimpleNamespace(note=""))

    monkeypatch.setattr(engine_runner, "ModelRunner", make)
    changed = dataclasses.replace(pool, kv_cache_mb=kv_cache_mb, gpu_memory_ratio=0.45, max_step_tokens=2048)
    engine_runner.build_runner(changed, device=device)
    assert given["kv_cache_bytes"] == num_bytes
    assert (given["gpu_memory_ratio"], given["max_step_tokens"]) == (0.45, 2048)
    engine_runner.build_runner(pool, device=device)
    assert given["max_step_tokens"] is None


def test_a_shortage_that_has_its_numbers_is_told_as_it_is(pool: PoolSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, MemoryShortage("a GPU has 80 MiB; lower max_step_tokens"))
    with pytest.raises(CommandError, match=r"^memory is short for pool chat: a GPU has 80 MiB; lower max_step_tokens$"):
        engine_runner.build_runner(pool, device="cuda")


def test_weights_that_an_accelerator_has_no_memory_for_are_one_line(
    pool: PoolSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
    refuse(monkeypatch, torch.OutOfMemoryError(f"{reason}\nSee the documentation"))
    with pytest.raises(CommandError) as raised:
        engine_runner.build_runner(dataclasses.replace(pool, kv_cache_mb=0), device="cuda")
    assert str(raised.value) == (
        f"memory is short for pool chat: weights of 3 MiB and a KV cache are needed ({reason}); "
        "see FOOTPLATE_WEIGHTS and FOOTPLATE_GPU_MEMORY_RATIO"
    )


def test_a_cache_that_is_set_too_small_is_no_shortage(pool: PoolSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, KVCacheProblem("a KV cache of 9 bytes holds 0 blocks"))
    with pytest.raises(CommandError, match=r"^a KV cache of 9 bytes holds 0 blocks$"):
        engine_runner.build_runner(pool)


def test_any_other_fault_keeps_its_traceback(pool: PoolSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine_runner.build_runner(pool)


@pytest.mark.parametrize(
    ("quantisation", "weights", "dtype", "text"),
    [
        (None, "bfloat16", "bfloat16", "bfloat16"),
        (None, "int8", "bfloat16", "int8"),
        (None, "int8", "float32", "float32"),
        (Quantisation(method="awq", kinds=("int4",)), "bfloat16", "bfloat16", "awq int4"),
        (Quantisation(method="awq", kinds=("int4",)), "bfloat16", "float32", "awq int4 in float32"),
        (Quantisation(method="fp8", kinds=("fp8",)), "bfloat16", "bfloat16", "fp8"),
        (Quantisation(method="fp8", kinds=("fp8",)), "int8", "bfloat16", "int8"),
    ],
)
def test_an_engine_says_how_it_keeps_its_weights(
    pool: PoolSettings, quantisation: Quantisation | None, weights: str, dtype: str, text: str
) -> None:
    config = cast(ModelConfig, SimpleNamespace(quantisation=quantisation))
    assert engine_runner.weights_of(dataclasses.replace(pool, weights=weights), config, dtype=dtype) == text
