"""The pools that commands are told of by name."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import CommandError

from serving.config.pools import PoolSettings


def configured_pool(name: str) -> PoolSettings:
    """The settings of a pool; raises `CommandError`, naming those that there are, where there is none of that name."""
    pools: dict[str, PoolSettings] = settings.FOOTPLATE_POOLS
    if name not in pools:
        raise CommandError(f"no pool {name[:100]!r} is set up here, only {', '.join(pools)}: see FOOTPLATE_POOLS")
    return pools[name]
