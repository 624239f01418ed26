"""A sequence's own account of its time in the engine: complete, in order, bounded, and told with its end."""

from __future__ import annotations

import itertools

import pytest

from serving.contracts.messages import Finished, Span, Tokens
from serving.engine.spans import SpanLog
from tests.engine.core.harness import World, submit


def spans_of(world: World, name: str, choice: int = 0) -> tuple[Span, ...]:
    ending = world.ending(name, choice)
    assert isinstance(ending, Finished)
    return ending.timings.spans


def total(spans: tuple[Span, ...], kind: str) -> int:
    return sum(span.num_tokens for span in spans if span.kind == kind)


def assert_in_order(spans: tuple[Span, ...]) -> None:
    """None begins before the one before it ended."""
    for earlier, later in itertools.pairwise(spans):
        assert later.offset_ms >= round(earlier.offset_ms + earlier.duration_ms, 2) - 0.02


def run_slowly(world: World, *, seconds: float = 0.01) -> None:
    """To the end, each step taking its time."""
    world.runner.before_each_run = lambda: setattr(world, "now", world.now + seconds)
    world.run()


def test_prefill_and_decode_add_up_to_prompt_and_answer() -> None:
    world = World(num_blocks=256, tunables={"max_prefill_chunk": 16, "max_batch_tokens": 64})
    world.submit(submit("long", prompt=40, max_tokens=9, ignore_eos=True))
    world.now += 2.5
    run_slowly(world)
    spans = spans_of(world, "long")
    assert [(span.kind, span.num_tokens) for span in spans] == [
        ("prefill", 16),
        ("prefill", 16),
        ("prefill", 8),
        ("decode", 8),
    ]
    assert [span.offset_ms for span in spans] == [0.0, 10.0, 20.0, 30.0]
    assert [span.duration_ms for span in spans] == [10.0, 10.0, 10.0, 80.0]
    assert_in_order(spans)


def test_what_was_found_cached_is_no_prefill() -> None:
    world = World(num_blocks=256)
    prompt = list(range(1, 41))
    world.submit(submit("first", prompt=prompt, max_tokens=1))
    world.run()
    world.submit(submit("second", prompt=prompt, max_tokens=3, ignore_eos=True))
    world.run()
    ending = world.ending("second")
    assert isinstance(ending, Finished)
    assert ending.timings.num_cached_tokens > 0
    assert total(ending.timings.spans, "prefill") == 40 - ending.timings.num_cached_tokens
    assert total(ending.timings.spans, "decode") == 2


def test_a_preemption_is_told_from_giving_way_to_coming_back() -> None:
    world = World(num_blocks=8)
    world.submit(*[submit(name, prompt=14, max_tokens=8, ignore_eos=True) for name in "ab"])
    run_slowly(world)
    assert world.counts().preemptions_total == 1
    spans = spans_of(world, "b")
    kinds = [span.kind for span in spans]
    assert kinds == ["prefill", "decode", "preempted", "prefill", "decode"]
    before, gap, again = spans[1:4]
    assert gap.offset_ms == round(before.offset_ms + before.duration_ms, 2)
    assert again.offset_ms == round(gap.offset_ms + gap.duration_ms, 2)
    assert gap.num_tokens == 0
    assert gap.duration_ms > 0
    # Each prefill samples one token, each decode step another.
    assert total(spans, "decode") == 8 - kinds.count("prefill")
    assert total(spans_of(world, "a"), "decode") == 7
    world.check_ended()


def test_a_span_says_how_many_were_computed_beside_it() -> None:
    world = World(num_blocks=256)
    world.submit(*[submit(name, prompt=4, max_tokens=3, ignore_eos=True) for name in "abc"])
    world.run()
    assert [span.batch_size for span in spans_of(world, "a")] == [3, 3]


def test_the_first_tokens_tell_what_there_was_before_them() -> None:
    world = World(num_blocks=256)
    world.submit(submit("a", prompt=4, max_tokens=3, ignore_eos=True))
    (first,) = [event for event in world.step() if isinstance(event, Tokens)]
    assert first.timings is not None
    assert [(span.kind, span.num_tokens) for span in first.timings.spans] == [("prefill", 4)]


def test_what_is_aborted_while_it_runs_tells_how_far_it_came() -> None:
    world = World(num_blocks=256)
    world.submit(submit("a", prompt=4, max_tokens=30, ignore_eos=True))
    world.step(6)
    world.abort("a")
    world.run()
    assert [(span.kind, span.num_tokens) for span in spans_of(world, "a")] == [("prefill", 4), ("decode", 5)]


@pytest.mark.parametrize("num_tokens", [64, 65, 64 * 62, 50_000])
def test_a_long_answer_is_cut_into_runs_and_told_in_64_spans_at_most(num_tokens: int) -> None:
    log = SpanLog()
    log.add_prefill(0.0, 1.0, num_tokens=100, batch_size=1)
    for index in range(num_tokens):
        position = 100 + index
        if position + 1 > log.run_until:
            log.begin_run(1.0 + index, position=position, batch_size=1 + index % 7)
    spans = log.told(1.0 + num_tokens, position=100 + num_tokens, since=0.0)
    assert len(spans) <= 64
    assert (total(spans, "prefill"), total(spans, "decode")) == (100, num_tokens)
    assert spans[-1].offset_ms + spans[-1].duration_ms == pytest.approx(1000.0 * (1 + num_tokens))
    assert_in_order(spans)
    assert log.told(1.0 + num_tokens, position=100 + num_tokens, since=0.0) == spans


def test_one_that_gives_way_all_the_time_is_told_in_64_spans_at_most() -> None:
    log = SpanLog()
    for index in range(500):
        log.add_prefill(index, index + 0.2, num_tokens=4, batch_size=2)
        log.begin_run(index + 0.2, position=4, batch_size=2)
        log.note_preempted(index + 0.5, position=6, batch_size=2)
    spans = log.told(500.0, position=6, since=0.0)
    assert len(spans) <= 64
    assert_in_order(spans)
    assert spans[0].offset_ms == 0.0
    assert spans[-1] == Span("preempted", 499_500.0, 500.0, 0, 2)
