"""The default model's text: Transformers' own in fp32, and the same in any company, chunking or preemption."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from tests.engine.driving import Driven, Driver, driven, greedy

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

_KV_CACHE_BYTES = 256 << 20
_QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "1 + 1 =",
    "Explain gravity to a child.",
    "Translate 'good morning' into Spanish.",
    "List three fruits.",
    "Who wrote Hamlet?",
    "What is 12 times 12?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Name a prime number above 100.",
    "Tell me a joke.",
)
_TEXTS = (
    "Once upon a time",
    "def fibonacci(n):\n",
    "The quick brown fox",
    "In 1969, astronauts",
    "Œuvre, naïve, 東京 and 👋 are",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "{'key': [1, 2, 3],",
    "The three laws of thermodynamics are",
    "A locomotive's footplate is where",
    "It was a dark and stormy night. " * 12,
    "Rivers run to the sea, and the sea is not full. " * 28,
)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model / "tokenizer.json"))


@dataclasses.dataclass(frozen=True)
class Task:
    """Prompts, of one token to more than one tile of attention, and how many tokens each is answered with."""

    prompts: list[list[int]]
    num_tokens: int

    def driven(self) -> list[Driven]:
        return driven(self.prompts, greedy(self.num_tokens))


@pytest.fixture(scope="module", params=["8 × 32", pytest.param("24 × 64", marks=pytest.mark.long)])
def task(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Task:
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in _QUESTIONS]
    ids = [tokenizer.encode(text).ids for text in (*chats, *_TEXTS)]
    assert len(ids) == 24
    assert max(map(len, ids)) > 256
    if request.param == "24 × 64":
        return Task(ids, 64)
    return Task([*ids[:22:4], *ids[-2:]], 32)


@pytest.fixture(scope="module")
def exact(default_model: Path) -> Driver:
    return Driver(ModelRunner(default_model, kv_cache_bytes=_KV_CACHE_BYTES, dtype="float32"))


@pytest.fixture(scope="module")
def expected(default_model: Path, task: Task) -> list[list[int]]:
    """What Transformers' `generate` says greedily in fp32, past any end of sequence."""
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    # The two long texts apart, so that the others are not padded to their length.
    parts = (task.prompts[:-2], task.prompts[-2:])
    return [text for part in parts for text in _generated(model, part, num_tokens=task.num_tokens)]


def _generated(model: torch.nn.Module, prompts: Sequence[list[int]], *, num_tokens: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        outputs = model.generate(padded, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)  # type: ignore[operator]
    return outputs[:, longest:].tolist()


def test_alone_each_text_equals_transformers(exact: Driver, task: Task, expected: list[list[int]]) -> None:
    assert [exact.finish([sequence])[0] for sequence in task.driven()] == expected


def test_in_one_batch_each_text_equals_transformers(exact: Driver, task: Task, expected: list[list[int]]) -> None:
    assert exact.finish(task.driven()) == expected


def test_in_chunks_of_16_tokens_each_text_equals_transformers(
    exact: Driver, task: Task, expected: list[list[int]]
) -> None:
    assert exact.finish(task.driven(), max_chunk=16) == expected


def test_preempted_at_any_moment_each_text_equals_transformers(
    exact: Driver, task: Task, expected: list[list[int]]
) -> None:
    rng = random.Random(7)
    sequences = task.driven()
    num_preemptions = 0
    while any(not sequence.done for sequence in sequences):
        exact.step(sequences, max_chunk=96)
        running = [sequence for sequence in sequences if not sequence.done]
        if running and rng.random() < 0.3:
            exact.preempt(rng.choice(running))
            num_preemptions += 1
    assert num_preemptions > (10 if task.num_tokens == 64 else 5)
    assert exact.finish(sequences) == expected


def _run_engine(exact: Driver, task: Task, tunables: Tunables) -> tuple[list[list[int]], Engine]:
    """Each prompt's tokens, as the whole engine gives them."""
    # However slow the machine is, nobody is refused for having waited.
    engine = Engine(exact.runner, tunables=tunables.changed({"max_queue_wait_ms": 3_600_000}))
    for index, prompt in enumerate(task.prompts):
        params = SamplingParams(max_tokens=task.num_tokens, seed=0, temperature=0.0, ignore_eos=True)
        key = SequenceKey(RequestId(f"r{index}"), 0)
        engine.submit(Submit(key=key, attempt=1, owner_id=OwnerId("o"), tenant="t", prompt_ids=prompt, params=params))
    texts: dict[RequestId, list[int]] = {}
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Tokens):
                known = texts.setdefault(event.key.request_id, [])
                assert event.start_index == len(known)
                known.extend(event.token_ids)
        engine.check_invariants()
    return [texts[RequestId(f"r{index}")] for index in range(len(task.prompts))], engine


def test_the_engine_in_small_chunks_and_few_places_gives_each_text_of_transformers(
    exact: Driver, task: Task, expected: list[list[int]]
) -> None:
    tunables = Tunables(max_running=7, max_batch_tokens=48, max_prefill_chunk=16, prefill_share=0.3)
    texts, engine = _run_engine(exact, task, tunables)
    assert texts == expected
    assert engine.counts().kv_blocks_used == 0


def test_the_engine_short_of_memory_preempts_and_gives_each_text_of_transformers(
    exact: Driver, task: Task, expected: list[list[int]]
) -> None:
    ratio = 48 / exact.runner.num_blocks
    texts, engine = _run_engine(exact, task, Tunables(kv_limit_ratio=ratio, kv_watermark_ratio=0.0))
    assert engine.counts().preemptions_total > 0
    assert texts == expected


def test_the_engine_in_static_batches_gives_each_text_of_transformers(
    exact: Driver, task: Task, expected: list[list[int]]
) -> None:
    texts, engine = _run_engine(exact, task, Tunables(mode="static", max_running=12))
    assert engine.counts().padded_tokens_total > 0
    assert texts == expected


def test_in_bf16_sampled_text_does_not_depend_on_company_chunks_or_preemption(default_model: Path, task: Task) -> None:
    """Bit for bit: a temperature of 2 makes every draw depend on the last digits of the whole distribution."""
    driver = Driver(ModelRunner(default_model, kv_cache_bytes=_KV_CACHE_BYTES))

    def fresh() -> list[Driven]:
        chosen = [*task.prompts[:3], task.prompts[-1]]
        return [
            Driven(f"r{index}", prompt, SamplingParams(max_tokens=16, seed=index, temperature=2.0, ignore_eos=True))
            for index, prompt in enumerate(chosen)
        ]

    together = driver.finish(fresh())
    assert [driver.finish([sequence])[0] for sequence in fresh()] == together
    assert driver.finish(fresh(), max_chunk=7) == together
    preempted = fresh()
    for _ in range(9):
        driver.step(preempted, max_chunk=200)
    driver.preempt(preempted[0])
    driver.preempt(preempted[-1])
    assert driver.finish(preempted) == together


def test_in_bf16_the_default_model_answers_sensibly(default_model: Path, tokenizer: Tokenizer) -> None:
    driver = Driver(ModelRunner(default_model, kv_cache_bytes=_KV_CACHE_BYTES))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    params = SamplingParams(max_tokens=12, seed=0, temperature=0.0)
    answer = tokenizer.decode(driver.finish(driven([tokenizer.encode(question).ids], params))[0])
    assert "Paris" in answer
