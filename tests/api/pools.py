"""Pools beside the scripted gateway's own."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables
from serving.gateway.pools import PoolView
from tests.api.conftest import MODEL, ScriptedServices

BULK, SPARE = PoolName("bulk"), PoolName("spare")


def beside(view: PoolView, name: str, **changes: Any) -> PoolView:
    """Another pool of the same model."""
    return dataclasses.replace(view, **{"name": PoolName(name), "tunables": Tunables(), "num_engines": 1, **changes})


def sends_long_to(view: PoolView, pool: str, *, above: int, **tunables: Any) -> PoolView:
    wanted = Tunables(long_prompt_pool=pool, long_prompt_tokens=above, **tunables)
    return dataclasses.replace(view, tunables=wanted)


async def waiting(services: ScriptedServices, pool: str) -> int:
    """What the door counts as waiting in the pool, in sequences."""
    return int(await services.redis.hget(keys.permit_weights(PoolName(pool)), "total:requests") or 0)  # type: ignore[misc]


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields}
