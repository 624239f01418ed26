"""The log of requests in the console: what its address asks for, its pages, its table, and how it grows."""

from __future__ import annotations

import csv
import datetime
import html
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from dashboard.requests_list import PAGE_SIZE
from tests.dashboard.requests_log import REQUESTS, ids_at, ids_on, link_of, log_requests
from tests.dashboard.tenancy import browser, errors_of, page_of, session_of, words

VIEWS = {
    "tenant=beta": ["b"],
    "key=fp-bbbbbbbbbbbb": ["b"],
    "key=bbbbbbbbbbbb": ["b"],
    "pool=bulk": ["c"],
    "model=large": ["c"],
    "endpoint=embedding": ["d"],
    "outcome=failed": ["d"],
    "code=length": ["b"],
    "min_queue_ms=500": ["c"],
    "min_ttft_ms=2000.5": ["c"],
    "min_itl_ms=100": ["b"],
    "min_e2e_ms=8000": ["c"],
    "q=req_d": ["d"],
    "tenant=acme&outcome=finished": ["a", "c"],
    "last=1h": ["a", "b", "c", "d"],
    "last=all": ["a", "b", "c", "d", "old"],
    "sort=oldest": ["d", "c", "b", "a"],
    "sort=ttft": ["c", "a", "b", "d"],
    "sort=itl": ["b", "a", "c", "d"],
    "sort=tokens": ["c", "a", "b", "d"],
    "tenant=nobody": [],
}
"""What an address asks for, and what of `_log_five` is shown then."""


FAULTS = [
    ("last", "2y", "last must be one of 15m, 1h, 24h, 7d, all, not '2y'"),
    ("since", "yesterday", "since must be a moment of UTC from 2000 to 2099"),
    ("until", "0001-01-01T00:00+14:00", "until must be a moment of UTC from 2000 to 2099"),
    ("key", "fp-xyz", "key must be the public part of a key"),
    ("min_e2e_ms", "-1", "min_e2e_ms must be a number of milliseconds from 0 to 86400000, not '-1'"),
    ("min_itl_ms", "nan", "min_itl_ms must be a number of milliseconds"),
    ("tenant", "x" * 101, "tenant must be a text of at most 100 characters"),
    ("sort", "random", "sort must be one of newest, oldest"),
]


@pytest.fixture
async def operator(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator", "olga")) as client:
        yield client


async def test_an_empty_log_says_what_to_do(operator: httpx.AsyncClient) -> None:
    text = words(await page_of(operator, REQUESTS))
    assert "No request ended in this stretch of time." in text
    assert "Look at all that is kept" in text
    assert "Nothing waits or runs now." in text
    assert "No request ended yet." in words(await page_of(operator, f"{REQUESTS}?last=all"))
    assert "No request matches in this stretch of time. Clear the filters" in words(
        await page_of(operator, f"{REQUESTS}?code=stop")
    )


async def test_a_row_tells_whose_it_was_and_where_its_time_went(operator: httpx.AsyncClient) -> None:
    await log_requests(
        {"tenant": "<i>acme</i>", "is_streamed": True},
        {"outcome": "refused", "code": "queue_full", "queue_seconds": None, "ttft_seconds": None, "itl_seconds": None},
    )
    page = await page_of(operator, REQUESTS)
    assert "<i>" not in page
    text = words(page)
    for expected in (
        "<i>acme</i> fp-0123456789ab-… default chat, streamed 1,200 → 64 512 cached",
        "50.0 ms 250 ms 20.0 ms 1.50 s finished stop",
        "– – – 1.50 s refused queue_full",
    ):
        assert expected in text


async def test_bars_share_a_scale_within_a_column(operator: httpx.AsyncClient) -> None:
    await log_requests({"e2e_seconds": 1.0}, {"e2e_seconds": 4.0}, {"e2e_seconds": 0.0, "itl_seconds": None})
    widths = re.findall(r'data-seconds="([\d.]+)".*?fill" width="([\d.]+)%"', await page_of(operator, REQUESTS))
    assert [width for seconds, width in widths if seconds in ("1.000000", "4.000000", "0.000000")] == ["25", "100", "0"]


async def test_an_address_says_which_requests_are_shown_and_how(operator: httpx.AsyncClient) -> None:
    await _log_five()
    expected = {query: await ids_at(operator, f"?{query}") for query in VIEWS}
    assert expected == {query: [f"req_{name}" for name in names] for query, names in VIEWS.items()}


@pytest.mark.parametrize("tenant", ["Familie \U0001f468\u200d\U0001f467", "\u200fשלום", "a\u00a0b"])
async def test_a_tenant_is_looked_for_whatever_its_name_holds(operator: httpx.AsyncClient, tenant: str) -> None:
    await log_requests({"request_id": "req_a", "tenant": tenant}, {"request_id": "req_b"})
    assert await ids_at(operator, f"?{urlencode({'tenant': tenant})}") == ["req_a"]


async def _log_five() -> None:
    await log_requests(
        {"request_id": "req_a"},
        {"request_id": "req_b", "tenant": "beta", "key_prefix": "b" * 12, "code": "length", "itl_seconds": 0.1}
        | {"ttft_seconds": 0.2, "prompt_tokens": 9},
        {"request_id": "req_c", "pool": "bulk", "model": "large", "queue_seconds": 0.5, "ttft_seconds": 2.5}
        | {"e2e_seconds": 9.0, "itl_seconds": 0.01, "prompt_tokens": 5000},
        {"request_id": "req_d", "endpoint": "embedding", "outcome": "failed", "code": "engine_error"}
        | {"ttft_seconds": None, "itl_seconds": None, "prompt_tokens": 1},
        {"request_id": "req_old", "seconds_ago": 3 * 86_400.0},
    )


async def test_a_stretch_may_begin_and_end_at_moments_of_utc(operator: httpx.AsyncClient) -> None:
    await log_requests(
        {"request_id": "req_in", "arrived_at": datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.UTC)},
        {"request_id": "req_out", "arrived_at": datetime.datetime(2026, 3, 1, 13, tzinfo=datetime.UTC)},
    )
    # What `last` says as well does not count then; neither does which zone a moment is told in.
    assert await ids_at(operator, "?last=1h&since=2026-03-01T12:00&until=2026-03-01T13:00") == ["req_in"]
    assert await ids_at(operator, "?since=2026-03-01T13:45%2B01:00&until=2026-03-02T00:00") == ["req_out"]
    page = await page_of(operator, f"{REQUESTS}?since=2026-03-01T12:00")
    assert '<option value="" selected>From and until, below</option>' in page
    assert "since=" not in re.search(r'href="([^"]+)">Last hour', page)[1]  # type: ignore[index]


async def test_a_filter_that_cannot_be_is_said_at_its_field_and_stays(operator: httpx.AsyncClient) -> None:
    await log_requests()
    for field, typed, says in FAULTS:
        response = await operator.get(REQUESTS, params={field: typed, "code": "stop"})
        assert response.status_code == 400
        assert says in html.unescape(response.text)
        assert ids_on(response.text) == []
        assert html.escape(typed) in response.text
        assert '<option value="stop" selected>' in response.text
        csv_response = await operator.get("/console/requests.csv", params={field: typed})
        assert csv_response.status_code == 302


async def test_neither_nul_nor_a_key_typed_by_mistake_gets_through(operator: httpx.AsyncClient) -> None:
    secret = f"fp-0123456789ab-{'s' * 43}"
    for field in ("tenant", "q", "code", "key", "since", "min_e2e_ms", "last", "sort"):
        for text in ("a\0b", secret):
            response = await operator.get(REQUESTS, params={field: text})
            assert response.status_code == 400, (field, text)
            assert "s" * 43 not in response.text
            assert "\0" not in response.text
    for path in (f"{REQUESTS}a%00b/", f"{REQUESTS}{'x' * 300}/"):
        assert (await operator.get(path)).status_code == 404
    assert (await operator.get(f"{REQUESTS}a%00b/abort/")).status_code == 200


async def test_until_before_since_is_said(operator: httpx.AsyncClient) -> None:
    page = await page_of(operator, f"{REQUESTS}?since=2026-03-02T00:00&until=2026-03-01T00:00", status=400)
    assert errors_of(page)["until"] == "until must be later than since."


async def test_pages_lead_through_all_and_back_while_others_come_in(operator: httpx.AsyncClient) -> None:
    known = await log_requests(count=2 * PAGE_SIZE + 5)
    first = await page_of(operator, REQUESTS)
    await log_requests({"seconds_ago": -5.0})
    second = await page_of(operator, REQUESTS.rstrip("/") + "/" + link_of(first, "next").partition("/requests/")[2])
    third = await page_of(operator, link_of(second, "next"))
    assert ids_on(first) + ids_on(second) + ids_on(third) == known
    assert (link_of(first, "prev"), link_of(third, "next")) == ("", "")
    assert ids_on(await page_of(operator, link_of(third, "prev"))) == ids_on(second)
    # The first page is filled from its beginning: what has come meanwhile is there.
    back = ids_on(await page_of(operator, link_of(second, "prev")))
    assert back[-1] in known
    assert len(back) == PAGE_SIZE
    by_time = await page_of(operator, f"{REQUESTS}?sort=oldest")
    assert ids_on(by_time)[0] == known[-1]
    assert ids_on(await page_of(operator, link_of(by_time, "next")))[0] == known[-1 - PAGE_SIZE]
    slowest = await page_of(operator, f"{REQUESTS}?sort=e2e&code=stop")
    following = await page_of(operator, link_of(slowest, "next"))
    assert link_of(following, "prev") == f"{REQUESTS}?code=stop&sort=e2e"


async def test_a_place_that_no_page_gave_is_refused(operator: httpx.AsyncClient) -> None:
    await log_requests()
    for query in ("after=nonsense", "before=nonsense", "after=%00", "sort=e2e&after=WyJuZXdlc3QiLDEsMV0"):
        page = await page_of(operator, f"{REQUESTS}?{query}", status=400)
        assert "after must be what the page before gave" in words(page)


async def test_a_view_keeps_what_it_was_asked_for_in_its_links(operator: httpx.AsyncClient) -> None:
    await log_requests()
    page = await page_of(operator, f"{REQUESTS}?tenant=acme&last=7d&sort=ttft")
    (chip,) = re.findall(r'href="([^"]+)"[^>]*>Slowest E2E', page)
    assert html.unescape(chip) == f"{REQUESTS}?last=7d&tenant=acme&sort=e2e"
    assert re.search(r'requests.csv\?last=7d&amp;tenant=acme&amp;sort=ttft" download', page)
    assert re.search(r'<th [^>]*aria-sort="descending"><a [^>]*>TTFT</a>', page)
    assert 'aria-current="true">Last 7 days' in page


async def test_the_table_for_spreadsheets_has_what_the_list_has_and_runs_nothing(operator: httpx.AsyncClient) -> None:
    await log_requests({"tenant": "=cmd()"}, {"tenant": "beta", "ttft_seconds": None}, {"outcome": "aborted"})
    response = await operator.get("/console/requests.csv?outcome=finished")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.search(r'filename="requests-[\d-]+\.csv"', response.headers["content-disposition"])
    rows = list(csv.DictReader(response.text.splitlines()))
    assert [(row["tenant"], row["ttft_seconds"], row["e2e_seconds"]) for row in rows] == [
        ("'=cmd()", "0.250000", "1.500000"),
        ("beta", "", "1.500000"),
    ]
    moment = datetime.datetime.fromisoformat(rows[0]["arrived_at"])
    assert moment.utcoffset() == datetime.timedelta()


async def test_a_long_table_for_spreadsheets_is_whole_and_bounded(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_requests(count=1100)
    assert (await operator.get("/console/requests.csv")).text.count("\r\n") == 1101
    monkeypatch.setattr("dashboard.requests_list.MOST_CSV_ROWS", 700)
    assert (await operator.get("/console/requests.csv")).text.count("\r\n") == 701


async def test_a_page_that_grows_gets_what_was_stored_since(operator: httpx.AsyncClient) -> None:
    await log_requests()
    page = await page_of(operator, f"{REQUESTS}?code=stop")
    tail = re.search(r'data-tail="(\d+)"', page)
    assert tail is not None
    assert ids_on(await page_of(operator, f"{REQUESTS}?code=stop&tail={tail[1]}")) == []
    first, second, _ = await log_requests({}, {}, {"code": "length"})
    came = await page_of(operator, f"{REQUESTS}?code=stop&tail={tail[1]}")
    assert ids_on(came) == [first, second]
    assert "<h1" not in came
    # It goes on behind all that was stored, also what it does not show.
    assert came.startswith(f'<table data-tail="{int(tail[1]) + 3}">')
    for nonsense in ("", "x", "-1", "9" * 30, "٣"):
        assert ids_on(await page_of(operator, f"{REQUESTS}?tail={nonsense}")) == []
    # What is sorted otherwise, ends at a moment or goes on from another page has no top to grow at.
    for query in ("?sort=e2e", "?until=2090-01-01T00:00", "?sort=oldest"):
        assert 'data-tail=""' in await page_of(operator, REQUESTS + query)


async def test_of_very_many_that_came_since_the_newest_are_shown(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.requests_list.TAIL_ROWS", 3)
    known = await log_requests(count=5)
    assert await ids_at(operator, "?tail=0") == known[:3]
