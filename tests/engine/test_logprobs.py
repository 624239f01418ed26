"""Log probabilities: of the tokens chosen, of the most probable ones, and of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit, TokenLogprobs, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from serving.engine.models.decoder import Decoder
from serving.engine.plan import MOST_READ_TOKENS, StepPlan, StepResult
from serving.engine.sampling.sampler import Sampler
from tests.engine.driving import Driven, Driver, greedy, random_prompts, sampling_chunk, small_runner

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]
VOCAB = 301
_BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 4
"""Of the tiny model: layers, keys and values, heads, their size, tokens a block, fp32."""


def _params(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, "seed": 0, "temperature": 0.0, **params})


def _check(entry: TokenLogprobs, row: torch.Tensor, token_id: int, count: int, *, tolerance: float = 1e-4) -> None:
    """Against the plain definition, in fp64."""
    expected = torch.log_softmax(row.double(), dim=-1)
    assert entry.logprob == pytest.approx(float(expected[token_id]), abs=tolerance)
    assert entry.top_logprobs == pytest.approx(expected.topk(count).values.tolist(), abs=tolerance)
    assert [float(expected[id_]) for id_ in entry.top_ids] == pytest.approx(entry.top_logprobs, abs=tolerance)
    assert len(set(entry.top_ids)) == len(entry.top_ids) == count
    assert entry.top_logprobs == sorted(entry.top_logprobs, reverse=True)


@settings(deadline=None, max_examples=50)
@given(
    counts=st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=8),
    vocab_size=st.sampled_from([21, 64, 65, 1000, 5000]),
    seed=st.integers(0, 1000),
)
def test_those_who_ask_are_told_what_the_model_gave(counts: list[int | None], vocab_size: int, seed: int) -> None:
    """Whatever penalties, bias, temperature and filters make of it afterwards."""
    logits = torch.randn(len(counts), vocab_size, generator=torch.Generator().manual_seed(seed)) * 4
    chunks = [
        sampling_chunk(
            _params(num_logprobs=count, temperature=index % 2 * 0.7, presence_penalty=1.0, logit_bias=((3, 50.0),)),
            generated=[1, 2],
            name=str(index),
        )
        for index, count in enumerate(counts)
    ]
    sampled = Sampler(frozenset()).sample(logits.clone(), chunks)
    assert sorted(sampled.logprobs) == [index for index, count in enumerate(counts) if count is not None]
    for index, entry in sampled.logprobs.items():
        _check(entry, logits[index], sampled.token_ids[index], counts[index] or 0)


def test_no_row_depends_on_what_its_company_asks_for() -> None:
    """Not even the order of equals."""
    logits = torch.randn(21, 3000, generator=torch.Generator().manual_seed(0)).round()
    chunks = [sampling_chunk(_params(num_logprobs=count), name=str(count)) for count in range(21)]
    together = Sampler(frozenset()).sample(logits.clone(), chunks).logprobs
    for index, chunk in enumerate(chunks):
        alone = Sampler(frozenset()).sample(logits[index : index + 1].clone(), [chunk]).logprobs
        assert alone[0] == together[index]


def test_equally_probable_tokens_stand_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(1, 500)
    logits[0, [400, 7, 90]] = 5.0
    entry = Sampler(frozenset()).sample(logits, [sampling_chunk(_params(num_logprobs=3))]).logprobs[0]
    assert entry.top_ids == [7, 90, 400]


def test_nothing_told_is_infinite() -> None:
    logits = torch.full((1, 100), -math.inf)
    logits[0, [4, 9]] = 1.0
    entry = Sampler(frozenset()).sample(logits, [sampling_chunk(_params(num_logprobs=20))]).logprobs[0]
    assert entry.top_logprobs == pytest.approx([math.log(0.5)] * 2 + [-9999.0] * 18)


def test_a_row_that_fails_tells_nothing_and_the_others_do() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    logits[1, 5] = math.nan
    chunks = [sampling_chunk(_params(num_logprobs=2), name=str(index)) for index in range(3)]
    sampled = Sampler(frozenset()).sample(logits, chunks)
    assert (list(sampled.errors), list(sampled.logprobs)) == ([1], [0, 2])


# --- prompts ---


def _reference(folder: Path, tokens: list[int]) -> torch.Tensor:
    """Logits of every position, by Transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return torch.as_tensor(model(torch.tensor([tokens])).logits[0])


class Recording:
    """A runner in front of another, which keeps the results."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.results: list[StepResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, plan: StepPlan) -> StepResult:
        self.results.append(self._runner.run(plan))
        return self.results[-1]


def _read_prompt(runner: Any, prompt: list[int], *, max_chunk: int, count: int = 5) -> list[TokenLogprobs]:
    recording = Recording(runner)
    sequence = Driven("a", prompt, _params(max_tokens=2, num_prompt_logprobs=count, ignore_eos=True))
    Driver(recording).finish([sequence], max_chunk=max_chunk)
    return [entry for result in recording.results for entry in result.prompt_logprobs.get(0, [])]


@pytest.mark.parametrize("max_chunk", [1, 7, 64, 65, 1000])
def test_a_prompts_tokens_are_told_as_transformers_has_them(tiny_model: TinyModel, max_chunk: int) -> None:
    (prompt,) = random_prompts([150], vocab_size=VOCAB)
    runner = small_runner(tiny_model("llama"))
    entries = _read_prompt(runner, prompt, max_chunk=max_chunk)
    logits = _reference(tiny_model("llama"), prompt)
    assert len(entries) == len(prompt) - 1
    for position, entry in enumerate(entries):
        _check(entry, logits[position], prompt[position + 1], 5, tolerance=1e-3)


def test_reading_a_prompt_changes_no_token_and_no_company(tiny_model: TinyModel) -> None:
    driver = Driver(small_runner(tiny_model("llama"), num_blocks=100))
    prompts = random_prompts([200, 1, 2, 90], vocab_size=VOCAB, seed=3)
    expected = driver.finish([Driven(str(i), prompt, greedy(6)) for i, prompt in enumerate(prompts)], max_chunk=100)
    asking = SamplingParams(max_tokens=6, seed=0, temperature=0.0, ignore_eos=True, num_prompt_logprobs=0)
    reading = [Driven(str(i), prompt, asking if i % 2 == 0 else greedy(6)) for i, prompt in enumerate(prompts)]
    assert driver.finish(reading, max_chunk=100) == expected


def test_a_token_outside_the_vocabulary_fails_its_prompt_alone(tiny_model: TinyModel) -> None:
    driver = Driver(small_runner(tiny_model("llama")))
    asking = _params(max_tokens=3, num_prompt_logprobs=1, ignore_eos=True)
    for bad in ([3, 4, VOCAB, 5], [3, 4, 5, VOCAB], [3] * 70 + [2**40] + [3] * 5):
        failing, good = Driven("bad", bad, asking), Driven("good", [3, 4, 5], asking)
        driver.finish([failing, good])
        assert "the vocabulary has no token" in failing.error
        assert len(good.generated) == 3


def _engine(folder: Path, *, num_blocks: int = 12, **changes: Any) -> Engine:
    tunables = Tunables().changed({"kv_watermark_ratio": 0, "prefix_caching": "on", **changes})
    runner = ModelRunner(folder, kv_cache_bytes=num_blocks * _BLOCK_BYTES, dtype="float32")
    return Engine(runner, tunables=tunables)


def _run(engine: Engine, submits: list[Submit]) -> tuple[dict[str, list[Tokens]], int]:
    heard: dict[str, list[Tokens]] = {}
    for submit in submits:
        engine.submit(submit)
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Tokens):
                heard.setdefault(event.key.request_id, []).append(event)
    return heard, engine.counts().preemptions_total


def _check_same(entries: list[TokenLogprobs] | None, expected: list[TokenLogprobs] | None) -> None:
    """But for roundings: how a sequence is cut may change the order in which PyTorch adds."""
    assert entries is not None
    assert expected is not None
    assert [entry.top_ids for entry in entries] == [entry.top_ids for entry in expected]
    for entry, other in zip(entries, expected, strict=True):
        assert [entry.logprob, *entry.top_logprobs] == pytest.approx([other.logprob, *other.top_logprobs], abs=1e-3)


def _submit(name: str, prompt: list[int], **params: Any) -> Submit:
    return Submit(
        key=SequenceKey(RequestId(name), 0),
        attempt=1,
        owner_id=OwnerId("owner"),
        tenant="tenant",
        prompt_ids=prompt,
        params=_params(**{"max_tokens": 60, "ignore_eos": True, **params}),
    )


def test_owners_hear_each_entry_once_through_chunks_preemption_and_prefix_hits(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    prompts = random_prompts([40, 50, 60], vocab_size=VOCAB, seed=9)
    asking = {"num_logprobs": 2, "num_prompt_logprobs": 3}
    alone: dict[str, list[Tokens]] = {}
    for index, prompt in enumerate(prompts):
        heard, _ = _run(_engine(folder), [_submit(str(index), prompt, **asking)])
        alone |= heard
    crowded = _engine(folder, max_prefill_chunk=16, max_batch_tokens=64)
    submits = [_submit(str(index), prompt, **asking) for index, prompt in enumerate(prompts)]
    _run(crowded, submits)
    again = [Submit(**{f: getattr(s, f) for f in s.__struct_fields__ if f != "attempt"}, attempt=2) for s in submits]
    together, preemptions = _run(crowded, again)
    assert preemptions > 0
    for name, prompt in zip(("0", "1", "2"), prompts, strict=True):
        told = [event.prompt_logprobs for event in together[name] if event.prompt_logprobs is not None]
        assert [len(entries) for entries in told] == [len(prompt) - 1]
        _check_same(together[name][0].prompt_logprobs, alone[name][0].prompt_logprobs)
        entries = [entry for event in together[name] for entry in event.logprobs or []]
        _check_same(entries, [entry for event in alone[name] for entry in event.logprobs or []])
        assert len(entries) == 60


def test_no_more_than_a_few_positions_are_held_at_once(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the prompts, and however many are read at once."""
    rows: list[int] = []
    compute = Decoder.logits

    def counting(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return compute(decoder, hidden)

    monkeypatch.setattr(Decoder, "logits", counting)
    prompts = random_prompts([250, 1, 200], vocab_size=VOCAB)
    engine = _engine(tiny_model("llama"), num_blocks=80, max_batch_tokens=1024, max_prefill_chunk=1024)
    submits = [_submit(str(i), prompt, max_tokens=2, num_prompt_logprobs=2) for i, prompt in enumerate(prompts)]
    heard, _ = _run(engine, submits)
    assert [len(heard[str(i)][0].prompt_logprobs or ()) for i in range(3)] == [249, 0, 199]
    assert max(rows) <= MOST_READ_TOKENS + len(prompts)


def test_a_prompt_of_one_token_is_told_of_though_there_is_nothing_to_tell(tiny_model: TinyModel) -> None:
    submits = [_submit("a", [5], num_prompt_logprobs=1, max_tokens=3), _submit("b", [5], max_tokens=3)]
    heard, _ = _run(_engine(tiny_model("llama")), submits)
    assert [event.prompt_logprobs for event in heard["a"]] == [[], None, None]
    assert [event.prompt_logprobs for event in heard["b"]] == [None, None, None]


def test_a_later_attempt_does_not_tell_of_the_prompt_again(tiny_model: TinyModel) -> None:
    submit = _submit("a", [5, 6, 7], num_prompt_logprobs=1, max_tokens=4)
    later = Submit(
        **{f: getattr(submit, f) for f in submit.__struct_fields__ if f != "generated_ids"}, generated_ids=[9]
    )
    heard, _ = _run(_engine(tiny_model("llama")), [later])
    assert len(heard["a"]) == 3
    assert all(event.prompt_logprobs is None for event in heard["a"])
