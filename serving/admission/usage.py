"""The durable ledger: what each key of each tenant used on each day of UTC."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from django.db import transaction
from django.db.models import F

from serving.admission.models import Tenant, Usage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What was used and is not in the ledger yet. `key_prefix` is empty for what no key was used for."""

    tenant_id: int
    key_prefix: str
    day: datetime.date
    num_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: UsageRow) -> UsageRow:
        """Both together, as one row of this tenant, key and day."""
        return dataclasses.replace(
            self,
            num_requests=self.num_requests + other.num_requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


def add_usage(rows: Iterable[UsageRow]) -> None:
    """Add all of `rows` to the ledger, or, where the database fails, none. Blocking.

    Any number of processes may add at once: nothing is read that is written afterwards. What belongs to a tenant that
    is gone is dropped.
    """
    summed = _summed(rows)
    with transaction.atomic():
        known = set(Tenant.objects.filter(pk__in={row.tenant_id for row in summed}).values_list("pk", flat=True))
        kept = [row for row in summed if row.tenant_id in known]
        Usage.objects.bulk_create(
            [Usage(tenant_id=row.tenant_id, key_prefix=row.key_prefix, day=row.day) for row in kept],
            ignore_conflicts=True,
        )
        for row in kept:
            Usage.objects.filter(tenant=row.tenant_id, key_prefix=row.key_prefix, day=row.day).update(
                num_requests=F("num_requests") + row.num_requests,
                prompt_tokens=F("prompt_tokens") + row.prompt_tokens,
                completion_tokens=F("completion_tokens") + row.completion_tokens,
            )


def _summed(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """One row for each tenant, key and day, in one order for all processes: rows locked in several orders deadlock."""
    sums: dict[tuple[int, str, datetime.date], UsageRow] = {}
    for row in rows:
        place = (row.tenant_id, row.key_prefix, row.day)
        before = sums.get(place)
        sums[place] = row if before is None else before.plus(row)
    return [sums[place] for place in sorted(sums)]
