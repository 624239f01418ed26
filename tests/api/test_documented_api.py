"""What the API's own documentation says, against what it does: Schemathesis makes requests of it, right and wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.api.envelope import error_of

pytestmark = pytest.mark.heavy

OPERATIONS = [
    *(("/v1/completions", "POST"), ("/v1/chat/completions", "POST"), ("/v1/embeddings", "POST")),
    *(("/v1/models", "GET"), ("/v1/models/{model}", "GET"), ("/tokenize", "POST"), ("/detokenize", "POST")),
    *(("/ops/v1/pools", "GET"), ("/ops/v1/pools/{pool}/tunables", "PATCH")),
    *(("/ops/v1/pools/{pool}/tunables/rollback", "POST"), ("/ops/v1/pools/{pool}/canary/promote", "POST")),
    ("/ops/v1/pools/{pool}/guardrail", "DELETE"),
    *(("/ops/v1/tenants", "POST"), ("/ops/v1/tenants/{tenant_id}", "PATCH"), ("/healthz", "GET")),
    ("/metrics", "GET"),
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
async def test_documented_requests_and_their_neighbours_are_answered_or_refused_in_the_envelope(
    client: httpx.AsyncClient, path: str, method: str
) -> None:
    documentation = schemathesis.openapi.from_dict((await client.get("/openapi.json")).json())
    operation = documentation[path][method]
    cases = [
        case for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) for case in make_cases(operation, mode)
    ]
    assert cases
    for case in cases:
        answer = await client.request(**request_of(case))
        if answer.status_code >= 400:
            assert answer.status_code < 500, answer.text
            error_of(answer, status=answer.status_code)


def make_cases(operation: Any, mode: GenerationMode) -> list[Any]:
    """Requests by the documentation, or against it."""
    cases = []

    @settings(
        max_examples=6,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        cases.append(case)

    with contextlib.suppress(Unsatisfiable):  # where nothing can be wrong
        collect()
    return cases


def request_of(case: Any) -> dict[str, Any]:
    sent = case.as_transport_kwargs(base_url="http://localhost")
    return {name: sent[name] for name in ("method", "url", "params", "json", "headers") if sent.get(name) is not None}
