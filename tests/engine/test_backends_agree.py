"""Through the whole engine, every backend in bf16 takes the default model's tokens wherever fp32 is sure of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit, TokenLogprobs
from serving.contracts.sampling import SamplingParams
from serving.engine.model_runner import ModelRunner
from tests.engine.playing import Answer, playhouse, runner_of

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

_NUM_BLOCKS = 150
_NUM_TOKENS = 24
_SURE = 0.25
"""By how much the logarithm of the best token's probability must exceed the next one's."""
_TUNABLES = {"max_batch_tokens": 128, "max_prefill_chunk": 50, "prefix_caching": "on"}
_TEXTS = (
    "What is the capital of France?",
    "Explain gravity to a child.",
    "def fibonacci(n):\n",
    "In 1969, astronauts",
    "Œuvre, naïve, 東京 and 👋 are",
    "SELECT name FROM users WHERE",
    "The three laws of thermodynamics are",
    "Rivers run to the sea, and the sea is not full. " * 25,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Exact:
    """What fp32 says greedily after each of `prompts`, and what it expects at every place of prompt and answer."""

    prompts: list[list[int]]
    texts: list[list[int]]
    expected: list[list[TokenLogprobs]]


def _answers(runner: ModelRunner, prompts: Sequence[list[int]], params: SamplingParams) -> list[Answer]:
    keys = [SequenceKey(RequestId(f"r{index}"), 0) for index in range(len(prompts))]
    requests = [
        [Submit(key=key, attempt=1, owner_id=OwnerId("o"), tenant="t", prompt_ids=prompt, params=params)]
        for key, prompt in zip(keys, prompts, strict=True)
    ]
    with playhouse(runner) as house:
        answers = house.play(requests, _TUNABLES)[0][0]
    return [answers[key] for key in keys]


def _greedy_text(runner: ModelRunner, prompts: Sequence[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=_NUM_TOKENS, seed=0, temperature=0.0, ignore_eos=True)
    return [answer.token_ids for answer in _answers(runner, prompts, params)]


def _expectations(runner: ModelRunner, contexts: Sequence[list[int]]) -> list[list[TokenLogprobs]]:
    """The two most probable tokens at each place of the contexts but the first, given all that comes before."""
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0, num_prompt_logprobs=2)
    found = [answer.prompt_logprobs for answer in _answers(runner, contexts, params)]
    return [entries for entries in found if entries is not None]


@pytest.fixture(scope="module")
def exact(default_model: Path, kernels_folder: Path) -> Exact:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in _TEXTS]
    assert max(map(len, prompts)) > 256
    runner = runner_of(
        default_model, num_blocks=_NUM_BLOCKS, backend="torch", kernels_folder=kernels_folder, dtype="float32"
    )
    texts = _greedy_text(runner, prompts)
    contexts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    return Exact(prompts, texts, _expectations(runner, contexts))


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_a_backend_in_bf16_takes_every_token_of_which_fp32_is_sure(
    default_model: Path, kernels_folder: Path, exact: Exact, backend: str
) -> None:
    runner = runner_of(default_model, num_blocks=_NUM_BLOCKS, backend=backend, kernels_folder=kernels_folder)
    contexts = [prompt + text for prompt, text in zip(exact.prompts, exact.texts, strict=True)]
    found = _expectations(runner, contexts)
    assert [len(entries) for entries in found] == [len(context) - 1 for context in contexts]
    pairs = [
        pair
        for entries, others in zip(found, exact.expected, strict=True)
        for pair in zip(entries, others, strict=True)
    ]
    sure = [(one, other) for one, other in pairs if _is_sure(other)]
    assert len(sure) > len(pairs) / 2
    assert [one.top_ids[0] for one, _ in sure] == [other.top_ids[0] for _, other in sure]
    # Where it is not, what stands there is still about as probable.
    differences = sorted(abs(one.logprob - other.logprob) for one, other in pairs)
    assert differences[len(differences) // 2] < 0.05


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_a_backend_in_bf16_says_what_fp32_says_until_fp32_is_not_sure(
    default_model: Path, kernels_folder: Path, exact: Exact, backend: str
) -> None:
    runner = runner_of(default_model, num_blocks=_NUM_BLOCKS, backend=backend, kernels_folder=kernels_folder)
    num_sure = [
        len(list(itertools.takewhile(_is_sure, entries[len(prompt) - 1 :])))
        for prompt, entries in zip(exact.prompts, exact.expected, strict=True)
    ]
    assert sum(num_sure) > _NUM_TOKENS
    said = _greedy_text(runner, exact.prompts)
    assert [text[:count] for text, count in zip(said, num_sure, strict=True)] == [
        text[:count] for text, count in zip(exact.texts, num_sure, strict=True)
    ]


def _is_sure(entry: TokenLogprobs) -> bool:
    return entry.top_logprobs[0] - entry.top_logprobs[1] > _SURE
