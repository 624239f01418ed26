"""Requests in flight, without a gateway."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from serving.contracts.ids import RequestId
from serving.gateway.generation import Origin


def in_flight(
    request_id: str, *, arrived_at: float = 90.0, started: bool = True, num_ahead: int | None = None, **more: Any
) -> Any:
    """A request as the gateway keeps it: three tokens asked, two answered so far."""
    origin = Origin(endpoint="chat", tenant_name="acme", key_prefix="0123456789ab")
    about = {"pool": "default", "origin": origin, "prompt_ids": [1, 2, 3], "arrived_at": arrived_at} | more
    return SimpleNamespace(
        generation=SimpleNamespace(request_id=RequestId(request_id), **about),
        started=started,
        choices=[None],
        stream=SimpleNamespace(num_completion_tokens=2),
        num_ahead=num_ahead,
    )


class FakeOwner:
    """Has these requests in flight, and ends them by order."""

    def __init__(self, *requests: Any) -> None:
        self.requests = list(requests)
        self.aborted: list[str] = []

    @property
    def num_in_flight(self) -> int:
        return len(self.requests)

    def in_flight(self, *, limit: int) -> list[Any]:
        return self.requests[:limit]

    def abort(self, request_id: RequestId) -> bool:
        found = [one for one in self.requests if one.generation.request_id == request_id]
        for one in found:
            self.requests.remove(one)
            self.aborted.append(request_id)
        return bool(found)
