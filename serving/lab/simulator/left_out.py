"""What a simulation does not do as the product does, wherever that matters: in words, beside its result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.lab.costs.model import CostModel
from serving.lab.workloads.workload import Workload

_CALENDAR: Final = ("tokens_per_day", "tokens_per_month")
_TERMS: Final = {
    "prefill_token_seconds": "a token of prefill",
    "prefill_position_seconds": "the length of prompts",
    "decoding_seconds": "a sequence that decodes",
    "context_token_seconds": "the length of contexts",
}


def notes_of_left_out(
    workload: Workload, *, tunables: Tunables, cost: CostModel, quotas: Mapping[str, Quotas], num_engines: int
) -> tuple[str, ...]:
    """A sentence for each that a reader of this simulation must know of."""
    tenants = {each.tenant for each in workload.classes}
    named = {tenant: each for tenant, each in quotas.items() if tenant in tenants and not each.is_empty}
    return (*_of_tunables(tunables), *_of_quotas(named, num_engines), *_of_cost(cost))


def part_of_quotas(quotas: Quotas, num_engines: int) -> Quotas:
    """What one engine of a fleet, which is simulated by itself, is held to of what all share."""
    shared = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests")
    parts = {name: math.ceil(bound / num_engines) for name in shared if (bound := getattr(quotas, name)) is not None}
    return msgspec.structs.replace(quotas, **parts)


def _of_tunables(tunables: Tunables) -> Iterator[str]:
    if tunables.speculation == "on":
        yield (
            "Speculation is on and was left out: which drafts are right depends on texts, and a simulation has none. A "
            "real engine may be faster."
        )
    if tunables.long_prompt_pool:
        yield (
            f"Prompts of more than {tunables.long_prompt_tokens} tokens were played here: in truth pool "
            f"{tunables.long_prompt_pool} takes them."
        )


def _of_quotas(quotas: Mapping[str, Quotas], num_engines: int) -> Iterator[str]:
    calendar = sorted(
        tenant for tenant, each in quotas.items() if any(getattr(each, name) is not None for name in _CALENDAR)
    )
    if calendar:
        yield f"Quotas of a day or month were left out: {_whose(calendar)}."
    if quotas and num_engines > 1:
        yield f"Each engine was held to its part of the quotas: {_whose(sorted(quotas))}."


def _of_cost(cost: CostModel) -> Iterator[str]:
    if cost.fit is None:
        return
    if cost.fit.assumed:
        terms = ", ".join(_TERMS.get(name, name) for name in cost.fit.assumed)
        yield (
            f"The engine's own steps told little of what these cost, which is taken to be near the default model's: "
            f"{terms}."
        )
    if not cost.fit.num_ways:
        yield "How long a request is on its way to the engine was not seen: the default is taken."


def _whose(tenants: list[str]) -> str:
    return ", ".join(tenant or "the Lab's own tenant" for tenant in tenants)
