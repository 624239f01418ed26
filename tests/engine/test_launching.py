"""Plans that are launched before the last is known: token for token what comes of plans one after another."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Finished, SequenceKey, Submit, Tokens
from serving.contracts.sampling import Grammar, SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.models.model import Batch
from serving.engine.models.torch_model import Prepared, TorchModel
from serving.engine.plan import AheadRunner, StepPlan
from tests.engine.ahead import Played, Player
from tests.engine.driving import Driver, driven, greedy, random_prompts, small_runner

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]

_MIXTURE: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "num_logprobs": 3},
    {"temperature": 1.5, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.01, "num_logprobs": 0},
    {"min_tokens": 9, "stop_token_ids": tuple(range(3, 150)), "ignore_eos": False},
    {"temperature": 2.0, "stop_token_ids": tuple(range(3, 60)), "ignore_eos": False},
    {"logit_bias": ((7, 4.0), (9, -100.0))},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0.0, "num_prompt_logprobs": 2},
    {"max_tokens": 0, "embeds": True},
    {"max_tokens": 1},
)


def _sequences(*, seed: int, count: int = 22) -> list[Played]:
    lengths = [1 + (37 * index + 11 * seed) % 90 for index in range(count)]
    prompts = random_prompts(lengths, vocab_size=301, seed=seed)
    return [
        Played(
            f"request-{index}",
            prompt,
            SamplingParams(**{"max_tokens": 14, "seed": index, "ignore_eos": True, **_MIXTURE[index % len(_MIXTURE)]}),
        )
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_what_is_launched_ahead_is_what_comes_step_by_step(
    tiny_model: TinyModel, backend: str, kernels_folder: Path
) -> None:
    options = {"dtype": "bfloat16", "num_blocks": 300, "backend": backend, "kernels_folder": kernels_folder}
    runner = small_runner(tiny_model("qwen3"), **options)  # type: ignore[arg-type]
    ended_early = 0
    for seed in range(4):
        expected = Player(runner, ahead=False, seed=seed).play(_sequences(seed=seed))
        player = Player(runner, ahead=True, seed=seed + 100)
        sequences = _sequences(seed=seed)
        assert player.play(sequences) == expected
        assert player.num_awaited > 50
        ended_early += sum(0 < len(one.generated) < one.params.max_tokens for one in sequences)
    assert ended_early > 4


def test_a_runner_looks_ahead_where_it_is_told_to(tiny_model: TinyModel) -> None:
    """On a CPU nothing is gained by it."""
    runner = small_runner(tiny_model("llama"))
    assert isinstance(runner, AheadRunner)
    assert not runner.looks_ahead
    assert small_runner(tiny_model("llama"), looks_ahead=True).looks_ahead


def test_a_step_that_cannot_be_begun_raises_and_leaves_the_one_before(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can await a token of it."""
    runner = small_runner(tiny_model("llama"))
    driver = Driver(runner)
    (sequence,) = driven([[5, 6, 7]], greedy(4))
    first = runner.launch(StepPlan(1, (driver.planned(sequence, 10),), 3, 0))

    def fail(*_: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(type(runner._model), "prepare", fail)
        with pytest.raises(MemoryError, match="none left"):
            runner.launch(StepPlan(2, (driver.planned(sequence, 10),), 3, 0))
    chunk = driver.planned(sequence, 10)
    awaiting = Played("request-0", [5, 6, 7], greedy(4))
    awaiting.context, awaiting.computed, awaiting.pending, awaiting.table = [5, 6, 7], 3, 0, list(chunk.block_table)
    with pytest.raises(AssertionError, match="no step came before"):
        runner.launch(StepPlan(3, (Player(runner, ahead=True)._chunk(awaiting),), 0, 1))
    assert len(first.collect().token_ids[0]) == 1


def test_a_step_that_cannot_be_begun_ends_nobody_who_joins_after_it(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is planned behind it, where its sequences would await tokens that nobody chooses."""
    engine = Engine(small_runner(tiny_model("llama"), looks_ahead=True), tunables=Tunables())
    prepare, ends = TorchModel.prepare, {}
    failing: list[bool] = []

    def fail_once(model: TorchModel, batch: Batch) -> Prepared:
        if failing:
            failing.clear()
            raise MemoryError("none left")
        return prepare(model, batch)

    monkeypatch.setattr(TorchModel, "prepare", fail_once)
    first, second = _submits(2)
    engine.submit(first)
    engine.step()
    failing.append(True)
    engine.step()
    engine.submit(second)
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Finished):
                ends[event.key] = event.reason
    assert not failing
    assert ends == {first.key: "error", second.key: "length"}


def test_sampling_is_timed_to_where_it_is_collected(tiny_model: TinyModel) -> None:
    ticks = itertools.count()
    runner = small_runner(tiny_model("llama"), clock=lambda: float(next(ticks)))
    driver = Driver(runner)
    (sequence,) = driven([[5, 6, 7]])
    launched = runner.launch(StepPlan(0, (driver.planned(sequence, 10),), 3, 0))
    next(ticks)
    times = launched.collect().times
    assert (times.prepare_seconds, times.forward_seconds, times.sample_seconds) == (1.0, 1.0, 2.0)


def _submits(count: int) -> list[Submit]:
    mixture = (*_MIXTURE[:9], {"grammar": Grammar("regex", "a*"), "ignore_eos": False})
    prompts = random_prompts([1 + 23 * index % 70 for index in range(count)], vocab_size=301, seed=9)
    return [
        Submit(
            key=SequenceKey(RequestId(f"request-{index}"), 0),
            attempt=1,
            owner_id=OwnerId("owner"),
            tenant=f"tenant-{index % 3}",
            prompt_ids=prompt,
            params=SamplingParams(
                **{"max_tokens": 12, "seed": index, "ignore_eos": True, **mixture[index % len(mixture)]}
            ),
        )
        for index, prompt in enumerate(prompts)
    ]


class _AnyOf:
    """Admits a few tokens that change with how many there are."""

    def __init__(self) -> None:
        self._num_read = 0

    def advance(self, token_ids: list[int]) -> None:
        self._num_read += len(token_ids)

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        row[:] = 0
        row[self._num_read % 5] = 0b1011_0000


class _Masks:
    def compile(self, grammar: Grammar) -> _AnyOf:
        return _AnyOf()


def test_an_engine_that_looks_ahead_gives_the_same_answers(tiny_model: TinyModel) -> None:
    """With ten blocks, so that sequences are preempted while others' tokens are on their way."""
    answers = []
    for looks_ahead in (False, True):
        options = {"dtype": "bfloat16", "looks_ahead": looks_ahead, "masks": _Masks()}
        runner = small_runner(tiny_model("qwen3"), num_blocks=1, **options)
        tunables = Tunables().changed({"max_prefill_chunk": 16, "max_batch_tokens": 48, "kv_watermark_ratio": 0.0})
        engine = Engine(runner, tunables=tunables)
        for submit in _submits(30):
            engine.submit(submit)
        told: dict[SequenceKey, list[object]] = defaultdict(list)
        while engine.has_work:
            for _, event in engine.step():
                if isinstance(event, Tokens):
                    told[event.key] += [*event.token_ids, *(event.logprobs or ()), *(event.prompt_logprobs or ())]
                elif isinstance(event, Finished):
                    told[event.key].append((event.reason, event.num_generated))
            engine.check_invariants()
        assert engine.counts().preemptions_total > 0
        answers.append(told)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 30
