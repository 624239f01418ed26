"""An engine that guesses tells of several tokens at once: nobody can tell it from tokens that come one by one."""

from __future__ import annotations

from typing import Any

import pytest

from serving.contracts.ids import EngineId, RequestId
from serving.contracts.messages import SequenceKey, Tokens
from serving.contracts.sampling import SamplingParams
from serving.gateway.delivery import Delivery, Verdict
from serving.gateway.generation import ChoiceDelta, Generation, Usage
from serving.gateway.logprobs import EntryLine, TokenEntry
from serving.gateway.requests import Choice, InFlight
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings
from serving.gateway.text.tokenizer import TextModel
from tests.gateway.harness import POOL, RecordingObserver, logprob_of

_TEXT = "One two three.\nObservation: ďábelské 👨‍👩‍👧 東京."


async def _delivered(
    text_model: TextModel, *, size: int, stop: tuple[str, ...], num_logprobs: int | None
) -> tuple[str, list[TokenEntry], Usage, int, Verdict]:
    """What comes of events of `size` tokens each: text, entries, usage, the tokens that deltas count, the verdict."""
    params = SamplingParams(max_tokens=100, seed=1, num_logprobs=num_logprobs)
    generation = Generation(
        request_id=RequestId("req_1"),
        pool=POOL,
        tenant="tests",
        prompt_ids=[5, 6],
        params=(params,),
        stop=stop,
        arrived_at=0.0,
    )
    stream = GenerationStream(num_prompt_tokens=2, num_choices=1, on_close=lambda: None)
    choice = Choice(
        key=SequenceKey(generation.request_id, 0),
        params=params,
        detokenizer=Detokenizer(text_model),
        stop_strings=StopStrings(stop),
        entries=None if num_logprobs is None else EntryLine(text_model.speller),
        submitted_at=0.0,
        last_heard_at=0.0,
    )
    request = InFlight(generation=generation, text_model=text_model, choices=[choice], stream=stream, permit=None)
    observer: Any = RecordingObserver()
    delivery = Delivery(observer=observer, clock=lambda: 1.0)
    verdict: Verdict = None
    token_ids = text_model.encode(_TEXT, add_special_tokens=False)
    for begin in range(0, len(token_ids), size):
        new_ids = token_ids[begin : begin + size]
        told = None if num_logprobs is None else [logprob_of(token_id) for token_id in new_ids]
        event = Tokens(choice.key, 1, begin, new_ids, None, told)
        verdict = delivery.deliver(request, choice, event, engine_id=EngineId("engine"))
        if verdict is not None:
            break
    deltas: list[ChoiceDelta] = []
    while not stream._ready.empty():
        deltas.append(await stream.__anext__())
    text = "".join(delta.text for delta in deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    num_told = sum(delta.num_tokens for delta in deltas)
    assert len(choice.generated_ids) == stream.usage.completion_tokens
    return text, entries, stream.usage, num_told, verdict


@pytest.mark.parametrize("num_logprobs", [None, 1])
@pytest.mark.parametrize("stop", [("three",), ("\nObs", "zzz"), ("👩",), (".\n", "wo t"), ("nowhere",)], ids=repr)
@pytest.mark.parametrize("size", [2, 3, 5, 100])
async def test_text_usage_and_log_probabilities_do_not_depend_on_how_many_tokens_come_at_once(
    text_model: TextModel, size: int, stop: tuple[str, ...], num_logprobs: int | None
) -> None:
    expected = await _delivered(text_model, size=1, stop=stop, num_logprobs=num_logprobs)
    assert expected[-1] == (None if stop == ("nowhere",) else "stopped")
    assert await _delivered(text_model, size=size, stop=stop, num_logprobs=num_logprobs) == expected
