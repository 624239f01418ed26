"""A model that rotates long sequences otherwise computes each in one way from its first token to its last, and lets
those of the two ways share no blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Finished, SequenceKey, Submit, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from tests.engine.driving import random_prompts, small_runner

pytestmark = pytest.mark.heavy

_ORIGINAL = 64
"""The context that the tiny model was trained with."""
(_PROMPT,) = random_prompts([40], vocab_size=301, seed=3)


def _submit(name: str, *, max_tokens: int, prompt: list[int] = _PROMPT) -> Submit:
    params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    return Submit(
        key=SequenceKey(RequestId(name), 0),
        attempt=1,
        owner_id=OwnerId("owner"),
        tenant="tenant",
        prompt_ids=prompt,
        params=params,
    )


def _engine(runner: ModelRunner) -> Engine:
    changes = {"prefix_caching": "on", "kv_watermark_ratio": 0, "max_prefill_chunk": 17}
    return Engine(runner, tunables=Tunables().changed(changes))


def _play(engine: Engine, *submits: Submit) -> dict[str, tuple[list[int], int]]:
    """What each says, and how many of its prompt's tokens were found cached."""
    said: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    for each in submits:
        engine.submit(each)
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Tokens):
                said.setdefault(event.key.request_id, []).extend(event.token_ids)
            if isinstance(event, Finished):
                cached[event.key.request_id] = event.timings.num_cached_tokens
        engine.check_invariants()
    return {name: (tokens, cached[name]) for name, tokens in said.items()}


@pytest.fixture
def runner(tiny_model: Callable[[str], Path]) -> ModelRunner:
    return small_runner(tiny_model("phi3-long"), num_blocks=200)


def test_how_long_a_sequence_may_grow_decides_how_it_is_computed(runner: ModelRunner) -> None:
    """Not how long it is: so it is the same from its first token to its last."""
    assert runner.long_from == _ORIGINAL
    (short, _) = _play(_engine(runner), _submit("a", max_tokens=_ORIGINAL - 40))["a"]
    (long, _) = _play(_engine(runner), _submit("a", max_tokens=_ORIGINAL - 40 + 1))["a"]
    (longer, _) = _play(_engine(runner), _submit("a", max_tokens=100))["a"]
    assert long[: len(short)] != short
    assert longer[: len(long)] == long


def test_the_two_kinds_share_no_blocks(runner: ModelRunner) -> None:
    short, long = _submit("short", max_tokens=20), _submit("long", max_tokens=90)
    alone = {each.key.request_id: _play(_engine(runner), each)[each.key.request_id][0] for each in (short, long)}
    engine = _engine(runner)
    assert _play(engine, short, long) == {name: (tokens, 0) for name, tokens in alone.items()}
    again = {"s": _submit("s", max_tokens=20), "l": _submit("l", max_tokens=90)}
    assert _play(engine, *again.values()) == {"s": (alone["short"], 32), "l": (alone["long"], 32)}


def test_a_long_prompt_goes_on_as_it_began(runner: ModelRunner) -> None:
    """The tokens generated before are the next request's prompt: both are long, and find each other's blocks."""
    engine = _engine(runner)
    (first, _) = _play(engine, _submit("a", max_tokens=60))["a"]
    (rest, num_cached) = _play(engine, _submit("b", max_tokens=20, prompt=_PROMPT + first[:40]))["b"]
    assert rest == first[40:]
    assert num_cached == 64
