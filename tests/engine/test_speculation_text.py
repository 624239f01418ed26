"""The default model's text with guesses is its text without them, token for token, on every backend."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Finished, SequenceKey, Submit, TokenLogprobs, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from serving.engine.stats import EngineCounts
from tests.engine.playing import runner_of

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

_PASSAGE = (
    "The Romantic movement began as a reaction against the order of reason. Poets turned to nature, to memory and to"
    " the language of ordinary people."
)
_CODE = 'def area(width, height):\n    """Of a rectangle."""\n    return width * height\n'
_QUESTIONS = (
    f"Repeat this text word for word: {_PASSAGE}",
    f"Correct the spelling of this text: {_PASSAGE}",
    f"Add a function for the volume to this code and print all of it:\n{_CODE}",
    f"Rename height to depth in this code:\n{_CODE}",
    "Count from 1 to 30.",
    "Write the word 'engine' twenty times.",
    "What is the capital of France?",
    "Explain gravity to a child.",
    "List the days of the week, then list them again.",
    "Name three rivers.",
    "Write a haiku about rain.",
    "Translate 'good morning' into Spanish.",
)
_NUM_TOKENS = 32
Answer = tuple[list[int], list[TokenLogprobs], str]


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in _QUESTIONS]
    return [tokenizer.encode(chat).ids for chat in chats]


@pytest.fixture(scope="module", params=["torch", "cpu"])
def runner(request: pytest.FixtureRequest, default_model: Path, kernels_folder: Path) -> ModelRunner:
    return runner_of(default_model, num_blocks=400, backend=request.param, kernels_folder=kernels_folder)


def _submits(prompts: Sequence[list[int]], sampling: Sequence[dict[str, Any]]) -> list[Submit]:
    return [
        Submit(
            key=SequenceKey(RequestId(f"r{index}"), 0),
            attempt=1,
            owner_id=OwnerId("test"),
            tenant="test",
            prompt_ids=prompt,
            params=SamplingParams(max_tokens=_NUM_TOKENS, seed=index, **sampling[index % len(sampling)]),
        )
        for index, prompt in enumerate(prompts)
    ]


def _answers(
    runner: ModelRunner, submits: Sequence[Submit], *, switching: bool = False, **tunables: Any
) -> tuple[dict[SequenceKey, Answer], EngineCounts]:
    """What everyone is told. With `switching`, both tunables change at random before every other step.

    The clock stands, so that rows cost nothing and guesses are made wherever they may be.
    """
    chosen = Tunables().changed({"max_queue_wait_ms": 3_600_000, "max_running": 6, "kv_watermark_ratio": 0, **tunables})
    engine = Engine(runner, tunables=chosen, clock=lambda: 0.0)
    chance = random.Random(5)
    tokens: dict[SequenceKey, list[int]] = {submit.key: [] for submit in submits}
    logprobs: dict[SequenceKey, list[TokenLogprobs]] = {submit.key: [] for submit in submits}
    reasons: dict[SequenceKey, str] = {}
    for submit in submits:
        engine.submit(submit)
    while engine.has_work:
        if switching and chance.random() < 0.5:
            changes = {"speculation": chance.choice(["on", "off"]), "max_draft_tokens": chance.randint(1, 16)}
            engine.retune(engine.tunables_version + 1, engine.tunables.changed(changes))
        for _, event in engine.step():
            if isinstance(event, Tokens):
                tokens[event.key] += event.token_ids
                logprobs[event.key] += event.logprobs or []
            elif isinstance(event, Finished):
                reasons[event.key] = event.reason
        engine.check_invariants()
    return {key: (tokens[key], logprobs[key], reasons[key]) for key in tokens}, engine.counts()


_GREEDY: Sequence[dict[str, Any]] = ({"temperature": 0.0}, {"temperature": 0.0, "num_logprobs": 2})
_SAMPLED: Sequence[dict[str, Any]] = (
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9, "num_logprobs": 0},
    {"temperature": 0.5, "top_k": 20, "min_tokens": 20, "stop_token_ids": (30, 28)},
    {"temperature": 0.4, "logit_bias": ((2, -100.0), (28, 2.0))},
    {"temperature": 0.6, "frequency_penalty": 0.3},
)


@pytest.mark.parametrize("sampling", [_GREEDY, _SAMPLED], ids=["greedy", "sampled"])
def test_text_with_guesses_is_the_text_without(
    runner: ModelRunner, prompts: list[list[int]], sampling: Sequence[dict[str, Any]]
) -> None:
    submits = _submits(prompts, sampling)
    expected, without = _answers(runner, submits, speculation="off")
    answers, counts = _answers(runner, submits, speculation="on")
    assert answers == expected
    assert (without.drafted_tokens_total, without.accepted_tokens_total) == (0, 0)
    assert counts.accepted_tokens_total > 10
    # Each token but the first and last is computed by decode once: as a draft that was kept, or by itself.
    by_itself = counts.decode_tokens_total - counts.drafted_tokens_total
    assert by_itself == without.decode_tokens_total - counts.accepted_tokens_total


def test_text_stays_the_same_while_guessing_is_switched_under_load(
    runner: ModelRunner, prompts: list[list[int]]
) -> None:
    submits = _submits(prompts, _SAMPLED)
    expected, _ = _answers(runner, submits, speculation="off")
    # Memory for a few of them, so that some give way while guesses are made.
    answers, counts = _answers(runner, submits, switching=True, kv_limit_ratio=0.1, max_prefill_chunk=20)
    assert answers == expected
    assert counts.accepted_tokens_total > 0
