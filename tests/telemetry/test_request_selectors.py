"""Looking back at requests: filters, sorting, pages that miss nothing, and what ran beside one."""

from __future__ import annotations

import datetime
import random
from typing import Any, get_args

import pytest

from serving.contracts.errors import InvalidValue
from serving.telemetry import request_selectors
from serving.telemetry.models import RequestRecord
from serving.telemetry.request_rows import RequestFilter, RequestRow, RequestSort
from serving.telemetry.request_selectors import (
    filter_choices,
    find_request,
    iterate_requests,
    list_requests,
    newer_than,
    newest_pk,
    ran_beside,
)
from tests.telemetry.logged import START, stored

pytestmark = pytest.mark.django_db
EVERYTHING = RequestFilter()
SORTS = get_args(RequestSort)


def store(*records: RequestRecord) -> None:
    RequestRecord.objects.bulk_create(records)


def names(rows: Any) -> list[str]:
    return [row.request_id for row in rows]


def later(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def found(**asked: Any) -> list[str]:
    return names(list_requests(RequestFilter(**asked), sort="oldest").rows)


def row_of(request_id: str) -> RequestRow:
    detail = find_request(request_id)
    assert detail is not None
    return detail.row


def many(count: int, *, seed: int = 0) -> list[RequestRecord]:
    """Requests of all kinds, many of which share their moment or their figures."""
    chance = random.Random(seed)
    return [
        stored(
            f"req_{seed}_{index}",
            chance.randrange(count // 4),
            e2e_seconds=chance.choice([0.5, 1.0, 1 / 3, 7.25]),
            queue_seconds=chance.choice([None, 0.0, 0.1]),
            ttft_seconds=chance.choice([None, 0.2, 0.3]),
            itl_seconds=chance.choice([None, 0.01]),
            prompt_tokens=chance.randrange(5),
            completion_tokens=chance.randrange(5),
        )
        for index in range(count)
    ]


# --- filters ---


def test_a_filter_finds_what_it_names_and_nothing_else() -> None:
    store(
        stored("plain", 0),
        stored(
            "other",
            10,
            pool="bulk",
            model="large",
            tenant="other",
            key_prefix="0123456789ab",
            endpoint="embedding",
            outcome="refused",
            code="queue_full",
        ),
        stored("slow", 20, queue_seconds=1.0, ttft_seconds=2.0, itl_seconds=0.5, e2e_seconds=9.0),
    )
    for field, value in (
        ("pool", "bulk"),
        ("model", "large"),
        ("tenant", "other"),
        ("key_prefix", "0123456789ab"),
        ("endpoint", "embedding"),
        ("outcome", "refused"),
        ("code", "queue_full"),
        ("text", "other"),
        ("text", "oth"),
    ):
        assert found(**{field: value}) == ["other"], field
    for field, value in (("queue", 1.0), ("ttft", 1.5), ("itl", 0.25), ("e2e", 9.0)):
        assert found(**{f"min_{field}_seconds": value}) == ["slow"], field
    assert found(since=later(10)) == ["other", "slow"]
    assert found(until=later(10)) == ["plain"]
    assert found(since=later(5), until=later(15), pool="default") == []
    assert found() == ["plain", "other", "slow"]


def test_an_id_is_found_as_answers_tell_it_and_by_how_it_begins() -> None:
    store(stored("req_ab12"), stored("req_ab12-1", 1), stored("req_AB12", 2), stored("req_a%12", 3))
    assert found(text="req_ab12") == ["req_ab12", "req_ab12-1"]
    assert found(text="chatcmpl-ab12") == found(text="cmpl-ab12") == ["req_ab12", "req_ab12-1"]
    assert found(text="req_a%") == ["req_a%12"]
    assert row_of("chatcmpl-ab12").request_id == "req_ab12"
    assert find_request("req_ab") is None
    assert find_request("req_\0") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", "a\0b"),
        ("text", "x" * 201),
        ("min_e2e_seconds", float("nan")),
        ("min_queue_seconds", -0.1),
        ("min_ttft_seconds", float("inf")),
    ],
)
def test_what_can_be_of_no_request_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        RequestFilter(**{field: value})
    assert caught.value.field == field


# --- sorting and pages ---


def test_the_most_come_first_and_what_has_no_such_figure_last() -> None:
    store(
        stored("none", 0),
        stored("little", 1, queue_seconds=0.0, ttft_seconds=0.1, itl_seconds=0.01, e2e_seconds=2.0, prompt_tokens=1),
        stored("much", 2, queue_seconds=5.0, ttft_seconds=6.0, itl_seconds=0.5, e2e_seconds=3.0, completion_tokens=9),
    )
    for sort in SORTS:
        expected = ["none", "little", "much"] if sort == "oldest" else ["much", "little", "none"]
        assert names(list_requests(EVERYTHING, sort=sort).rows) == expected, sort


@pytest.mark.parametrize("sort", SORTS)
def test_pages_show_everything_once_whatever_comes_meanwhile(sort: RequestSort) -> None:
    before = many(60)
    store(*before)
    shown: list[str] = []
    after: str | None = None
    for number in range(1, 40):
        page = list_requests(EVERYTHING, sort=sort, after=after, limit=7)
        shown += names(page.rows)
        after = page.next_cursor
        if after is None:
            break
        store(*many(4, seed=number))
    wanted = {record.request_id for record in before}
    assert len(shown) == len(set(shown))
    assert wanted <= set(shown)


@pytest.mark.parametrize("sort", SORTS)
def test_all_at_once_are_what_the_pages_are(sort: RequestSort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_selectors, "_ROWS_AT_ONCE", 7)
    store(*many(50))
    whole = names(list_requests(EVERYTHING, sort=sort).rows)
    assert len(whole) == 50
    assert names(iterate_requests(EVERYTHING, sort=sort)) == whole
    for limit in (0, 7, 20, 60):
        assert names(iterate_requests(EVERYTHING, sort=sort, limit=limit)) == whole[:limit]


def test_the_last_page_has_no_cursor() -> None:
    store(*many(6))
    assert list_requests(EVERYTHING, limit=6).next_cursor is None
    page = list_requests(EVERYTHING, limit=5)
    assert page.next_cursor is not None
    assert len(list_requests(EVERYTHING, after=page.next_cursor, limit=5).rows) == 1


def test_a_cursor_that_no_page_gave_is_refused_and_never_a_fault() -> None:
    store(*many(10))
    given = list_requests(EVERYTHING, sort="e2e", limit=5).next_cursor
    assert given is not None
    with pytest.raises(InvalidValue):
        list_requests(EVERYTHING, sort="newest", after=given)
    chance = random.Random(1)
    texts = ["", "é", "\0", "a" * 500, "W10", "bnVsbA", "WyJlMmUiLCAxZTQwMCwgMV0", "WyJlMmUiLCBbXSwgMV0"]
    texts += [given[:cut] for cut in range(len(given))]
    for _ in range(200):
        place = chance.randrange(len(given))
        texts.append(given[:place] + chance.choice("ABab01-_~") + given[place + 1 :])
    refused: list[InvalidValue] = []
    for text in texts:
        try:
            list_requests(EVERYTHING, sort="e2e", after=text)
        except InvalidValue as error:
            refused.append(error)
    assert {error.field for error in refused} == {"after"}
    assert len(refused) >= len(given)


def test_a_sorting_that_there_is_none_of_is_refused() -> None:
    wrong: Any = "fastest"
    with pytest.raises(InvalidValue):
        list_requests(EVERYTHING, sort=wrong)
    with pytest.raises(InvalidValue):
        list_requests(EVERYTHING, sort=wrong, after="WyJl")


# --- the log as it grows ---


def test_whoever_watches_sees_what_is_stored_whenever_it_arrived() -> None:
    assert newest_pk() == 0
    store(stored("known", 100))
    seen = newest_pk()
    store(stored("late", 0), stored("of another pool", 101, pool="bulk"), stored("new", 102))
    assert names(newer_than(seen, RequestFilter(pool="default"))) == ["late", "new"]
    assert names(newer_than(seen, EVERYTHING, limit=1)) == ["late"]
    assert newer_than(newest_pk(), EVERYTHING) == []
    assert newer_than(2**70, EVERYTHING) == []


# --- one request ---


def test_a_request_is_found_with_all_that_is_kept_of_it() -> None:
    spans = [["prefill", 0.0, 1.0, 4, 1]]
    store(stored("req_1", params={"seed": 1}, spans=spans, prompt_text="a question", output_text="an answer"))
    detail = find_request("req_1")
    assert detail is not None
    assert (detail.params, detail.spans) == ({"seed": 1}, spans)
    assert (detail.prompt_text, detail.output_text) == ("a question", "an answer")
    assert detail.row.ended_at == later(1)


def test_what_ran_beside_it_overlaps_it_in_time_and_shares_its_pool() -> None:
    store(
        stored("one", 100, e2e_seconds=10.0),
        stored("whole", 50, e2e_seconds=100.0),
        stored("an hour", -3500, e2e_seconds=3604.0),
        stored("end", 108, e2e_seconds=10.0),
        stored("short", 105, e2e_seconds=0.5),
        stored("before", 90, e2e_seconds=10.0),
        stored("after", 110, e2e_seconds=10.0),
        stored("long ago", 0, e2e_seconds=99.0),
        stored("elsewhere", 100, e2e_seconds=10.0, pool="bulk"),
    )
    beside = ran_beside(row_of("one"))
    assert [(each.row.request_id, each.overlap_seconds) for each in beside] == [
        ("whole", 10.0),
        ("an hour", 4.0),
        ("end", 2.0),
        ("short", 0.5),
    ]
    assert names(each.row for each in ran_beside(row_of("one"), limit=1)) == ["whole"]


def test_choices_are_what_the_latest_requests_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filter_choices().pools == ()
    store(stored("old", 0, tenant="gone", code="length"), stored("a", 1), stored("b", 2, pool="bulk", tenant=""))
    choices = filter_choices()
    assert (choices.pools, choices.tenants, choices.codes) == (
        ("bulk", "default"),
        ("acme", "gone"),
        ("length", "stop"),
    )
    assert (choices.models, choices.endpoints, choices.outcomes) == (("tiny",), ("chat",), ("finished",))
    assert choices.key_prefixes == ()
    monkeypatch.setattr(request_selectors, "_LATEST_LOOKED_AT", 2)
    assert filter_choices().tenants == ("acme",)
