"""A log of requests for the console's pages: records as the drain stores them."""

from __future__ import annotations

import datetime
import html
import itertools
import re
from typing import Any

import httpx
from django.utils import timezone

from serving.telemetry.models import RequestRecord
from tests.dashboard.tenancy import in_thread, page_of

REQUESTS = "/console/requests/"
_NUMBERS = itertools.count(1)


async def log_requests(*given: dict[str, Any], count: int = 1, **common: Any) -> list[str]:
    """Stores a record for each of `given`, or `count` equal ones, each a second older than the one before; the ids."""
    made = [record_of(**{"seconds_ago": float(age), **common, **one}) for age, one in enumerate(given or [{}] * count)]
    await in_thread(RequestRecord.objects.bulk_create)(made)
    return [record.request_id for record in made]


def record_of(*, seconds_ago: float = 0.0, **fields: Any) -> RequestRecord:
    """A chat of acme's that went well, unless said otherwise."""
    usual: dict[str, Any] = {
        "request_id": f"req_{next(_NUMBERS):032x}",
        "pool": "default",
        "model": "a-model",
        "tenant": "acme",
        "tenant_id_then": 1,
        "key_prefix": "0123456789ab",
        "endpoint": "chat",
        "arrived_at": timezone.now() - datetime.timedelta(seconds=seconds_ago),
        "outcome": "finished",
        "code": "stop",
        "prompt_tokens": 1200,
        "cached_tokens": 512,
        "completion_tokens": 64,
        "queue_seconds": 0.05,
        "ttft_seconds": 0.25,
        "itl_seconds": 0.02,
        "e2e_seconds": 1.5,
        "num_attempts": 1,
        "engine": "engine-a",
    }
    return RequestRecord(**usual | fields)


def ids_on(page: str) -> list[str]:
    return re.findall(r'data-id="([^"]+)"', page)


async def ids_at(client: httpx.AsyncClient, query: str) -> list[str]:
    return ids_on(await page_of(client, REQUESTS + query))


def link_of(page: str, rel: str) -> str:
    found = re.search(rf'href="([^"]+)" rel="{rel}"', page)
    return "" if found is None else html.unescape(found[1])
