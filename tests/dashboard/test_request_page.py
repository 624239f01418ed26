"""The page of one request in the console: where its time went, what is kept of it, and what ran beside it."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from serving.audit.services import record
from tests.dashboard.requests_log import REQUESTS, link_of, log_requests
from tests.dashboard.tenancy import browser, in_thread, page_of, session_of, words


@pytest.fixture
async def operator(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator", "olga")) as client:
        yield client


@pytest.mark.parametrize(("role", "may_read"), [("operator", False), ("admin", True), ("auditor", True)])
async def test_texts_are_read_by_those_who_may_alone(application: Any, role: str, *, may_read: bool) -> None:
    (kept,) = await log_requests({"prompt_text": "<b>secret</b> plans", "output_text": ""})
    async with browser(application, await session_of(role)) as client:
        page = await page_of(client, f"{REQUESTS}{kept}/")
        assert ("&lt;b&gt;secret&lt;/b&gt; plans" in page) == may_read
        assert "<b>secret" not in page
        assert ("Kept, but not for your account" in page) == (not may_read)
        (without,) = await log_requests({})
        assert "its tenant does not let texts be kept" in await page_of(client, f"{REQUESTS}{without}/")


async def test_a_request_shows_where_its_time_went(operator: httpx.AsyncClient) -> None:
    spans = [
        ["prefill", 50.0, 100.0, 512, 3],
        ["prefill", 150.0, 100.0, 176, 4],
        ["decode", 250.0, 500.0, 30, 4],
        ["preempted", 750.0, 250.0, 0, 7],
        ["decode", 1000.0, 500.0, 33, 5],
        ["dreaming", 0, 1, 1, 1],
        ["decode", "soon", None, 1, 1],
        "nonsense",
    ]
    params = {"temperature": 0.7, "stop": ["\n"], "note": "<u>"}
    await log_requests({"request_id": "req_1", "spans": spans, "params": params, "num_preemptions": 1})
    page = await page_of(operator, f"{REQUESTS}req_1/")
    drawn = re.findall(r'class="segment" data-index="(\d)" data-kind="(\w+)".*? x="([\d.]+)%" width="([\d.]+)%"', page)
    assert sorted(drawn) == [
        ("0", "waiting", "0", "3.33"),
        ("1", "prefill", "3.33", "6.67"),
        ("2", "prefill", "10", "6.67"),
        ("3", "decode", "16.67", "33.33"),
        ("4", "preempted", "50", "16.67"),
        ("5", "decode", "66.67", "33.33"),
    ]
    text = words(page)
    for expected in (
        "Prefill from 50.0 ms for 100 ms, 512 tokens, 3 in the batch",
        "Preempted from 750 ms for 250 ms, 7 in the batch",
        "First token after 250 ms",
        "As its engine told it.",
        'stop ["\\n"] temperature 0.7',
        "1,200 (512 found cached)",
        "Tokens a second",
    ):
        assert expected in text, expected
    assert "<u>" not in page
    assert "style=" not in page.partition("<main")[2]


async def test_without_the_engines_account_there_is_what_the_gateway_knows(operator: httpx.AsyncClient) -> None:
    await log_requests(
        {"request_id": "req_seen"},
        {"request_id": "req_refused", "outcome": "refused", "code": "queue_timeout"}
        | {"queue_seconds": None, "ttft_seconds": None, "itl_seconds": None, "e2e_seconds": 2.0, "engine": ""},
        {"request_id": "req_at_once", "outcome": "refused", "code": "queue_full", "e2e_seconds": 0.0}
        | {"queue_seconds": None, "ttft_seconds": None, "itl_seconds": None},
    )
    seen = words(await page_of(operator, f"{REQUESTS}req_seen/"))
    assert "As its web process saw it" in seen
    assert "Prefill from 50.0 ms for 200 ms, 688 tokens" in seen
    assert "Decode from 250 ms for 1.25 s, 64 tokens" in seen
    assert "Waiting from 0 ms for 2.00 s" in words(await page_of(operator, f"{REQUESTS}req_refused/"))
    assert "It ended before anything was done for it." in words(await page_of(operator, f"{REQUESTS}req_at_once/"))


async def test_a_request_tells_what_ran_beside_it_and_leads_to_its_neighbours(operator: httpx.AsyncClient) -> None:
    await log_requests(
        {"request_id": "req_late", "seconds_ago": 0.0, "tenant": "beta"},
        {"request_id": "req_mid", "seconds_ago": 10.0, "e2e_seconds": 4.0},
        {"request_id": "req_long", "seconds_ago": 12.0, "e2e_seconds": 4.0, "tenant": "beta"},
        {"request_id": "req_far", "seconds_ago": 12.0, "e2e_seconds": 4.0, "pool": "bulk", "tenant": "beta"},
    )
    page = await page_of(operator, f"{REQUESTS}req_mid/")
    beside = page.partition("beside-heading")[2]
    assert re.findall(r'title="(req_\w+)"', beside) == ["req_long"]
    assert re.search(r'fill" x="0%" width="(50|49\.9\d|50\.0\d)%"', beside)
    assert (link_of(page, "prev"), link_of(page, "next")) == (f"{REQUESTS}req_late/", f"{REQUESTS}req_far/")
    # Within a filtered list, neighbours are those of that list.
    listed = await page_of(operator, f"{REQUESTS}req_long/?tenant=beta&pool=default")
    assert link_of(listed, "prev") == f"{REQUESTS}req_late/?tenant=beta&pool=default"
    assert link_of(listed, "next") == ""


async def test_a_request_that_nobody_knows_is_said_so(operator: httpx.AsyncClient) -> None:
    page = await page_of(operator, f"{REQUESTS}req_unknown/", status=404)
    assert "A request that has just ended is in the log within a few seconds." in words(page)


async def test_who_aborted_a_request_is_told_to_those_who_may_audit(application: Any) -> None:
    await log_requests({"request_id": "req_ended", "outcome": "aborted", "code": ""}, {"request_id": "req_other"})
    act = functools.partial(record, "request aborted", actor="olga", subject_kind="request", subject="req_ended")
    await in_thread(act)(reason="It ran for ever.", request_id="req_ended")
    for role, says in (("auditor", "aborted by olga: It ran for ever"), ("operator", "aborted by an operator")):
        async with browser(application, await session_of(role)) as client:
            text = words(await page_of(client, f"{REQUESTS}req_ended/"))
            assert says in text
            assert ("olga" in text) == (role == "auditor")
            assert "aborted by" not in words(await page_of(client, f"{REQUESTS}req_other/"))
