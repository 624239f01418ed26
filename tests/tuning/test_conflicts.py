"""Values that are admitted one by one and fight one another."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from serving.contracts.presets import PRESETS, preset_changes
from serving.contracts.tunables import Tunables, describe
from serving.tuning.conflicts import Envelope, conflicts_of, envelope_of

SMALL = Envelope(num_blocks=100, block_size=16, max_model_len=1024, max_step_tokens=4096)
NAMES = {spec.name for spec in describe()}


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_fights_itself(preset: str) -> None:
    assert conflicts_of(Tunables().changed(preset_changes(preset)), SMALL) == []


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"batch_window_ms": 500, "slo_ttft_ms": 300}, ("batch_window_ms", "slo_ttft_ms")),
        ({"batch_window_ms": 500, "max_queue_wait_ms": 500}, ("batch_window_ms", "max_queue_wait_ms")),
        ({"max_running": 17, "max_batch_tokens": 16, "max_prefill_chunk": 16}, ("max_running", "max_batch_tokens")),
        (
            {"max_running": 16, "max_batch_tokens": 16, "max_prefill_chunk": 16, "prefill_share": 0},
            ("max_running", "max_batch_tokens", "prefill_share"),
        ),
        ({"max_prefill_chunk": 193}, ("max_prefill_chunk", "max_batch_tokens")),
        ({"mode": "static", "batch_window_ms": 5, "prefill_share": 0.9}, ("prefill_share", "mode")),
        ({"mode": "static"}, ("batch_window_ms", "mode")),
        ({"max_long_prefills": 33}, ("max_long_prefills", "max_running")),
        ({"max_queue_requests": 1, "batch_window_ms": 5}, ("max_queue_requests", "batch_window_ms")),
        (
            {"early_reject": "on", "slo_ttft_ms": 60_000},
            ("early_reject", "slo_ttft_ms", "max_queue_wait_ms"),
        ),
        ({"max_running": 101}, ("max_running", "kv_limit_ratio")),
        ({"long_prompt_tokens": 2000}, ("long_prompt_tokens",)),
        ({"max_queue_tokens": 1000}, ("max_queue_tokens",)),
        ({"kv_limit_ratio": 0.5}, ("kv_limit_ratio",)),
        ({"max_batch_tokens": 4097}, ("max_batch_tokens",)),
    ],
)
def test_values_that_fight_one_another_are_named_with_both_figures(
    changes: dict[str, Any], fields: tuple[str, ...]
) -> None:
    (conflict,) = conflicts_of(Tunables().changed(changes), SMALL)
    assert conflict.fields == fields
    assert set(fields) <= NAMES
    assert conflict.message.endswith(".")
    assert conflicts_of(Tunables(), SMALL) == []


def test_without_an_engine_nothing_is_said_of_its_size() -> None:
    assert conflicts_of(Tunables(max_running=1000, max_batch_tokens=2000, kv_limit_ratio=0.01)) == []
    assert envelope_of([]) is None


def test_the_smallest_engine_counts() -> None:
    other = Envelope(num_blocks=50, block_size=32, max_model_len=4096)
    assert envelope_of([SMALL, other]) == dataclasses.replace(SMALL, num_blocks=50)
    assert envelope_of([other, dataclasses.replace(other, max_step_tokens=64), SMALL]) == dataclasses.replace(
        SMALL, num_blocks=50, max_step_tokens=64
    )
    unbounded = dataclasses.replace(SMALL, max_step_tokens=None)
    assert conflicts_of(Tunables(max_batch_tokens=65_536), unbounded) == []
