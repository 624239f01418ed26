"""From the stream to the database: nothing lost, nothing twice, nothing that blocks the rest, and nothing for ever."""

from __future__ import annotations

import concurrent.futures
import datetime
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import OperationalError, connections
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.contracts import keys
from serving.contracts.messages import Span
from serving.telemetry import request_drain
from serving.telemetry.models import RequestRecord
from serving.telemetry.request_drain import drain_requests, prune_requests
from serving.telemetry.request_log import LoggedRequest, encode_logged
from serving.telemetry.tasks import drain_requests as drain_task
from serving.telemetry.tasks import prune_requests as prune_task
from tests.telemetry.logged import START, logged, stored

pytestmark = pytest.mark.django_db(transaction=True)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def blocking(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as redis:
        yield redis


def tell(redis: Redis, *records: LoggedRequest | bytes) -> None:
    for record in records:
        content = record if isinstance(record, bytes) else encode_logged(record)
        redis.xadd(keys.request_log(), {keys.FIELD: content})


def names() -> list[str]:
    return list(RequestRecord.objects.order_by("pk").values_list("request_id", flat=True))


def test_what_was_told_is_stored_once_and_taken_from_the_stream(blocking: Redis) -> None:
    spans = (Span("prefill", 1.5, 20.25, 30, 2), Span("decode", 21.75, 100.0, 9, 2))
    whole: dict[str, Any] = {
        "tenant": "acme",
        "tenant_id": 7,
        "key_prefix": "0123456789ab",
        "is_streamed": True,
        "arrived_unix_seconds": START.timestamp() + 0.123456,
        "num_choices": 2,
        "prompt_tokens": 30,
        "cached_tokens": 16,
        "completion_tokens": 10,
        "queue_seconds": 0.0015,
        "ttft_seconds": 0.02,
        "itl_seconds": None,
        "num_preemptions": 1,
        "num_attempts": 2,
        "engine": "engine-1",
        "tunables_version": 3,
        "params": {"seed": 2**63 - 1, "temperature": 0.5},
    }
    tell(blocking, logged("req_1", **whole, spans=spans), logged("req_2"), logged("req_1"))
    assert drain_requests(blocking) == 3
    assert drain_requests(blocking) == 0
    assert names() == ["req_1", "req_2"]
    record = RequestRecord.objects.get(request_id="req_1")
    assert record.arrived_at == START + datetime.timedelta(microseconds=123456)
    assert record.spans == [["prefill", 1.5, 20.25, 30, 2], ["decode", 21.75, 100.0, 9, 2]]
    assert record.tenant_id_then == 7
    told = {name: value for name, value in whole.items() if name not in ("arrived_unix_seconds", "tenant_id")}
    assert {name: getattr(record, name) for name in told} == told
    assert (record.prompt_text, record.output_text) == (None, None)


@pytest.mark.parametrize("moment", ["before it commits", "before it deletes"])
def test_a_job_that_is_killed_loses_nothing_and_doubles_nothing(
    blocking: Redis, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(request_drain, "_ROWS_AT_ONCE", 3)
    tell(blocking, *[logged(f"req_{index}") for index in range(8)])
    with monkeypatch.context() as patch:
        if moment == "before it commits":
            patch.setattr("django.db.models.query.QuerySet.bulk_create", die)
        else:
            patch.setattr(Redis, "xdel", die)
        with pytest.raises(Killed):
            drain_requests(blocking)
    assert blocking.xlen(keys.request_log()) == 8
    drain_requests(blocking)
    assert names() == [f"req_{index}" for index in range(8)]
    assert blocking.xlen(keys.request_log()) == 0


def test_jobs_that_run_at_once_double_nothing_while_owners_go_on_telling(
    blocking: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_drain, "_ROWS_AT_ONCE", 20)
    tell(blocking, *[logged(f"req_{index}") for index in range(200)])
    ready = threading.Barrier(4)

    def run(number: int) -> None:
        try:
            ready.wait()
            if number == 0:
                tell(blocking, *[logged(f"late_{index}") for index in range(50)])
            else:
                drain_requests(blocking)
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, number) for number in range(4)]:
            done.result()
    drain_requests(blocking)
    assert sorted(names()) == sorted(
        [*[f"req_{index}" for index in range(200)], *[f"late_{index}" for index in range(50)]]
    )


def test_what_cannot_be_read_is_dropped_with_one_warning(blocking: Redis, caplog: pytest.LogCaptureFixture) -> None:
    tell(blocking, b"\x81", logged("good"), b"", logged("late", arrived_unix_seconds=1e300))
    blocking.xadd(keys.request_log(), {b"other": b"field"})
    assert drain_requests(blocking) == 5
    assert names() == ["good"]
    assert [record.getMessage() for record in caplog.records if record.name == request_drain.__name__] == [
        "4 requests are missing in the log: this version cannot read what was told of them"
    ]


def test_texts_and_figures_are_made_to_fit_their_columns(blocking: Redis) -> None:
    tell(
        blocking,
        logged(
            "req_1",
            tenant="a\0" + "b" * 300,
            engine="e" * 300,
            model="m" * 300,
            code="c" * 300,
            prompt_tokens=2**40,
            completion_tokens=-1,
            queue_seconds=float("nan"),
            ttft_seconds=-0.5,
            tenant_id=2**64 - 1,
            prompt_text="a\0b",
            output_text="",
        ),
    )
    drain_requests(blocking)
    record = RequestRecord.objects.get()
    assert record.tenant == "a" + "b" * 99
    assert (len(record.engine), len(record.model), len(record.code)) == (100, 200, 60)
    assert (record.prompt_tokens, record.completion_tokens) == (2**31 - 1, 0)
    assert (record.queue_seconds, record.ttft_seconds, record.tenant_id_then) == (None, 0.0, None)
    assert (record.prompt_text, record.output_text) == ("a�b", "")


def test_one_that_the_database_refuses_blocks_no_other(
    blocking: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = request_drain._insert

    def refuse(rows: Any) -> None:
        if any(row.request_id == "bad" for row in rows):
            raise ValueError("what it says is nobody's business")
        whole(rows)

    monkeypatch.setattr(request_drain, "_insert", refuse)
    tell(blocking, logged("before"), logged("bad"), logged("after"))
    drain_requests(blocking)
    assert names() == ["before", "after"]
    assert "bad is missing in the log: it cannot be stored (ValueError)" in caplog.text
    assert "nobody's business" not in caplog.text


def test_long_texts_are_stored_in_pieces_so_that_others_may_write_between(
    blocking: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_together: list[int] = []
    insert = request_drain._insert

    def note(rows: Sequence[RequestRecord]) -> None:
        stored_together.append(len(rows))
        insert(rows)

    monkeypatch.setattr(request_drain, "_insert", note)
    monkeypatch.setattr(request_drain, "_CHARACTERS_AT_ONCE", 100)
    told = [logged(f"req_{index}", prompt_text="x" * 30, output_text="y" * 20) for index in range(5)]
    tell(blocking, *told, logged("long", prompt_text="x" * 200, output_text=""), logged("bare"))
    assert drain_requests(blocking) == 7
    assert stored_together == [2, 2, 1, 1, 1]
    assert names() == [*(f"req_{index}" for index in range(5)), "long", "bare"]


def test_a_database_that_is_away_takes_nothing_from_the_stream(
    blocking: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_away(*_: Any, **__: Any) -> None:
        raise OperationalError("the server closed the connection")

    tell(blocking, logged("req_1"))
    with monkeypatch.context() as patch:
        patch.setattr(request_drain, "_insert", be_away)
        with pytest.raises(OperationalError):
            drain_requests(blocking)
    assert drain_requests(blocking) == 1
    assert names() == ["req_1"]


def test_where_nothing_is_to_be_kept_nothing_is_stored_and_nothing_piles_up(blocking: Redis) -> None:
    tell(blocking, logged("req_1", prompt_text="a question", output_text="an answer"))
    drain_requests(blocking, keeps_texts=False)
    record = RequestRecord.objects.get()
    assert (record.prompt_text, record.output_text) == (None, None)
    tell(blocking, logged("req_2"))
    assert drain_requests(blocking, keeps_requests=False) == 1
    assert names() == ["req_1"]


def test_texts_go_before_their_requests_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_drain, "_PRUNED_AT_ONCE", 2)
    texts = {"prompt_text": "a question", "output_text": "an answer"}
    RequestRecord.objects.bulk_create(
        [stored(f"req_{days}", -86_400.0 * days, **(texts if days % 2 else {})) for days in range(12)]
    )
    pruned = prune_requests(now=START + DAY / 2, requests_kept=9 * DAY, texts_kept=4 * DAY)
    assert pruned == (4, 3)  # of days 5, 7, 9 and 11; days 9 to 11
    assert names() == [f"req_{days}" for days in range(9)]
    with_text = RequestRecord.objects.exclude(prompt_text=None).exclude(output_text=None)
    assert list(with_text.order_by("pk").values_list("request_id", flat=True)) == ["req_1", "req_3"]
    assert prune_requests(now=START + DAY / 2, requests_kept=9 * DAY, texts_kept=4 * DAY) == (0, 0)


def test_the_jobs_go_by_the_settings(valkey: str, blocking: Redis, settings: Any) -> None:
    settings.REDIS_URL = valkey
    settings.FOOTPLATE_REQUEST_LOG_DAYS, settings.FOOTPLATE_TEXT_DAYS = 30, 0
    tell(blocking, logged("old"), logged("new", arrived_unix_seconds=datetime.datetime.now(datetime.UTC).timestamp()))
    drain_task()
    assert names() == ["old", "new"]
    prune_task()
    assert names() == ["new"]
    settings.FOOTPLATE_REQUEST_LOG_DAYS = 0
    tell(blocking, logged("unwanted"))
    drain_task()
    prune_task()
    assert names() == []


def test_a_job_that_reaches_nobody_says_so_to_those_who_log_it(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    with pytest.raises(RedisConnectionError):
        drain_task()
