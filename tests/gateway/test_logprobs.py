"""Log probabilities come with the text that they belong to, neither before nor after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.contracts.messages import TokenLogprobs
from serving.gateway.generation import ChoiceDelta
from serving.gateway.logprobs import EntryLine, TokenEntry
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings
from serving.gateway.text.tokenizer import TextModel
from tests.gateway.harness import Harness, RunningWorker, eventually, logprob_of

TEXT = "Thought ok\nObservation: ďábelské 👨‍👩‍👧 東京."


@pytest.fixture
async def harness(
    start_worker: Callable[..., RunningWorker], start_gateway: Callable[..., Any]
) -> tuple[Harness, RunningWorker]:
    running = start_worker()
    harness = await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return harness, running


async def deltas_of(stream: GenerationStream) -> list[ChoiceDelta]:
    deltas = [delta async for delta in stream]
    await stream.aclose()
    return deltas


def entries_of(deltas: list[ChoiceDelta]) -> list[TokenEntry]:
    return [entry for delta in deltas for entry in delta.logprobs or ()]


def check_aligned(deltas: list[ChoiceDelta]) -> None:
    """What each delta tells of its tokens is told of its own text, and the bytes told are the text's."""
    text = ""
    told = b""
    for delta in deltas:
        begin = len(text)
        text += delta.text
        for entry in delta.logprobs or ():
            told += entry.spelling.text_bytes or b""
            assert entry.text_offset + entry.text_length <= len(text) or delta.finish_reason == "stop"
            assert entry.text_offset + entry.text_length >= begin
            # But for what ends an answer that ends by itself, which has no text.
            assert entry.text_offset < len(text) or not entry.spelling.text_bytes
    if deltas[-1].finish_reason == "length":
        assert told.decode(errors="replace") == text
    assert told.decode(errors="replace").startswith(text)


async def test_each_token_is_told_of_once_with_its_text(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    token_ids = running.runner.scripts[1] = gateway.tokens(TEXT)
    deltas = await deltas_of(gateway.ask(1, num_logprobs=1))
    check_aligned(deltas)
    entries = entries_of(deltas)
    (eos,) = running.runner.eos_token_ids
    assert [entry.token_id for entry in entries] == [*token_ids, eos]
    assert [entry.logprob for entry in entries] == [logprob_of(entry.token_id).logprob for entry in entries]
    assert [[top.token_id for top in entry.top] for entry in entries] == [[id_ - 1] for id_ in [*token_ids, eos]]
    assert "".join(TEXT[entry.text_offset :][: entry.text_length] for entry in entries) == TEXT


async def test_who_does_not_ask_is_told_nothing(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens(TEXT)
    deltas = await deltas_of(gateway.ask(1))
    assert all(delta.logprobs is None and delta.prompt is None for delta in deltas)


async def test_nothing_is_told_of_what_a_stop_string_cuts_off(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens(TEXT)
    deltas = await deltas_of(gateway.ask(1, num_logprobs=0, stop=("Observation:",)))
    check_aligned(deltas)
    assert "".join(delta.text for delta in deltas) == "Thought ok\n"
    joined = b"".join(entry.spelling.text_bytes or b"" for entry in entries_of(deltas))
    assert joined == b"Thought ok\n"


@pytest.mark.parametrize("stop", ["⸻", "⸻c"])
async def test_no_bytes_are_told_of_a_character_that_a_stop_string_cuts_off(
    harness: tuple[Harness, RunningWorker], stop: str
) -> None:
    """Whether its bytes come before the text that they follow is certain, or after."""
    gateway, running = harness
    assert len(gateway.tokens("⸻")) > 1
    running.runner.scripts[1] = [token for piece in ("a", "⸻", "c", " d") for token in gateway.tokens(piece)]
    deltas = await deltas_of(gateway.ask(1, num_logprobs=0, stop=("ab", stop)))
    check_aligned(deltas)
    assert "".join(delta.text for delta in deltas) == "a"
    assert [entry.spelling.text_bytes for entry in entries_of(deltas)] == [b"a"]


async def test_prompts_tokens_are_told_with_the_first_text(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("Yes.")
    prompt = "Once upon a time 東"
    deltas = await deltas_of(gateway.ask(1, prompt=prompt, num_prompt_logprobs=1))
    assert [delta.prompt is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert deltas[0].prompt is not None
    told = deltas[0].prompt.entries()
    assert [entry.token_id for entry in told] == gateway.tokens(prompt)
    assert [entry.logprob for entry in told[1:]] == [logprob_of(entry.token_id).logprob for entry in told[1:]]
    assert (told[0].logprob, told[0].top) == (None, ())
    assert "".join(prompt[entry.text_offset :][: entry.text_length] for entry in told) == prompt


async def test_a_prompt_of_one_token_is_told_of(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("Yes.")
    deltas = await deltas_of(gateway.ask(1, prompt="Once", num_prompt_logprobs=1))
    assert [delta.prompt is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert deltas[0].prompt is not None
    (entry,) = deltas[0].prompt.entries()
    assert ([entry.token_id], entry.logprob, entry.top) == (gateway.tokens("Once"), None, ())


async def test_what_was_told_of_the_prompt_outlives_an_engine_that_dies_while_the_text_is_held_back(
    start_worker: Callable[..., RunningWorker], start_gateway: Callable[..., Any]
) -> None:
    first, gateway = start_worker(step_seconds=0.05), await start_gateway()
    await eventually(lambda: bool(gateway.gateway.pools()[0].has_engines))
    script = [token for piece in ("Obs", "erv", "ing", " this.") for token in gateway.tokens(piece)]
    first.runner.scripts[1] = script
    stream = gateway.ask(1, num_prompt_logprobs=1, num_logprobs=0, stop=("Observation:",))
    await eventually(lambda: len(gateway.observer.named("first_token")) == 1)
    await asyncio.to_thread(first.leave)
    second = start_worker()
    second.runner.scripts[1] = script
    deltas = await deltas_of(stream)
    assert "".join(delta.text for delta in deltas) == "Observing this."
    check_aligned(deltas)
    (eos,) = second.runner.eos_token_ids
    assert [entry.token_id for entry in entries_of(deltas)] == [*script, eos]
    assert [delta.prompt is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert deltas[0].prompt is not None
    assert [entry.token_id for entry in deltas[0].prompt.entries()] == gateway.tokens("Once upon a time")
    assert second.runner.num_generated < len(script) + 1


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text("abcď👨字 \n", max_size=30),
    stops=st.lists(st.text("abcď字 ", min_size=1, max_size=4), max_size=3),
    size=st.integers(1, 4),
)
def test_entries_follow_the_text_however_it_is_held_back(
    text_model: TextModel, text: str, stops: list[str], size: int
) -> None:
    token_ids = text_model.encode(text, add_special_tokens=False)
    line, detokenizer, stop_strings = EntryLine(text_model.speller), Detokenizer(text_model), StopStrings(stops)
    found = TokenLogprobs(-1.0, [], [])
    given_text, told, stopped = "", b"", False
    for start in range(0, len(token_ids), size):
        group = token_ids[start : start + size]
        piece, stopped = stop_strings.push(line.push(group, [found] * len(group), detokenizer))
        given_text += piece
        entries = line.stop(piece) if stopped else line.release(piece)
        told += b"".join(entry.spelling.text_bytes or b"" for entry in entries)
        if stopped:
            break
        assert given_text.startswith(told.decode(errors="ignore"))
    if not stopped:
        given_text += detokenizer.finish() + stop_strings.finish()
        told += b"".join(entry.spelling.text_bytes or b"" for entry in line.finish())
        assert told.decode() == given_text == text
    else:
        # The bytes of what is given, and no token more than the one that the stop string cuts, if it cuts one.
        sizes = list(itertools.accumulate(len(text_model.speller.spell(id_).text_bytes or b"") for id_ in token_ids))
        wanted = len(given_text.encode())
        assert len(told) == next((size for size in [0, *sizes] if size >= wanted), 0)
        assert told.decode(errors="ignore").startswith(given_text)
