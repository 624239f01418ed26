"""A runner whose device is taken for an accelerator: it measures its largest steps, and sizes its KV cache by them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.kv_cache import KVCache, KVCacheProblem, block_bytes
from serving.engine.memory import MemoryShortage
from serving.engine.model_runner import ModelRunner
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.weights import DecoderWeights
from tests.engine.driving import Driver, driven, random_prompts

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]
MIB = 2**20


class Memory:
    """An accelerator's memory as a test says: each step takes `step_bytes` beside the `held` ones of weights, and
    others have `others_bytes`."""

    name = "Test GPU (cuda:0)"

    def __init__(
        self, *, total_bytes: int, held: int = 10 * MIB, step_bytes: int = 5 * MIB, others_bytes: int = 0
    ) -> None:
        self.total_bytes, self.held, self.step_bytes, self.others_bytes = total_bytes, held, step_bytes, others_bytes
        self.asked: list[str] = []

    def used_bytes(self) -> int:
        self.asked.append("used")
        return self.held + self.others_bytes

    def kept_bytes(self) -> int:
        return self.held

    def held_bytes(self) -> int:
        return self.held

    def peak_bytes(self) -> int:
        self.asked.append("peak")
        return self.held + self.step_bytes

    def start_peak(self) -> None:
        self.asked.append("start")

    def release(self) -> None:
        self.asked.append("release")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self.asked.append("turn")
        yield
        self.asked.append("end of turn")


def runner_on(memory: Memory, folder: Path, *, looks_ahead: bool = False, **options: object) -> ModelRunner:
    given: dict[str, object] = {"kv_cache_bytes": None, "max_step_tokens": 256, "gpu_memory_ratio": 0.5, **options}
    return ModelRunner(folder, dtype="float32", memory=memory, looks_ahead=looks_ahead, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_kv_cache_takes_what_weights_and_steps_leave(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture, looks_ahead: bool
) -> None:
    folder = tiny_model("llama")
    size = block_bytes(read_config(folder), torch.float32)
    memory = Memory(total_bytes=100 * MIB)
    with caplog.at_level(logging.INFO, logger="serving.engine.sizing"):
        runner = runner_on(memory, folder, looks_ahead=looks_ahead)
    # Half of it, less weights (of which the cache that was there meanwhile is no part), step, and 4 % for graphs.
    left = 50 * MIB - (10 * MIB - 4 * size) - 5 * MIB - 4 * MIB
    assert runner.num_blocks == left // size
    assert memory.asked == ["turn", "release", "used", "start", "peak", "release", "used", "end of turn"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        "Test GPU (cuda:0) has 100 MiB, of which 0 are in use by others; gpu_memory_ratio 0.5 leaves"
    )
    assert told.endswith(f"{runner.num_blocks * 16:,} tokens")
    prompts = random_prompts([40, 3, 100], vocab_size=runner.config.vocab_size)
    plain = ModelRunner(folder, kv_cache_bytes=runner.num_blocks * size, dtype="float32")
    assert Driver(runner).finish(driven(prompts)) == Driver(plain).finish(driven(prompts))


def test_weights_are_taken_in_the_engines_turn(tiny_model: TinyModel) -> None:
    """An engine that measured while another one loads would take that one's weights for what its own steps leave."""
    memory = Memory(total_bytes=100 * MIB)

    def load(folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
        memory.asked.append("load")
        return load_weights(folder, config, dtype=dtype, device=device)

    runner_on(memory, tiny_model("llama"), load=load)
    assert memory.asked[:3] == ["turn", "load", "release"]


def test_two_engines_share_a_device(tiny_model: TinyModel) -> None:
    first = runner_on(Memory(total_bytes=100 * MIB), tiny_model("llama"), gpu_memory_ratio=0.45)
    second = runner_on(Memory(total_bytes=100 * MIB, others_bytes=45 * MIB), tiny_model("llama"), gpu_memory_ratio=0.45)
    assert first.num_blocks == second.num_blocks


def test_kv_cache_that_is_set_is_as_large_as_that(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    size = block_bytes(read_config(folder), torch.float32)
    assert runner_on(Memory(total_bytes=100 * MIB), folder, kv_cache_bytes=33 * size).num_blocks == 33
    with pytest.raises(MemoryShortage, match="kv_cache_mb asks for 40"):
        runner_on(Memory(total_bytes=100 * MIB), folder, kv_cache_bytes=40 * MIB)


def test_device_that_is_too_small_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(MemoryShortage, match="too many are used, none is left for the KV cache"):
        runner_on(Memory(total_bytes=20 * MIB), tiny_model("llama"))


def test_step_that_does_not_fit_is_refused(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("serving.engine.models.torch_model.TorchModel.forward", fail)
    with pytest.raises(MemoryShortage, match="a step of 256 tokens does not fit: Test GPU"):
        runner_on(Memory(total_bytes=100 * MIB), tiny_model("llama"))


def test_engine_never_plans_a_step_that_there_is_no_memory_for(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    assert ModelRunner(folder, kv_cache_bytes=MIB, dtype="float32").max_step_tokens is None
    runner = runner_on(Memory(total_bytes=100 * MIB), folder, max_step_tokens=64)
    assert runner.max_step_tokens == 64
    engine = Engine(runner, tunables=Tunables(max_batch_tokens=4096))
    assert engine.tunables.max_batch_tokens == 64
    assert engine.counts().max_step_tokens == 64


def test_cpu_needs_to_be_told_how_much(tiny_model: TinyModel) -> None:
    with pytest.raises(ValueError, match="kv_cache_bytes must be given on a CPU"):
        ModelRunner(tiny_model("llama"), kv_cache_bytes=None, dtype="float32")


def test_cache_of_another_size_holds_nothing_of_before(tiny_model: TinyModel) -> None:
    config = read_config(tiny_model("llama"))
    cache = KVCache(config, num_blocks=4, dtype=torch.float32, device=torch.device("cpu"))
    keys = torch.ones(1, config.num_kv_heads, config.head_dim)
    cache.write(0, torch.tensor([3]), keys, keys)
    cache.resize(6)
    assert cache.num_blocks == 6
    for layer in range(config.num_layers):
        for part in cache.layer(layer):
            assert part.shape == (config.num_kv_heads, 6, 16 * config.head_dim)
            assert not part.any()
    with pytest.raises(KVCacheProblem, match="no memory for a KV cache of"):
        cache.resize(2**50)
