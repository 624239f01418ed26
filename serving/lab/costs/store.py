"""Fitted costs, as they are kept. Blocking."""

from __future__ import annotations

from typing import Any

import msgspec

from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.models import FittedCost

_KEPT_FITS = 50


def latest_cost(pool: str) -> tuple[CostModel, Envelope]:
    """What the pool's steps cost, and what its engines have room for, as last fitted; the default ones where nothing
    was."""
    row = FittedCost.objects.filter(pool=pool).order_by("-fitted_at", "-pk").first()
    if row is None:
        return DEFAULT_COST, DEFAULT_ENVELOPE
    return msgspec.convert(row.content, type=CostModel), msgspec.convert(row.envelope, type=Envelope)


def newest_fit(pool: str) -> dict[str, Any] | None:
    """The fingerprint of what the newest fit was made on; None where there is none."""
    row = FittedCost.objects.filter(pool=pool).order_by("-fitted_at", "-pk").first()
    return None if row is None else dict(row.fingerprint)


def keep_cost(pool: str, cost: CostModel, envelope: Envelope, *, fingerprint: dict[str, Any]) -> None:
    """Keep a cost that was fitted; it is the pool's from now on. Of those before, the latest stay."""
    FittedCost.objects.create(
        pool=pool,
        content=msgspec.to_builtins(cost),
        envelope=msgspec.to_builtins(envelope),
        fingerprint=fingerprint,
    )
    stay = FittedCost.objects.filter(pool=pool).order_by("-fitted_at", "-pk").values_list("pk", flat=True)[:_KEPT_FITS]
    FittedCost.objects.filter(pool=pool).exclude(pk__in=list(stay)).delete()
