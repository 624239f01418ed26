"""The runner on a tiny model: errors stay with their chunk, company changes nothing, nothing needless is computed."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.contracts.sampling import SamplingParams
from serving.engine.kv_cache import KVCacheProblem
from serving.engine.model_runner import ModelRunner
from serving.engine.models.decoder import Decoder
from serving.engine.plan import StepPlan
from tests.engine.driving import Driven, Driver, driven, greedy, random_prompts, small_runner

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]


def test_reports_what_the_scheduler_needs(tiny_model: TinyModel) -> None:
    runner = small_runner(tiny_model("llama"), num_blocks=32)
    assert runner.num_blocks >= 32
    assert (runner.block_size, runner.max_model_len, runner.eos_token_ids) == (16, 1024, {2})


def test_an_empty_plan_is_an_empty_result(tiny_model: TinyModel) -> None:
    result = small_runner(tiny_model("llama")).run(StepPlan(0, (), 0, 0))
    assert (len(result.token_ids), result.errors) == (0, {})


def test_only_chunks_that_sample_have_tokens(tiny_model: TinyModel) -> None:
    driver = Driver(small_runner(tiny_model("llama")))
    short, long = driven(random_prompts([10, 50], vocab_size=301))
    driver.step([short, long], max_chunk=20)
    assert (len(short.generated), len(long.generated)) == (1, 0)
    driver.step([short, long], max_chunk=20)
    driver.step([short, long], max_chunk=20)
    assert (len(short.generated), len(long.generated)) == (3, 1)


def test_rows_that_do_not_sample_cost_no_output_layer(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    compute = Decoder.logits

    def counting(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return compute(decoder, hidden)

    monkeypatch.setattr(Decoder, "logits", counting)
    driver = Driver(small_runner(tiny_model("llama")))
    sequences = driven(random_prompts([30, 30, 5], vocab_size=301))
    driver.step(sequences[:2], max_chunk=16)
    assert rows == []
    driver.step(sequences, max_chunk=16)
    assert rows == [3]


def test_phases_are_timed_by_the_clock_given(tiny_model: TinyModel) -> None:
    ticks = itertools.count()
    runner = small_runner(tiny_model("llama"), clock=lambda: float(next(ticks)))
    sequence = driven([[5, 6, 7]])[0]
    driver = Driver(runner)
    plan = StepPlan(0, (driver.planned(sequence, 10),), 3, 0)
    times = runner.run(plan).times
    assert (times.prepare_seconds, times.forward_seconds, times.sample_seconds) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("family", ["llama-3", "qwen3"])
def test_bf16_text_does_not_depend_on_company_chunks_or_preemption(
    tiny_model: TinyModel, family: str, backend: str, kernels_folder: Path
) -> None:
    options = {"dtype": "bfloat16", "num_blocks": 300, "backend": backend, "kernels_folder": kernels_folder}
    driver = Driver(small_runner(tiny_model(family), **options))  # type: ignore[arg-type]
    prompts = random_prompts([1, 3, 16, 17, 100, 255, 256, 270, 500], vocab_size=301)

    def fresh() -> list[Driven]:
        return [
            Driven(f"r{index}", prompt, SamplingParams(max_tokens=20, seed=index, ignore_eos=True), choice=index % 2)
            for index, prompt in enumerate(prompts)
        ]

    together = driver.finish(fresh())
    assert [driver.finish([sequence])[0] for sequence in fresh()] == together
    for size in (1, 13, 64):
        assert driver.finish(fresh(), max_chunk=size) == together
    preempted = fresh()
    for step in range(12):
        driver.step(preempted, max_chunk=90)
        driver.preempt(preempted[step % len(preempted)])
    assert driver.finish(preempted) == together


def test_a_token_outside_the_vocabulary_fails_its_chunk_alone(tiny_model: TinyModel) -> None:
    driver = Driver(small_runner(tiny_model("llama")))
    prompts = random_prompts([5, 9], vocab_size=301)
    expected = driver.finish(driven(prompts, greedy(8)))
    for unknown in (301, -1, 2**40):
        bad, *good = driven([[4, unknown, 6], *prompts], greedy(8))
        driver.step([bad, *good])
        assert bad.error == f"the vocabulary has no token {unknown}"
        assert bad.generated == []
        assert driver.finish(good) == expected
        driver.preempt(bad)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_a_sequence_that_is_not_finite_fails_alone(
    tmp_path: Path, tiny_model: TinyModel, backend: str, kernels_folder: Path
) -> None:
    """One token's embedding is broken: whoever reads it fails in that very step, sampling or not; whoever later gets
    its blocks does not."""
    folder = Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][250] = math.nan
    save_file(weights, folder / "model.safetensors")
    dtype = "float32" if backend == "torch" else "bfloat16"
    driver = Driver(small_runner(folder, num_blocks=32, dtype=dtype, backend=backend, kernels_folder=kernels_folder))
    prompts = [[token for token in prompt if token != 250] for prompt in random_prompts([5, 40], vocab_size=301)]
    expected = driver.finish(driven(prompts, greedy(8)))
    assert all(250 not in tokens for tokens in expected)
    for _ in range(8):
        bad, *good = driven([[4, 250, 6] * 7, *prompts], greedy(8))
        driver.step([bad, *good], max_chunk=16)
        assert "not finite" in bad.error
        assert bad.generated == []
        driver.preempt(bad)
        assert driver.finish(good) == expected


def test_a_cache_too_small_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(KVCacheProblem, match="at least 4 blocks"):
        ModelRunner(tiny_model("llama"), kv_cache_bytes=100)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that must be missing")
def test_a_device_that_is_not_there_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ValueError, match="device cuda was asked for"):
        small_runner(tiny_model("llama"), device="cuda")
