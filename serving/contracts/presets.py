"""Tunables that go together: the same engine, set for one kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Changes on the defaults, and why they serve that work."""

    reason: str
    changes: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "mixed": Preset(
        reason="The defaults: new prompts get half of each step while others decode",
        changes={},
    ),
    "chat": Preset(
        reason="Steady streams: decodes first and small chunks, so that a long prompt stalls nobody",
        changes={"max_batch_tokens": 128, "max_prefill_chunk": 96, "prefill_share": 0.0, "max_long_prefills": 1},
    ),
    "bulk": Preset(
        reason="Throughput: a large batch, filled at once by whole prompts that go first; streams stall meanwhile",
        changes={
            "max_running": 64,
            "max_batch_tokens": 4096,
            "max_prefill_chunk": 2048,
            "prefill_share": 1.0,
            "max_long_prefills": 4,
        },
    ),
}


def preset_changes(name: str) -> dict[str, Any]:
    """The values that preset `name` gives to every tunable that any preset sets, so that one undoes another.

    Tunables that belong to no preset are left alone. Raises `InvalidValue` for a name that is none.
    """
    if name not in PRESETS:
        raise InvalidValue("preset", name, "one of " + ", ".join(PRESETS))
    governed = {field for preset in PRESETS.values() for field in preset.changes}
    defaults = Tunables().as_dict()
    return {field: PRESETS[name].changes.get(field, defaults[field]) for field in defaults if field in governed}
