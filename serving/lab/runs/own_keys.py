"""Keys with which the Lab asks its own server: made for one run, ended with it. Blocking."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from django.db.models import Q
from django.utils import timezone
from redis import Redis

from serving.admission import services as admission
from serving.admission.models import ApiKey
from serving.contracts.actors import Actor

LAB_TENANT = "lab"
"""Whose requests those are for which a workload names no tenant."""
LAB = Actor("the Lab", "system")
_LABEL = "load test: run"


def make_keys(run_id: int, tenants: Iterable[str], *, seconds: float) -> dict[str, str]:
    """A key for each of these tenants, and one for the Lab's own under the empty name, good for so many seconds."""
    expires_at = timezone.now() + datetime.timedelta(seconds=seconds)
    keys = {}
    for tenant in {"", *tenants}:
        made = admission.create_key(tenant or LAB_TENANT, label=f"{_LABEL} {run_id}", expires_at=expires_at, author=LAB)
        keys[tenant] = made.text
    return keys


def own_prefixes(run_id: int) -> frozenset[str]:
    """The public parts of the keys that were made for a run."""
    return frozenset(ApiKey.objects.filter(label=f"{_LABEL} {run_id}").values_list("prefix", flat=True))


def prefixes_since(moment: datetime.datetime) -> frozenset[str]:
    """The public parts of the keys that were made for runs and that were good at some time since the moment."""
    of_runs = ApiKey.objects.filter(label__startswith=f"{_LABEL} ")
    good = of_runs.filter(Q(revoked_at=None) | Q(revoked_at__gte=moment))
    return frozenset(good.values_list("prefix", flat=True))


def end_keys(run_id: int, *, redis: Redis) -> None:
    """End all keys that were made for a run. Safe to repeat."""
    for key in ApiKey.objects.filter(label=f"{_LABEL} {run_id}", revoked_at=None):
        admission.revoke_key(key.tenant_id, key.prefix, author=LAB, redis=redis, reason=f"run {run_id} is over")
