"""Text after a prefix hit is that of a miss, bit for bit: the whole engine, on tiny models and on the real one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.kv_cache import block_bytes
from serving.engine.model_runner import ModelRunner
from serving.engine.models.config import read_config
from tests.engine.driving import random_prompts

pytestmark = pytest.mark.heavy

TinyModel = Callable[[str], Path]
Runners = tuple[ModelRunner, ModelRunner]
VOCABULARY = 301
FAMILY = pytest.mark.parametrize("family", ["llama", "qwen2"])


@dataclasses.dataclass(slots=True)
class Answer:
    """What one sequence was told: tokens, and how probable each and its rivals were, to the last bit."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    num_cached_tokens: int = 0


def ask(name: str, prompt: list[int], *, choice: int = 0, max_tokens: int = 24) -> Submit:
    """A temperature of 2 makes every draw depend on the last digits of the whole distribution."""
    params = SamplingParams(max_tokens=max_tokens, seed=11, temperature=2.0, ignore_eos=True, num_logprobs=3)
    key = SequenceKey(RequestId(name), choice)
    return Submit(key=key, attempt=1, owner_id=OwnerId("o"), tenant="t", prompt_ids=prompt, params=params)


def runners_of(folder: Path, *, num_blocks: int) -> Runners:
    """In bf16, where a row's arithmetic depends on nobody's company."""
    num_bytes = num_blocks * block_bytes(read_config(folder), torch.bfloat16)
    return ModelRunner(folder, kv_cache_bytes=num_bytes), ModelRunner(folder, kv_cache_bytes=num_bytes)


def engine_of(runner: ModelRunner, **tunables: object) -> Engine:
    # However slow the machine is, nobody is refused for having waited.
    patient = {"max_queue_wait_ms": 3_600_000, "kv_watermark_ratio": 0.0}
    return Engine(runner, tunables=Tunables().changed({**patient, **tunables}))


def answers_of(engine: Engine, requests: Sequence[Submit]) -> dict[SequenceKey, Answer]:
    """All of these at once, run to their ends."""
    answers = {request.key: Answer() for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for _, event in engine.step():
            if not isinstance(event, Tokens):
                continue
            answer = answers[event.key]
            answer.token_ids += event.token_ids
            for entry in event.logprobs or []:
                answer.logprobs += [entry.logprob, *entry.top_logprobs]
            if event.timings is not None:
                answer.num_cached_tokens = event.timings.num_cached_tokens
        engine.check_invariants()
    assert all(len(answer.logprobs) == 4 * len(answer.token_ids) > 0 for answer in answers.values())
    return answers


def check(other: ModelRunner, requests: Sequence[Submit], answers: dict[SequenceKey, Answer]) -> int:
    """Each was told what `other` tells it alone, nothing being cached; how many tokens were found cached.

    It has to be another runner: what the first one's engine takes for cached must stay where it is.
    """
    for request in requests:
        engine = engine_of(other, prefix_caching="off")
        expected, told = answers_of(engine, [request])[request.key], answers[request.key]
        assert (told.token_ids, told.logprobs) == (expected.token_ids, expected.logprobs), request.key
    return sum(answer.num_cached_tokens for answer in answers.values())


def share_a_system_prompt(runners: Runners, system: list[int], questions: Sequence[list[int]]) -> None:
    engine = engine_of(runners[0])
    requests = [ask(f"r{index}", system + question) for index, question in enumerate(questions)]
    answers = answers_of(engine, requests[:1]) | answers_of(engine, requests[1:])
    num_full = len(system) // 16 * 16
    assert check(runners[1], requests, answers) >= (len(questions) - 1) * num_full > 0


def hold_a_conversation(runners: Runners, turns: Sequence[list[int]]) -> None:
    engine = engine_of(runners[0])
    context: list[int] = []
    for number, turn in enumerate(turns):
        request = ask(f"turn{number}", context + turn)
        answers = answers_of(engine, [request])
        num_cached = check(runners[1], [request], answers)
        # All that the turn before computed: its context and its answer but for the last token.
        assert num_cached == max(0, len(context) - 1) // 16 * 16
        context = request.prompt_ids + answers[request.key].token_ids


@FAMILY
def test_requests_that_share_a_system_prompt(tiny_model: TinyModel, family: str) -> None:
    runners = runners_of(tiny_model(family), num_blocks=100)
    system, *questions = random_prompts([100, 5, 30, 12, 16, 1, 28, 40, 7], vocab_size=VOCABULARY)
    share_a_system_prompt(runners, system, questions)


@FAMILY
def test_turns_of_a_conversation(tiny_model: TinyModel, family: str) -> None:
    runners = runners_of(tiny_model(family), num_blocks=40)
    hold_a_conversation(runners, random_prompts([20, 9, 33, 16, 5], vocab_size=VOCABULARY, seed=1))


@pytest.mark.parametrize("chunk", [16, 512])
def test_beginnings_that_are_evicted_and_come_again(tiny_model: TinyModel, chunk: int) -> None:
    runner, other = runners_of(tiny_model("llama"), num_blocks=24)
    chance = random.Random(3)
    stems = random_prompts([90, 70, 64, 48, 33], vocab_size=VOCABULARY, seed=2)
    ends = random_prompts([chance.randrange(1, 40) for _ in range(20)], vocab_size=VOCABULARY, seed=3)
    requests = [ask(f"r{index}", chance.choice(stems) + end, max_tokens=10) for index, end in enumerate(ends)]
    engine = engine_of(runner, max_running=3, max_prefill_chunk=chunk)
    answers: dict[SequenceKey, Answer] = {}
    for begin in range(0, len(requests), 4):
        answers |= answers_of(engine, requests[begin : begin + 4])
    assert engine.counts().kv_blocks_free < 4, "the pool was never short"
    assert check(other, requests, answers) > 0


def test_preempted_ones_that_find_their_own_blocks_again(tiny_model: TinyModel) -> None:
    runner, other = runners_of(tiny_model("llama"), num_blocks=24)
    stem, *ends = random_prompts([40, 5, 9, 14, 20, 3, 11], vocab_size=VOCABULARY, seed=4)
    requests = [ask(f"r{index}", stem + end, max_tokens=70) for index, end in enumerate(ends)]
    engine = engine_of(runner)
    answers = answers_of(engine, requests)
    assert engine.counts().preemptions_total > 0
    assert engine.counts().prefix_hit_tokens_total > sum(answer.num_cached_tokens for answer in answers.values())
    check(other, requests, answers)


@pytest.mark.parametrize("caching", ["on", "off"])
def test_choices_that_share_their_prompt(tiny_model: TinyModel, caching: str) -> None:
    runner, other = runners_of(tiny_model("llama"), num_blocks=64)
    prompt = random_prompts([57], vocab_size=VOCABULARY, seed=5)[0]
    requests = [ask("many", prompt, choice=choice) for choice in range(8)]
    answers = answers_of(engine_of(runner, prefix_caching=caching), requests)
    assert check(other, requests, answers) == 7 * 48
    assert len({tuple(answer.token_ids) for answer in answers.values()}) == 8


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_the_default_model_after_a_shared_system_prompt_and_in_a_conversation(default_model: Path) -> None:
    runners = runners_of(default_model, num_blocks=200)
    system, *rest = random_prompts([150, 5, 30, 12, 16], vocab_size=49_000, seed=6)
    share_a_system_prompt(runners, system, rest)
    hold_a_conversation(runners, [system[:70], *rest[:2]])
