"""Embeddings: the mean of the last hidden states, whoever computes it and however the prompt is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel

from serving.contracts.errors import InvalidValue
from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Finished, SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.embedding import NO_DIRECTION, embed
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from serving.engine.plan import PlannedChunk
from tests.engine.driving import random_prompts, small_runner
from tests.engine.tiny_models import FAMILIES, KERNEL_FAMILIES, SHAPES

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]
EMBEDDING = SamplingParams(max_tokens=0, seed=0, embeds=True)
VOCAB = 301


def vector_of(embedding: bytes | None) -> npt.NDArray[np.float32]:
    assert embedding is not None
    vector = np.frombuffer(embedding, dtype="<f4")
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-6)
    return vector


def expected_of(folder: Path, prompts: Sequence[list[int]]) -> list[npt.NDArray[np.float64]]:
    """The mean of Transformers' last hidden states in fp32, of length 1."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    with torch.inference_mode():
        for prompt in prompts:
            mean = model(torch.tensor([prompt])).last_hidden_state[0].double().mean(dim=0)
            vectors.append((mean / mean.norm()).numpy())
    return vectors


def submit(name: str, prompt: list[int], *, params: SamplingParams = EMBEDDING, attempt: int = 1) -> Submit:
    return Submit(
        key=SequenceKey(RequestId(name), 0),
        attempt=attempt,
        owner_id=OwnerId("owner"),
        tenant="tenant",
        prompt_ids=prompt,
        params=params,
    )


def engine_of(runner: ModelRunner, **changes: Any) -> Engine:
    return Engine(runner, tunables=Tunables().changed({"kv_watermark_ratio": 0, "prefix_caching": "on", **changes}))


def run(engine: Engine, submits: Sequence[Submit]) -> dict[str, Finished]:
    """How each ends; whatever is told of what embeds is told at its end."""
    ends: dict[str, Finished] = {}
    for each in submits:
        engine.submit(each)
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Finished):
                ends[event.key.request_id] = event
        engine.check_invariants()
    return ends


def embeddings_of(runner: ModelRunner, prompts: Sequence[list[int]], **changes: Any) -> list[bytes | None]:
    ends = run(engine_of(runner, **changes), [submit(str(index), prompt) for index, prompt in enumerate(prompts)])
    assert {end.reason for end in ends.values()} == {"stop"}
    return [ends[str(index)].embedding for index in range(len(prompts))]


# --- against Transformers ---


@pytest.mark.parametrize("family", [*FAMILIES, *SHAPES])
def test_every_family_embeds_as_transformers_does(tiny_model: TinyModel, family: str) -> None:
    """In chunks of 37, mixed."""
    folder = tiny_model(family)
    prompts = random_prompts([1, 2, 40, 150], vocab_size=VOCAB)
    found = embeddings_of(small_runner(folder), prompts, max_prefill_chunk=37, max_batch_tokens=64)
    for embedding, expected in zip(found, expected_of(folder, prompts), strict=True):
        assert np.abs(vector_of(embedding) - expected).max() < 1e-5


@pytest.mark.parametrize("family", [*KERNEL_FAMILIES, *SHAPES])
def test_the_kernels_embed_every_family(tiny_model: TinyModel, kernels_folder: Path, family: str) -> None:
    folder = tiny_model(family)
    prompts = random_prompts([1, 2, 40, 150, 300], vocab_size=VOCAB)
    runner = small_runner(folder, dtype="bfloat16", backend="cpu", kernels_folder=kernels_folder)
    found = embeddings_of(runner, prompts, max_prefill_chunk=37)
    for embedding, expected in zip(found, expected_of(folder, prompts), strict=True):
        assert float(vector_of(embedding) @ expected) > 0.99


def test_the_default_model_embeds_as_transformers_does(default_model: Path, kernels_folder: Path) -> None:
    """Exactly in fp32, and nearly so in bf16, with PyTorch and with the kernels."""
    prompts = random_prompts([1, 9, 130, 400], vocab_size=49_000)
    expected = expected_of(default_model, prompts)
    memory = 64 << 20
    exact = embeddings_of(ModelRunner(default_model, kv_cache_bytes=memory, dtype="float32"), prompts)
    for embedding, vector in zip(exact, expected, strict=True):
        assert np.abs(vector_of(embedding) - vector).max() < 1e-5
    for options in ({"backend": "torch"}, {"backend": "cpu", "kernels_folder": kernels_folder}):
        runner = ModelRunner(default_model, kv_cache_bytes=memory, **options)  # type: ignore[arg-type]
        for embedding, vector in zip(embeddings_of(runner, prompts), expected, strict=True):
            assert float(vector_of(embedding) @ vector) > 0.999


# --- the same bits in any company ---


@pytest.fixture(params=["bfloat16", "w8a8", "torch"])
def bf16_runner(request: pytest.FixtureRequest, tiny_model: TinyModel, kernels_folder: Path) -> ModelRunner:
    """In the arithmetic in which no row depends on company: the kernels' with two formats of weights, and PyTorch's."""
    kernels = {"backend": "cpu", "kernels_folder": kernels_folder, "weight_format": request.param}
    options = {} if request.param == "torch" else kernels
    return small_runner(tiny_model("qwen3"), dtype="bfloat16", num_blocks=80, **options)


def test_an_embedding_is_the_same_bit_for_bit_alone_together_in_chunks_and_beside_decodes(
    bf16_runner: ModelRunner,
) -> None:
    prompts = random_prompts([1, 16, 17, 100, 250], vocab_size=VOCAB, seed=4)
    together = embeddings_of(bf16_runner, prompts)
    assert [embeddings_of(bf16_runner, [prompt])[0] for prompt in prompts] == together
    for chunk in (1, 7, 64):
        assert embeddings_of(bf16_runner, prompts, max_prefill_chunk=chunk, max_batch_tokens=80) == together
    writing = SamplingParams(max_tokens=40, seed=1, ignore_eos=True)
    mixed = [submit(f"w{index}", prompt, params=writing) for index, prompt in enumerate(prompts)]
    mixed += [submit(str(index), prompt) for index, prompt in enumerate(prompts)]
    ends = run(engine_of(bf16_runner, max_batch_tokens=32, max_prefill_chunk=9), mixed)
    assert [ends[str(index)].embedding for index in range(len(prompts))] == together
    assert {ends[f"w{index}"].embedding for index in range(len(prompts))} == {None}


def test_an_embedding_is_the_same_after_preemption(bf16_runner: ModelRunner) -> None:
    """Those that write grow until there is no room for the last that came, whose prompt is half read."""
    long, *others = random_prompts([420, 300, 300], vocab_size=VOCAB, seed=5)
    (alone,) = embeddings_of(bf16_runner, [long])
    engine = engine_of(bf16_runner, max_prefill_chunk=4, prefix_caching="off", kv_limit_ratio=_ratio(bf16_runner, 66))
    writing = SamplingParams(max_tokens=200, seed=1, ignore_eos=True)
    for index, prompt in enumerate(others):
        engine.submit(submit(f"w{index}", prompt, params=writing))
    while engine.counts().generated_tokens_total < 3:
        engine.step()
    end = run(engine, [submit("e", long)])["e"]
    assert end.timings.num_preemptions > 0
    assert end.embedding == alone


def _ratio(runner: ModelRunner, num_blocks: int) -> float:
    return num_blocks / runner.num_blocks


def test_what_is_cached_of_a_prompt_is_computed_again_and_found_by_others(tiny_model: TinyModel) -> None:
    runner = small_runner(tiny_model("llama"))
    (prompt,) = random_prompts([100], vocab_size=VOCAB)
    engine = engine_of(runner)
    first, again = run(engine, [submit("a", prompt)])["a"], run(engine, [submit("b", prompt)])["b"]
    assert first.embedding == again.embedding
    assert (again.timings.num_cached_tokens, engine.counts().prompt_tokens_total) == (0, 200)
    assert engine.counts().prefix_query_tokens_total == 0
    writing = SamplingParams(max_tokens=2, seed=0, ignore_eos=True)
    assert run(engine, [submit("c", prompt, params=writing)])["c"].timings.num_cached_tokens == 96


# --- what goes wrong ---


def test_a_token_outside_the_vocabulary_fails_its_prompt_alone(tiny_model: TinyModel) -> None:
    engine = engine_of(small_runner(tiny_model("llama")), max_prefill_chunk=32)
    good = random_prompts([70], vocab_size=VOCAB)[0]
    ends = run(engine, [submit("bad", [3] * 40 + [VOCAB] + [3] * 40), submit("good", good)])
    assert (ends["bad"].reason, ends["bad"].embedding) == ("error", None)
    assert "the vocabulary has no token" in ends["bad"].message
    (alone,) = embeddings_of(small_runner(tiny_model("llama")), [good])
    # PyTorch's fp32 products may differ in their last bits by company.
    np.testing.assert_allclose(np.frombuffer(ends["good"].embedding, "<f4"), np.frombuffer(alone, "<f4"), atol=1e-6)


def _chunk(
    start: int, num_tokens: int, num_prompt_tokens: int, *, hidden_sum: torch.Tensor | None = None
) -> PlannedChunk:
    context = [1] * num_prompt_tokens
    return PlannedChunk(
        key=SequenceKey(RequestId("a"), 0),
        token_ids=context[start : start + num_tokens],
        start=start,
        block_table=[],
        samples=False,
        sample_index=0,
        params=EMBEDDING,
        is_prefill=True,
        context=context,
        num_prompt_tokens=num_prompt_tokens,
        hidden_sum=hidden_sum,
    )


def test_hidden_states_are_added_one_after_another_in_fp32() -> None:
    """So that a cut between two of them changes nothing."""
    hidden = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)) * 100
    total = torch.zeros(64)
    for row in hidden:
        total = total + row
    expected = (total.double() / total.double().norm()).float()
    whole = embed(hidden, {0: _chunk(0, 300, 300)}).embeddings[0]
    assert np.frombuffer(whole, dtype="<f4") == pytest.approx(expected.numpy(), rel=1e-7)
    for cut in (1, 16, 123, 299):
        part = embed(hidden[:cut], {5: _chunk(0, cut, 300)})
        assert (part.embeddings, list(part.hidden_sums)) == ({}, [5])
        rest = _chunk(cut, 300 - cut, 300, hidden_sum=part.hidden_sums[5])
        assert embed(hidden[cut:], {2: rest}).embeddings == {2: whole}


def test_hidden_states_without_a_direction_are_an_error_of_their_own() -> None:
    hidden = torch.tensor([[1.0, 2.0], [0.0, 0.0], [torch.inf, 0.0], [3e38, 1.0], [3e38, 1.0]])
    chunks = {index: _chunk(0, count, count) for index, count in enumerate((1, 1, 1, 2))}
    embedded = embed(hidden, chunks)
    assert (list(embedded.embeddings), embedded.errors) == ([0], dict.fromkeys((1, 2, 3), NO_DIRECTION))


def test_what_embeds_generates_nothing_and_tells_of_no_token() -> None:
    for fields in ({"max_tokens": 1}, {"num_logprobs": 1}, {"num_prompt_logprobs": 1}):
        with pytest.raises(InvalidValue):
            SamplingParams(**{"max_tokens": 0, "seed": 0, "embeds": True, **fields})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        SamplingParams(max_tokens=0, seed=0)
