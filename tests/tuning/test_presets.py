"""Presets: tunables that go together."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from serving.contracts.errors import InvalidValue
from serving.contracts.presets import PRESETS, preset_changes
from serving.contracts.tunables import Tunables
from serving.tuning import selectors, services


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_admitted_and_says_why(name: str) -> None:
    preset = PRESETS[name]
    assert Tunables().changed(preset.changes).as_dict() == {**Tunables().as_dict(), **preset.changes}
    assert preset.reason
    assert "\n" not in preset.reason


def test_mixed_is_the_defaults() -> None:
    assert Tunables().changed(preset_changes("mixed")) == Tunables()


@pytest.mark.parametrize("before", PRESETS)
@pytest.mark.parametrize("after", PRESETS)
def test_a_preset_undoes_another_and_leaves_the_rest_alone(before: str, after: str) -> None:
    own = Tunables(order="fair", max_queue_requests=7)
    changed = own.changed(preset_changes(before)).changed(preset_changes(after))
    assert changed == own.changed(preset_changes(after))
    assert (changed.order, changed.max_queue_requests) == ("fair", 7)


def test_chat_prefers_decodes_and_bulk_prompts() -> None:
    chat, mixed, bulk = (Tunables().changed(preset_changes(name)) for name in ("chat", "mixed", "bulk"))
    assert chat.prefill_share < mixed.prefill_share < bulk.prefill_share
    assert chat.max_prefill_chunk < mixed.max_prefill_chunk < bulk.max_prefill_chunk
    assert chat.max_batch_tokens < mixed.max_batch_tokens < bulk.max_batch_tokens


def test_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="one of mixed, chat, bulk"):
        preset_changes("fast")


def test_command_stores_a_preset_as_a_version_with_its_reason(
    pool: str, redis: Redis, valkey: str, settings: Any
) -> None:
    settings.REDIS_URL = valkey
    services.change(pool, {"order": "fair"}, reason="a test", author="tests", redis=redis)
    output = io.StringIO()
    call_command("tunables", "preset", "chat", stdout=output)
    assert "version 3 is stored" in output.getvalue()
    expected = Tunables(order="fair").changed(PRESETS["chat"].changes)
    assert selectors.current_tunables(pool).tunables == expected
    assert selectors.versions(pool)[0].reason == f"preset chat: {PRESETS['chat'].reason}"
