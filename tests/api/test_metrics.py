"""`GET /metrics`: who may read it, in which formats, and that it tells what the API did."""

from __future__ import annotations

import dataclasses
import gzip
import json

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from redis.asyncio import Redis

from serving.admission.authenticator import Authenticator
from serving.admission.services import create_key
from serving.contracts.errors import QueueFull
from serving.telemetry.exposition import Exposition
from serving.telemetry.observers import Observers
from serving.telemetry.request_metrics import RequestMetrics
from serving.threads import in_thread
from tests.api.conftest import MODEL, POOL, ScriptedServices
from tests.telemetry.scraping import Scrape, labels_of, scraped, sum_of

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture(autouse=True)
def _counted(services: ScriptedServices) -> None:
    """Let the metrics hear what the API's own observer hears, as in a web process."""
    requests = RequestMetrics({POOL: MODEL})
    services.observer = Observers(services.observer, requests)  # type: ignore[assignment]
    services.starter = dataclasses.replace(services.starter, observer=services.observer)
    services.exposition = Exposition(services.redis, requests=requests, models={POOL: MODEL})


async def scrape(client: httpx.AsyncClient, **parameters: str) -> Scrape:
    response = await client.get("/metrics", params=parameters)
    assert response.status_code == 200
    return scraped(response.text)


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(["observe"], 200), (["operate"], 200), (["generate"], 403), (["generate", "admin", "batch"], 403)],
)
async def test_a_key_that_may_observe_or_operate_reads_them(
    client: httpx.AsyncClient, scopes: list[str], status: int
) -> None:
    key = await in_thread(create_key, "prometheus", scopes=scopes)
    response = await client.get("/metrics", headers={"Authorization": f"Bearer {key.text}"})
    assert response.status_code == status


async def test_nobody_reads_them_without_a_key_from_wherever_they_ask(client: httpx.AsyncClient) -> None:
    """Behind a proxy on the same machine everybody comes from loopback, so that this opens nothing."""
    del client.headers["Authorization"]
    response = await client.get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_prometheus_may_call_the_process_by_any_name(client: httpx.AsyncClient) -> None:
    """It finds each web process by its address, which is in no list of the operator's."""
    response = await client.get("/metrics", headers={"Host": "10.1.2.3:8000"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text; version=x", PLAIN),
        ("application/openmetrics-text; version=1.x; escaping=é", PLAIN),
        ("application/json", PLAIN),
        (";;,=", PLAIN),
    ],
)
async def test_whatever_else_is_accepted_gets_the_text_format(
    client: httpx.AsyncClient, accept: str, content_type: str
) -> None:
    response = await client.get("/metrics", headers={"Accept": accept.encode("latin-1")})
    assert (response.status_code, response.headers["content-type"]) == (200, content_type)
    assert sum_of(scraped(response.text), "footplate_redis_up") == 1


@pytest.mark.parametrize(
    "accept",
    [
        PROMETHEUS_3,
        OPEN_METRICS,
        *(f"{OPEN_METRICS};version=1.0.0{escaping}" for escaping in ("", ";escaping=underscores", ";escaping=dots")),
    ],
)
async def test_open_metrics_is_what_its_strict_parser_takes_vllms_names_included(
    client: httpx.AsyncClient, accept: str
) -> None:
    await client.get("/nowhere")
    response = await client.get("/metrics", params={"names": "vllm"}, headers={"Accept": accept})
    assert response.headers["content-type"] == f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
    samples = {sample.name for family in parse_open_metrics(response.text) for sample in family.samples}
    assert {"footplate_rejections_total", "vllm:num_requests_waiting", "vllm:prompt_tokens_total"} <= samples
    plain = await scrape(client, names="vllm")
    assert samples == {name for name, _ in plain}


async def test_comes_compressed_where_that_is_understood_and_is_kept_by_nobody(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/metrics", headers={"Accept-Encoding": "gzip"}) as response:
        raw = b"".join([chunk async for chunk in response.aiter_raw()])
    assert response.headers["content-encoding"] == "gzip"
    assert int(response.headers["content-length"]) == len(raw)
    assert sum_of(scraped(gzip.decompress(raw).decode()), "footplate_redis_up") == 1
    plain = await client.get("/metrics", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(raw) < len(plain.content) / 4
    assert plain.headers["cache-control"] == "no-store"
    assert "Accept-Encoding" in plain.headers["vary"]


@pytest.mark.parametrize("names", ["", "VLLM", "v\0llm", "x" * 5000, "'; --"])
async def test_names_that_nobody_has_are_refused(client: httpx.AsyncClient, names: str) -> None:
    response = await client.get("/metrics", params={"names": names})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "names")


async def test_documentation_names_the_parameter_and_the_format(client: httpx.AsyncClient) -> None:
    operation = (await client.get("/openapi.json")).json()["paths"]["/metrics"]["get"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["names"]
    assert list(operation["responses"]["200"]["content"]) == ["text/plain"]


async def test_what_is_refused_before_the_door_counts_by_code_and_what_at_it_in_the_pools_books(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    """C89: every request is counted once, wherever it ended."""
    await client.get("/nowhere")
    await client.post("/v1/completions", content=b"{")
    await client.get("/metrics", headers={"Authorization": "Bearer nonsense"})
    services.gateway.change_view(tunables=services.gateway.view.tunables.changed({"max_queue_requests": 1}))
    refused = await client.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, QueueFull.code)
    found = await scrape(client)
    rejections = {labels["code"] for labels in labels_of(found, "footplate_rejections_total")}
    assert rejections == {"not_found", "invalid_json", "invalid_api_key"}
    assert sum_of(found, "footplate_rejections_total") == 3
    assert sum_of(found, "footplate_requests_ended_total", pool=POOL, outcome="refused", code="queue_full") == 1
    assert sum_of(found, "footplate_requests_submitted_total") == 1
    assert sum_of(found, "footplate_requests_in_flight") == 0


async def test_without_redis_a_process_still_tells_of_itself(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    away = Redis.from_url("unix:///nowhere/valkey.sock")
    services.authenticator = Authenticator(away)
    services.exposition = Exposition(away, requests=RequestMetrics({POOL: MODEL}), models={POOL: MODEL})
    found = await scrape(client, names="vllm")
    assert sum_of(found, "footplate_redis_up") == 0
    assert labels_of(found, "footplate_redis_up") == [{}]
    assert labels_of(found, "footplate_requests_submitted_total") == [{"pool": POOL, "model": MODEL}]


async def test_a_scrape_itself_is_no_request_of_any_pool(client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    after = await scrape(client)
    for name in ("footplate_requests_submitted_total", "footplate_rejections_total"):
        assert sum_of(after, name) == sum_of(before, name) == 0


async def test_no_tenant_key_or_text_of_a_client_is_told(client: httpx.AsyncClient) -> None:
    key = await in_thread(create_key, "a-rather-private-tenant", scopes=["generate", "observe"])
    client.headers["Authorization"] = f"Bearer {key.text}"
    await client.post("/v1/completions", json={"model": MODEL, "prompt": "a-rather-private-prompt", "user": "private"})
    await client.post("/v1/completions", json={"model": "a-rather-private-model", "prompt": "x"})
    for names in ({}, {"names": "vllm"}):
        text = (await client.get("/metrics", params=names)).text
        assert "private" not in text
        assert key.prefix not in text
        assert json.dumps(POOL) in text
