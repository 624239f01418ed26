"""A model computed by the kernels is the model that PyTorch computes, and no row knows its company."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.engine.attention.base import AttentionChunk
from serving.engine.kernels.library import Library
from serving.engine.kernels.quantised import WeightFormat
from serving.engine.models import cpu_model
from serving.engine.models.config import read_config
from serving.engine.models.cpu_model import CpuModel
from serving.engine.models.loader import DecoderWeights, load_weights
from serving.engine.models.model import Batch, Model
from serving.engine.models.quantised_weights import in_format
from serving.engine.models.torch_model import TorchModel
from serving.engine.models.weights import DenseWeights
from tests.engine.tiny_models import KERNEL_FAMILIES, SHAPES

pytestmark = pytest.mark.heavy

_NUM_BLOCKS = 200
_CPU = torch.device("cpu")


@dataclasses.dataclass
class _Context:
    """A sequence as this test drives it: how much of it is computed, and where."""

    token_ids: list[int]
    table: list[int]
    computed: int = 0


def _contexts(lengths: Sequence[int], vocab_size: int) -> list[_Context]:
    """Random contexts over blocks in random order."""
    rng = np.random.default_rng(1)
    free = rng.permutation(_NUM_BLOCKS).tolist()
    contexts = []
    for length in lengths:
        table = [free.pop() for _ in range(length // 16 + 1)]
        contexts.append(_Context(rng.integers(3, vocab_size, length).tolist(), table))
    return contexts


def _step(model: Model, parts: Sequence[tuple[_Context, int]]) -> torch.Tensor:
    """Logits of every row of a step that computes so many tokens more of each context."""
    token_ids: list[int] = []
    positions: list[int] = []
    chunks = []
    for context, count in parts:
        begin, end = context.computed, context.computed + count
        chunks.append(AttentionChunk(len(token_ids), count, begin, context.table))
        token_ids += context.token_ids[begin:end]
        positions += range(begin, end)
        context.computed = end
    rows = np.arange(len(token_ids))
    batch = Batch(np.asarray(token_ids), np.asarray(positions), chunks, rows)
    computed = model.forward(model.prepare(batch))
    assert not len(computed.unsound_rows)
    return computed.logits.clone()


def _all_logits(model: Model, contexts: list[_Context], *, chunk: int) -> list[torch.Tensor]:
    """Every position's logits, `chunk` tokens of every context in each step."""
    pieces: list[list[torch.Tensor]] = [[] for _ in contexts]
    while any(context.computed < len(context.token_ids) for context in contexts):
        active = [index for index, context in enumerate(contexts) if context.computed < len(context.token_ids)]
        counts = [min(chunk, len(contexts[index].token_ids) - contexts[index].computed) for index in active]
        logits = _step(model, [(contexts[index], count) for index, count in zip(active, counts, strict=True)])
        for index, piece in zip(active, logits.split(counts), strict=True):
            pieces[index].append(piece)
    return [torch.cat(piece) for piece in pieces]


class _Models:
    """One model's weights in the kernels, in PyTorch's bf16, and in fp32 as the measure of both."""

    def __init__(self, folder: Path, kernels: Library, weight_format: WeightFormat = "bfloat16") -> None:
        self.config = read_config(folder)
        weights = load_weights(folder, self.config, dtype=torch.bfloat16, device=_CPU)
        wide = in_format(_wide(weights), weight_format)
        self.ours = CpuModel(
            self.config, weights, kernels=kernels, num_blocks=_NUM_BLOCKS, num_threads=2, weight_format=weight_format
        )
        self.pytorch = self._torch_model(in_format(weights, weight_format), torch.bfloat16)
        self.exact = self._torch_model(wide, torch.float32)

    def _torch_model(self, weights: DecoderWeights, dtype: torch.dtype) -> TorchModel:
        return TorchModel(self.config, weights, num_blocks=_NUM_BLOCKS, dtype=dtype, device=_CPU)

    def contexts(self, *lengths: int) -> list[_Context]:
        return _contexts(lengths, self.config.vocab_size)


def _wide(weights: Any) -> Any:
    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.float()
        if isinstance(value, tuple):
            return tuple(map(widened, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: widened(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)
        return value

    return widened(weights)


def _errors(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> torch.Tensor:
    """Median and ninth decile of all rows' errors, relative to the spread of a row's logits."""
    errors = [
        (one - other).norm(dim=-1) / (other - other.mean(dim=-1, keepdim=True)).norm(dim=-1)
        for one, other in zip(found, exact, strict=True)
    ]
    return torch.cat(errors).quantile(torch.tensor([0.5, 0.9]))


def _assert_as_exact_as_pytorch(models: _Models, *lengths: int, chunk: int, times: float = 1.5) -> None:
    """The kernels' logits are about as near to exact ones as PyTorch's in bf16: a wrong term is further off by far."""
    exact = _all_logits(models.exact, models.contexts(*lengths), chunk=256)
    ours = _errors(_all_logits(models.ours, models.contexts(*lengths), chunk=chunk), exact)
    pytorch = _errors(_all_logits(models.pytorch, models.contexts(*lengths), chunk=256), exact)
    assert (ours <= times * pytorch + 1e-4).all(), (ours, pytorch)
    assert pytorch.max() < 0.2


@pytest.mark.parametrize("family", [*KERNEL_FAMILIES, *SHAPES])
def test_every_family_and_shape_equals_pytorch(
    kernels: Library, family: str, tiny_model: Callable[[str], Path]
) -> None:
    """Prefill in odd chunks beside decodes, over more positions than one span of attention."""
    _assert_as_exact_as_pytorch(_Models(tiny_model(family), kernels), 1, 15, 40, 530, chunk=37)


@pytest.mark.parametrize(("weight_format", "times"), [("int8", 1.5), ("int4", 1.5), ("w8a8", 4)])
def test_quantised_weights_mean_what_they_stand_for(
    kernels: Library, weight_format: WeightFormat, times: float, tiny_model: Callable[[str], Path]
) -> None:
    """w8a8 rounds activations to bytes, which PyTorch does not."""
    models = _Models(tiny_model("llama-biased"), kernels, weight_format)
    _assert_as_exact_as_pytorch(models, 9, 60, chunk=20, times=times)


@pytest.mark.parametrize(
    ("family", "weight_format"),
    [
        *(("qwen3", weight_format) for weight_format in ("bfloat16", "int8", "int4", "w8a8")),
        *((family, "bfloat16") for family in ("mistral-windowed", "qwen2-windowed", "phi4-mini")),
    ],
)
def test_logits_are_the_same_bit_for_bit_alone_together_and_in_chunks(
    kernels: Library, family: str, weight_format: WeightFormat, tiny_model: Callable[[str], Path]
) -> None:
    models = _Models(tiny_model(family), kernels, weight_format)
    ours = models.ours
    lengths = [1, 16, 17, 100, 255, 256, 257, 600]
    together = _all_logits(ours, models.contexts(*lengths), chunk=1000)
    for chunk in (1, 7, 64):
        for one, other in zip(_all_logits(ours, models.contexts(*lengths), chunk=chunk), together, strict=True):
            assert torch.equal(one, other), f"chunks of {chunk} change a row"
    for index, context in enumerate(models.contexts(*lengths)):
        assert torch.equal(_all_logits(ours, [context], chunk=1000)[0], together[index])


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_number_of_threads_changes_no_bit_and_none_stays(
    kernels: Library, tiny_model: Callable[[str], Path]
) -> None:
    """Seven are more than most test machines have cores: some come late to a step, or when it is done."""
    folder = tiny_model("llama")
    config = read_config(folder)
    weights = load_weights(folder, config, dtype=torch.bfloat16, device=_CPU)
    results = []
    for num_threads in (1, 2, 3, 7):
        before = _num_threads()
        model = CpuModel(config, weights, kernels=kernels, num_blocks=_NUM_BLOCKS, num_threads=num_threads)
        assert _num_threads() == before + num_threads - 1
        contexts = [_contexts([3, 40, 300], config.vocab_size) for _ in range(5)]
        results += [torch.cat(_all_logits(model, each, chunk=25)) for each in contexts]
        del model
        assert _num_threads() == before
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_step_without_logits_stores_what_it_computes(kernels: Library, tiny_model: Callable[[str], Path]) -> None:
    ours = _Models(tiny_model("llama"), kernels).ours
    token_ids, table = np.arange(5, 25), [3, 1]

    def last_logits(begin: int) -> torch.Tensor:
        """Of all tokens, in two steps with the cut at `begin`, of which the first asks for none."""
        for start, end in ((0, begin), (begin, 20)):
            chunk, rows = AttentionChunk(0, end - start, start, table), [end - start - 1] if end == 20 else []
            batch = Batch(token_ids[start:end], np.arange(start, end), [chunk], np.asarray(rows, dtype=np.int64))
            computed = ours.forward(ours.prepare(batch))
            assert len(computed.logits) == len(rows)
        return computed.logits.clone()

    assert torch.equal(last_logits(7), last_logits(19))


@pytest.mark.parametrize("family", ["odd-sizes", "llama-biased"])
def test_the_hidden_states_of_the_wanted_rows_are_those_that_enter_the_output_layer(
    kernels: Library, family: str, tiny_model: Callable[[str], Path]
) -> None:
    """Also where a row's size is no multiple of a vector."""
    models = _Models(tiny_model(family), kernels)
    (context,) = models.contexts(50)

    def hidden_of(model: Model, rows: Sequence[int]) -> torch.Tensor:
        chunk = AttentionChunk(0, 50, 0, context.table)
        batch = Batch(np.asarray(context.token_ids), np.arange(50), [chunk], np.asarray([49]), np.asarray(rows))
        computed = model.forward(model.prepare(batch))
        assert len(computed.logits) == 1
        return computed.hidden.clone()

    every = hidden_of(models.ours, range(50))
    exact = hidden_of(models.exact, range(50))
    assert every.shape == exact.shape == (50, models.config.hidden_size)
    assert every.dtype == exact.dtype == torch.float32
    assert ((every - exact).norm(dim=-1) / exact.norm(dim=-1)).max() < 0.1
    assert torch.equal(hidden_of(models.ours, [49, 3, 3, 17]), every[[49, 3, 3, 17]])


def test_a_row_that_is_not_finite_leaves_nothing_behind(kernels: Library, tiny_model: Callable[[str], Path]) -> None:
    """Not even in the padding of a size that is no multiple of a vector."""
    models = _Models(tiny_model("odd-sizes"), kernels)
    expected = torch.cat(_all_logits(models.ours, models.contexts(5), chunk=8))
    config = models.config
    weights = load_weights(tiny_model("odd-sizes"), config, dtype=torch.bfloat16, device=_CPU)
    weights.embedding[250] = torch.nan
    ours = CpuModel(config, weights, kernels=kernels, num_blocks=_NUM_BLOCKS, num_threads=2)
    strange = Batch(np.asarray([250]), np.asarray([0]), [AttentionChunk(0, 1, 0, [0])], np.asarray([0]))
    assert ours.forward(ours.prepare(strange)).unsound_rows.tolist() == [0]
    assert torch.equal(torch.cat(_all_logits(ours, models.contexts(5), chunk=8)), expected)


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8", "int4", "w8a8"])
@pytest.mark.parametrize("part", ["qkv", "gate_up"])
def test_a_weight_that_is_not_finite_shows(
    kernels: Library, weight_format: WeightFormat, part: str, tiny_model: Callable[[str], Path]
) -> None:
    folder = tiny_model("llama")
    config = read_config(folder)
    weights = load_weights(folder, config, dtype=torch.bfloat16, device=_CPU)
    layer = weights.layers[1]
    assert isinstance(layer.feed_forward, DenseWeights)
    matrix = layer.qkv if part == "qkv" else layer.feed_forward.gate_up
    matrix.plain()[0, 0] = torch.nan
    ours = CpuModel(
        config, weights, kernels=kernels, num_blocks=_NUM_BLOCKS, num_threads=2, weight_format=weight_format
    )
    batch = Batch(np.asarray([5]), np.asarray([0]), [AttentionChunk(0, 1, 0, [0])], np.asarray([0]))
    assert ours.forward(ours.prepare(batch)).unsound_rows.tolist() == [0]


def test_a_step_after_one_that_found_no_memory_is_sound(
    kernels: Library, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = _Models(tiny_model("llama"), kernels)
    expected = torch.cat(_all_logits(models.ours, models.contexts(300), chunk=300))
    fresh = _Models(tiny_model("llama"), kernels)
    _all_logits(fresh.ours, fresh.contexts(3), chunk=3)

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as refusing:
        refusing.setattr(cpu_model, "zeros_in_large_pages", refuse)
        with pytest.raises(MemoryError, match="no memory"):
            _all_logits(fresh.ours, fresh.contexts(300), chunk=300)
    assert torch.equal(torch.cat(_all_logits(fresh.ours, fresh.contexts(300), chunk=300)), expected)


_NO_THREADS = r"""
#include <errno.h>
#include <pthread.h>
#include <unistd.h>
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *with) {
    if (write(1, "refused\n", 8) < 0) return EIO;
    return EAGAIN;
}
"""


def test_fewer_threads_than_were_asked_for_do(tmp_path: Path) -> None:
    """In a process of its own, in which the system gives none."""
    shim = tmp_path / "no_threads.so"
    command = ["g++", "-x", "c", "-shared", "-fPIC", "-", "-o", str(shim)]
    subprocess.run(command, input=_NO_THREADS.encode(), check=True)
    test = f"{__file__}::test_logits_are_the_same_bit_for_bit_alone_together_and_in_chunks"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-k", "bfloat16", test]
    environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, timeout=900, capture_output=True)
    assert b"refused" in done.stdout


def test_the_attention_is_a_part_of_the_time(kernels: Library, tiny_model: Callable[[str], Path]) -> None:
    ours = _Models(tiny_model("llama"), kernels).ours
    batch = Batch(np.asarray([5]), np.asarray([0]), [AttentionChunk(0, 1, 0, [0])], np.asarray([0]))
    assert ours.forward(ours.prepare(batch)).attention_seconds > 0
