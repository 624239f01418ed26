"""Any load, played through an engine that looks ahead and through one that does not: every owner hears the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.contracts.messages import Accepted, Event, Finished, Refused, Scheduled, SequenceKey, Tokens
from tests.engine.core.harness import World, submit
from tests.engine.core.runners import AheadCacheRunner

pytestmark = pytest.mark.heavy

_REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from([5, 8, 13, 16, 19, 3, 11, 22, 1, 40, 60]),
        "max_tokens": st.sampled_from([14, 24, 20, 1, 2, 8]),
        "ignore_eos": st.booleans(),
        "min_tokens": st.sampled_from([0, 0, 1]),
        "stop_token_ids": st.sampled_from([(), (), (3,), (3, 9, 24)]),
        "stem": st.sampled_from(["", "", "s", "t"]),
        "tenant": st.sampled_from(["ann", "bob"]),
        "priority": st.sampled_from([0, 0, 1, -2]),
        "num_logprobs": st.sampled_from([None, None, 0, 2]),
        "num_prompt_logprobs": st.sampled_from([None, None, None, 0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 0.5]),
    }
)
_EMBEDDING = st.fixed_dictionaries(
    {"prompt": st.sampled_from([5, 22, 40]), "max_tokens": st.just(0), "embeds": st.just(True)}
)
_ARRIVALS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 3), st.one_of(_REQUEST, _REQUEST, _REQUEST, _EMBEDDING)), max_size=12
)
"""Steps before it comes, choices, and what it asks for."""
_TUNABLES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["continuous", "continuous", "static"]),
        "max_running": st.sampled_from([8, 5, 3, 1]),
        "max_batch_tokens": st.integers(16, 64),
        "max_prefill_chunk": st.sampled_from([40, 17, 8, 4]),
        "prefill_share": st.sampled_from([0.0, 0.5, 1.0]),
        "order": st.sampled_from(["fcfs", "priority", "fair"]),
        "kv_limit_ratio": st.sampled_from([1.0, 1.0, 0.5]),
        "prefix_caching": st.sampled_from(["on", "off"]),
    }
)
_Heard = dict[SequenceKey, list[Any]]


def _play(world: World, arrivals: list[tuple[int, int, dict[str, Any]]]) -> _Heard:
    """Submit all, some steps apart, and run to the end; what was heard of each sequence, but for times."""
    heard: _Heard = {}

    def step() -> None:
        world.now += 0.001
        for event in world.step():
            if isinstance(event, Accepted | Scheduled):
                continue  # how many were before it, and for how long, is a matter of the step
            heard.setdefault(event.key, []).append(_without_times(event))

    for number, (num_steps, num_choices, request) in enumerate(arrivals):
        for _ in range(num_steps):
            step()
        reading = request.get("num_prompt_logprobs")
        for choice in range(num_choices):
            # One choice reads the prompt, the others may share it.
            own = {} if choice == 0 or reading is None else {"num_prompt_logprobs": None}
            world.submit(submit(f"r{number}", choice=choice, seed=choice, **{**request, **own}))
    for _ in range(3000):
        if not world.engine.has_work:
            break
        step()
    world.check_ended()
    return heard


def _without_times(event: Event) -> Any:
    match event:
        case Tokens():
            return event.start_index, event.token_ids, event.logprobs, event.prompt_logprobs, event.timings is not None
        case Finished():
            return event.reason, event.num_generated, event.message, event.embedding
        case Refused():
            return event.code, event.message
    raise AssertionError(f"{event} has no place in this load")


def _decoded(world: World) -> dict[SequenceKey, int | None]:
    """Positions that each sequence's own account says were decoded; None for one that gave way."""
    decoded: dict[SequenceKey, int | None] = {}
    for key, ending in world.ledger.endings.items():
        if isinstance(ending, Finished):
            spans = [span for span in ending.timings.spans if span.kind == "decode"]
            total = sum(span.num_tokens for span in spans)
            decoded[key] = None if ending.timings.num_preemptions else total
    return decoded


@dataclasses.dataclass(frozen=True)
class _Total:
    behind: list[int] = dataclasses.field(default_factory=list)
    discarded: list[int] = dataclasses.field(default_factory=list)


def test_every_owner_hears_the_same_of_any_load() -> None:
    total = _Total()

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(arrivals=_ARRIVALS, tunables=_TUNABLES)
    def check(arrivals: list[tuple[int, int, dict[str, Any]]], tunables: dict[str, Any]) -> None:
        through = World(num_blocks=20, tunables=tunables, looks_ahead=False)
        ahead = World(num_blocks=20, tunables=tunables, looks_ahead=True)
        assert _play(through, arrivals) == _play(ahead, arrivals)
        one, other = through.counts(), ahead.counts()
        assert one.generated_tokens_total == other.generated_tokens_total
        # What choices share, and is counted once, depends on who runs when.
        is_shared = any(num_choices > 1 for _, num_choices, _ in arrivals)
        assert is_shared or one.prompt_tokens_total == other.prompt_tokens_total
        assert one.discarded_tokens_total == 0
        before, after = _decoded(through), _decoded(ahead)
        assert all(before[key] == after[key] for key in before if None not in {before[key], after[key]})
        assert isinstance(ahead.runner, AheadCacheRunner)
        total.behind.append(ahead.runner.num_launched_behind)
        total.discarded.append(other.discarded_tokens_total)

    check()
    assert sum(total.behind) > 300
    assert sum(total.discarded) > 20
