"""What all pages about tenants share: who may open them, how they are headed, and how they are rendered."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.http import HttpRequest
from redis import Redis

from dashboard.pages import only
from dashboard.permissions import may_administer, may_view_tenants
from dashboard.services import services_of
from dashboard.signing import acting
from serving.contracts.actors import Author


@dataclasses.dataclass(frozen=True, slots=True)
class TenantHeading:
    """Which tenant a page is about."""

    id: int
    name: str
    enabled: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something, and the Redis in which every door is told of it."""

    author: Author
    redis: Redis


for_readers = only(may_view_tenants, to_post=may_administer)
"""For those who may see tenants and, where the view is posted to, change them."""

for_administrators = only(may_administer)


async def actor_of(request: HttpRequest) -> Actor:
    """Who makes a request."""
    name = (await request.auser()).get_username()
    return Actor(acting(request, name), services_of(request).blocking_redis)


def heading_of(tenant: Any) -> TenantHeading:
    """The heading of a tenant's pages."""
    return TenantHeading(tenant.pk, tenant.name, tenant.enabled)
