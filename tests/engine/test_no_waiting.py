"""What is launched on a device is launched without a word from it: the host reads nothing back and waits for no copy.

Shown on PyTorch's device `meta`, whose tensors have no numbers: whoever needs one of them to go on raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from serving.contracts.sampling import Grammar, SamplingParams
from serving.engine import transfers
from serving.engine.embedding import begin_embedding
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.sampling.sampler import Sampler
from serving.engine.transfers import Download
from tests.engine.ahead import Played, Player
from tests.engine.driving import random_prompts, sampling_chunk, small_runner

pytestmark = pytest.mark.heavy

_META = torch.device("meta")
_VOCAB = 301

_MIXTURE: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.01},
    {"num_logprobs": 5},
    {"min_tokens": 9, "stop_token_ids": (5, 6)},
    {"logit_bias": ((7, 4.0),)},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    {"grammar": Grammar("regex", "a*"), "min_tokens": 1},
)


class _Reads(Exception):
    """The host would wait."""


class _Guard(TorchDispatchMode):
    """Raises where a number is to be read, or where a copy waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in {"to", "_to_copy", "copy_"}:
            given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
            if not _may_go_on(given):
                raise _Reads(f"{name} between devices waits")
        return func(*args, **kwargs)


def _may_go_on(given: dict[str, Any]) -> bool:
    """Whether a copy stays on its device, or goes to the other without anyone waiting."""
    device = given["self"].device
    if "src" in given:
        source, target = given["src"].device, device
    else:
        other = given.get("other")
        source, target = device, other.device if other is not None else torch.device(given.get("device") or device)
    return source == target or (bool(given.get("non_blocking")) and target == _META)


class _MadeThere(TorchFunctionMode):
    """Raises where a tensor is made on the device of numbers that the host has: PyTorch waits for their copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in {torch.tensor, torch.as_tensor} and torch.device(kwargs.get("device") or "cpu") == _META:
            raise _Reads(func.__name__)
        return func(*args, **kwargs)


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    with _MadeThere(), _Guard():
        yield


class _Matcher:
    def advance(self, token_ids: list[int]) -> None: ...

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        row[:] = 7


class _Masks:
    def compile(self, grammar: Grammar) -> _Matcher:
        return _Matcher()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What goes back to the host, which only `wait` waits for: the meta device cannot send it."""
    octets: list[torch.Tensor] = []
    monkeypatch.setattr(transfers, "_send", octets.append)
    return octets


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor[0].item(),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: bool((tensor > 0).any()),
        lambda tensor: torch.tensor([1.0]).to(_META),
        lambda tensor: torch.tensor([1.0]).to(tensor),
        lambda tensor: torch.tensor([1.0], device=_META),
        lambda tensor: tensor.copy_(torch.ones(4)),
        lambda tensor: torch.repeat_interleave(tensor.long()),
    ],
)
def test_the_guard_knows_what_waits(read: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.zeros(4, device=_META)
    for mode in (contextlib.nullcontext(), torch.inference_mode()):
        with mode, _guarded(), pytest.raises((_Reads, NotImplementedError, RuntimeError)):
            read(tensor)


def test_a_batch_is_sampled_without_waiting(sent: list[torch.Tensor]) -> None:
    sampler = Sampler(frozenset({2}), masks=_Masks())
    for rows in (_MIXTURE, _MIXTURE[::-1], _MIXTURE[:1], _MIXTURE[1:2]):
        chunks = [
            sampling_chunk(SamplingParams(**{"max_tokens": 50, "seed": index, **params}), generated=[3, 4])
            for index, params in enumerate(rows)
        ]
        download = Download(_META)
        with _guarded():
            sampling = sampler.begin(torch.empty(len(chunks), _VOCAB, device=_META), chunks, download)
            download.send()
        assert sampling.token_ids.shape == (len(chunks),)
    assert len(sent) == 4


def test_steps_are_launched_without_waiting(
    tmp_path: Path, sent: list[torch.Tensor], tiny_model: Callable[[str], Path]
) -> None:
    """Prefills, decodes whose token is awaited, prompts that are read and prompts that are embedded."""
    runner = small_runner(tiny_model("qwen3"), device="meta", looks_ahead=True)
    changes: list[dict[str, Any]] = [*_MIXTURE[:-1], {"num_prompt_logprobs": 3}, {"max_tokens": 0, "embeds": True}]
    sequences = [
        Played(f"request-{index}", prompt, SamplingParams(**{"max_tokens": 50, "seed": index, **params}))
        for index, (prompt, params) in enumerate(
            zip(
                random_prompts([7 * index + 1 for index in range(len(changes))], vocab_size=_VOCAB),
                changes,
                strict=True,
            )
        )
    ]
    player = Player(runner, ahead=True)
    for sequence in sequences:
        sequence.context = list(sequence.prompt)
    with _guarded():
        chunks = tuple(player._chunk(sequence) for sequence in sequences)
        _launch(runner, chunks)
        for index, (sequence, chunk) in enumerate(zip(sequences, chunks, strict=True)):
            sequence.computed = chunk.end
            sequence.pending = index if chunk.samples and not sequence.waits_for_host else None
        goes_on = [one for one in sequences if one.pending is not None or one.computed < len(one.prompt)]
        later = tuple(player._chunk(sequence) for sequence in goes_on)
        assert sum(chunk.awaits is not None for chunk in later) > 2
        assert any(chunk.embeds and chunk.start > 0 for chunk in later)
        _launch(runner, later)
    assert len(sent) == 2


def _launch(runner: Any, chunks: tuple[PlannedChunk, ...]) -> None:
    runner.launch(StepPlan(1, chunks, 1, 1))


def test_hidden_states_are_added_up_without_waiting() -> None:
    params = SamplingParams(max_tokens=0, seed=0, embeds=True)
    chunk = sampling_chunk(params, prompt=range(9))
    whole = PlannedChunk(
        key=chunk.key,
        token_ids=list(range(9)),
        start=0,
        block_table=[],
        samples=False,
        sample_index=0,
        params=params,
        is_prefill=True,
        context=chunk.context,
        num_prompt_tokens=9,
    )
    with _guarded():
        begin_embedding(torch.empty(9, 8, device=_META), {0: whole}, Download(_META))
