"""Steps that are recorded compute what the same steps compute as they come, bit for bit, and padding leaves no trace.

Here nothing is a graph: to repeat a step is to compute it again, from the same tensors in the same places.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.contracts.sampling import SamplingParams
from serving.engine.attention.base import AttentionChunk
from serving.engine.attention.torch_backend import TorchAttention
from serving.engine.graphs import PlainRecorder, Recorder, Work, graph_sizes
from serving.engine.model_runner import ModelRunner
from serving.engine.models import torch_model
from serving.engine.models.gpu_model import GpuModel
from tests.engine.ahead import Played, Player
from tests.engine.driving import Driver, driven, greedy, random_prompts, small_runner

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]


@dataclasses.dataclass(eq=False)
class _Static:
    """A batch that stays the same object; `chunks` are those of the step."""

    max_rows: int
    max_blocks: int
    chunks: Sequence[AttentionChunk] = ()


@dataclasses.dataclass(frozen=True)
class _Rows:
    static: _Static
    num_rows: int


class _StaticTorch(TorchAttention):
    """Owns nothing more than `TorchAttention`; what it is filled with is looked up when a step is computed."""

    def static_batch(self, max_rows: int, max_blocks: int) -> _Static:
        return _Static(max_rows, max_blocks)

    def first_rows(self, static: _Static, num_rows: int) -> _Rows:
        assert num_rows <= static.max_rows
        return _Rows(static, num_rows)

    def fill(self, static: _Static, chunks: Sequence[AttentionChunk]) -> None:
        assert all(len(chunk.block_table) <= static.max_blocks for chunk in chunks)
        static.chunks = list(chunks)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: Any
    ) -> torch.Tensor:
        if not isinstance(batch, _Rows):
            return super().attend(layer, queries, keys, values, batch=batch)
        chunks = batch.static.chunks
        assert len(queries) == batch.num_rows
        # Padding comes to numbers that would be seen wherever they went.
        attended = torch.full((batch.num_rows, queries.shape[1] * queries.shape[2]), torch.nan, dtype=queries.dtype)
        if chunks:
            real = slice(0, len(chunks))
            attended[real] = super().attend(layer, queries[real], keys[real], values[real], batch=self.prepare(chunks))
        return attended


class _Counting(PlainRecorder):
    """Owns how often each recording was replayed, in the order in which they were recorded."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def record(self, work: Work) -> Work:
        repeat, place = super().record(work), len(self.counts)
        self.counts.append(0)

        def counted() -> None:
            self.counts[place] += 1
            repeat()

        return counted


@pytest.fixture
def static_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend `torch`, as one that GPU models can record."""

    def make(name: str, cache: Any, *, num_heads: int, layers: Any) -> TorchAttention:
        return _StaticTorch(cache, num_heads=num_heads, layers=layers)

    monkeypatch.setattr(torch_model, "make_attention", make)


def _recording(runner: ModelRunner, recorder: Recorder, *, max_rows: int = 16) -> GpuModel:
    """Make `runner` compute with recordings."""
    model = GpuModel(
        runner._model,  # type: ignore[arg-type]
        recorder=recorder,
        max_rows=max_rows,
        max_model_len=runner.max_model_len,
    )
    model.record_steps()
    runner._model = model
    return model


def _runner(folder: Path, **options: Any) -> ModelRunner:
    return small_runner(folder, num_blocks=300, **{"dtype": "bfloat16", **options})


def _cache(runner: ModelRunner) -> list[torch.Tensor]:
    model = runner._model
    cache = (model._model if isinstance(model, GpuModel) else model)._cache  # type: ignore[attr-defined]
    return [part.clone() for layer in range(cache.num_layers) for part in cache.layer(layer)]


def test_sizes_are_close_enough_to_waste_little() -> None:
    assert graph_sizes(0) == []
    assert graph_sizes(1) == [1]
    assert graph_sizes(7) == [1, 2, 4]
    assert graph_sizes(30) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(256) == [1, 2, 4, *range(8, 257, 8)]


def _sequences(count: int) -> list[Played]:
    mixture: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0, "num_logprobs": 4},
        {"temperature": 1.2, "top_p": 0.9, "num_logprobs": 0},
        {"repetition_penalty": 1.2, "num_logprobs": 2},
        {"temperature": 0.0, "num_prompt_logprobs": 1},
        {"max_tokens": 0, "embeds": True},
    )
    prompts = random_prompts([1 + 13 * index % 60 for index in range(count)], vocab_size=301)
    return [
        Played(
            f"request-{index}",
            prompt,
            SamplingParams(**{"max_tokens": 20, "seed": index, "ignore_eos": True, **mixture[index % len(mixture)]}),
        )
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("family", ["llama-3", "qwen3"])
@pytest.mark.parametrize("ahead", [False, True])
def test_recorded_steps_compute_what_the_same_steps_compute_as_they_come(
    tiny_model: TinyModel, static_attention: None, family: str, ahead: bool
) -> None:
    """To the last bit of the log probabilities; some steps are larger than what was recorded."""
    expected = Player(_runner(tiny_model(family)), ahead=False).play(_sequences(22))
    runner, recorder = _runner(tiny_model(family)), _Counting()
    model = _recording(runner, recorder)
    assert model.recorded_sizes == [1, 2, 4, 8, 16]
    assert Player(runner, ahead=ahead, seed=1).play(_sequences(22)) == expected
    assert sum(recorder.counts) > 5
    player = Player(runner, ahead=ahead, seed=2)
    for one in _sequences(3):
        assert player.play([one])[0] in expected
    assert recorder.counts[-1] > 5


def test_padding_changes_nothing_in_the_cache(tiny_model: TinyModel, static_attention: None) -> None:
    """Steps of 7, 5 and 3 sequences, all padded: what the ones before left in the padded rows is not computed again."""
    prompts = random_prompts([4, 9, 20, 1, 16, 17, 33], vocab_size=301)
    caches = []
    for records in (False, True):
        runner, recorder = _runner(tiny_model("llama")), _Counting()
        if records:
            _recording(runner, recorder, max_rows=8)
        driver = Driver(runner)
        sequences = driven(prompts, greedy(50))
        driver.step(sequences)
        for count in (7, 5, 3, 7):
            driver.step(sequences[:count])
        caches.append((_cache(runner), [one.generated for one in sequences]))
    (plain, expected), (recorded, found) = caches
    assert recorder.counts == [3, 1, 0, 0]
    assert found == expected
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(recorded, plain, strict=True))


def test_what_is_no_decode_is_computed_as_it_comes(tiny_model: TinyModel, static_attention: None) -> None:
    """Prompts of one token too: attention may round them otherwise."""
    runner, recorder = _runner(tiny_model("llama")), _Counting()
    _recording(runner, recorder)
    driver = Driver(runner)
    one, long = driven([[7], random_prompts([40], vocab_size=301)[0]])
    driver.step([one])
    driver.step([one, long], max_chunk=30)
    driver.step([one, long], max_chunk=30)
    assert recorder.counts == [0] * 5
    driver.step([one, long])
    assert recorder.counts == [0, 0, 0, 1, 0]


def test_a_row_that_is_not_finite_is_told_of_and_padding_is_not(tiny_model: TinyModel, static_attention: None) -> None:
    """Padding is not a number here, in every step."""
    runner, recorder = _runner(tiny_model("llama")), _Counting()
    _recording(runner, recorder, max_rows=4)
    driver = Driver(runner)
    sequences = driven(random_prompts([4, 9, 20], vocab_size=301), greedy(4))
    driver.step(sequences)
    model = runner._model._model  # type: ignore[attr-defined]
    weights = model._decoder._weights
    weights.embedding[sequences[1].generated[-1]] = torch.nan
    driver.step(sequences)
    assert recorder.counts == [1, 0, 0]
    assert ["not finite" in one.error for one in sequences] == [
        one.tokens[one.computed - 1] == sequences[1].tokens[sequences[1].computed - 1] for one in sequences
    ]
    assert "not finite" in sequences[1].error


class _Failing(PlainRecorder):
    """Owns how often it was asked, and fails as it is told to."""

    def __init__(self, errors: Sequence[Exception | None]) -> None:
        self._errors = iter(errors)

    def record(self, work: Work) -> Work:
        error = next(self._errors)
        if error is not None:
            raise error
        return super().record(work)


def test_a_size_for_which_memory_is_short_is_padded_to_no_more(
    tiny_model: TinyModel, static_attention: None, caplog: pytest.LogCaptureFixture
) -> None:
    runner = _runner(tiny_model("llama"))
    with caplog.at_level(logging.WARNING):
        model = _recording(runner, _Failing([torch.OutOfMemoryError("none"), None, None, None, None]))
    assert model.recorded_sizes == [1, 2, 4, 8]
    assert "decode steps of 16 sequences are not recorded: the device's memory is short" in caplog.text


def test_a_model_is_computed_as_it_comes_where_not_even_its_inputs_find_memory(
    tiny_model: TinyModel, static_attention: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("none")

    monkeypatch.setattr(_StaticTorch, "static_batch", fail)
    runner = _runner(tiny_model("llama"))
    with caplog.at_level(logging.WARNING):
        model = _recording(runner, PlainRecorder())
    assert model.recorded_sizes == []
    assert "decode steps are not recorded, and take longer: the device's memory is short" in caplog.text
    (sequence,) = driven([[5, 6, 7]], greedy(3))
    assert len(Driver(runner).finish([sequence])[0]) == 3


def test_a_model_that_cannot_be_recorded_is_computed_as_it_comes(
    tiny_model: TinyModel, static_attention: None, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = random_prompts([4, 9], vocab_size=301)
    expected = Driver(_runner(tiny_model("llama"))).finish(driven(prompts, greedy(6)))
    runner = _runner(tiny_model("llama"))
    with caplog.at_level(logging.WARNING):
        model = _recording(runner, _Failing([None, None, RuntimeError("capture is not\npermitted")]))
    assert model.recorded_sizes == []
    assert "decode steps are not recorded, and take longer: capture is not" in caplog.text
    assert Driver(runner).finish(driven(prompts, greedy(6))) == expected


def test_a_new_cache_makes_it_forget_what_was_recorded(tiny_model: TinyModel, static_attention: None) -> None:
    runner, recorder = _runner(tiny_model("llama")), _Counting()
    model = _recording(runner, recorder)
    model.resize(100)
    assert (model.num_blocks, model.recorded_sizes) == (100, [])
    model.record_steps()
    assert model.recorded_sizes == [1, 2, 4, 8, 16]
