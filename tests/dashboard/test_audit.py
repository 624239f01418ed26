"""The audit's page: everything that was done, found again and taken along, and by auditors alone."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from dashboard import audit
from dashboard.signing import MAX_FAILURES_A_MINUTE, UNKNOWN_NAME
from serving.audit.models import AuditEvent
from serving.audit.services import record
from serving.contracts import keys
from serving.contracts.actors import Actor
from tests.dashboard.harness import ORIGIN, PASSWORD, Services
from tests.dashboard.tenancy import browser, errors_of, in_thread, make_tenant, page_of, session_of, words
from tests.dashboard.tenancy import make_key as key_of

AUDIT = "/console/audit/"
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
async def auditor(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("auditor", "una")) as client:
        yield client


async def happened(num: int, **values: Any) -> None:
    """So many events, a minute apart, each with its number as subject."""
    known = {"actor": "ann", "actor_kind": "user", "action": "tunables changed", "subject_kind": "pool", **values}
    await AuditEvent.objects.abulk_create(
        [AuditEvent(at=NOON + datetime.timedelta(minutes=n), subject=f"s{n}", **known) for n in range(num)]
    )


def subjects(page: str) -> list[str]:
    return re.findall(r">(s\d+)</a>", page)


def link(page: str, label: str) -> str:
    found = re.search(rf'href="([^"]+)"[^>]*>{label}</a>', page)
    assert found, label
    return found[1].replace("&amp;", "&")


async def act(action: Any, **values: Any) -> None:
    await in_thread(record)(action, **{"actor": "ann", "subject_kind": "pool", "subject": "default", **values})


async def test_it_is_for_auditors_and_administrators(application: Any, admin: httpx.AsyncClient) -> None:
    for role, status in (("viewer", 403), ("operator", 403), ("auditor", 200)):
        async with browser(application, await session_of(role)) as client:
            for path in (AUDIT, "/console/audit.csv"):
                assert (await client.get(path)).status_code == status, (role, path)
            assert (">Audit</a>" in await page_of(client, "/console/")) is (status == 200)
    assert ">Audit</a>" in await page_of(admin, AUDIT)
    async with browser(application, None) as client:
        assert "/console/login/" in (await client.get(AUDIT)).headers["Location"]
    for method in ("POST", "DELETE", "PUT"):
        assert (await admin.request(method, AUDIT)).status_code in (403, 405)


async def test_an_act_is_shown_with_who_what_where_and_why(auditor: httpx.AsyncClient) -> None:
    await act(
        "tunables changed", pool="default", changes={"max_running": [64, 32], "note": [None, {"a": 1}]}, reason="<b>"
    )
    await act(
        "key made",
        actor=Actor("acme, key 0123456789ab", "key", request_id="req_7", address="10.0.0.1"),
        subject_kind="key",
        subject="ba9876543210",
        tenant="acme",
        tenant_id=3,
        changes={"scopes": [None, ["generate"]]},
    )
    page = await page_of(auditor, AUDIT)
    text = words(page)
    assert "ann user tunables changed pool default" in text
    assert "max_running 64 → 32" in text
    assert 'note – → {"a": 1}' in text
    assert "&lt;b&gt;" in page
    assert "acme, key 0123456789ab API key, 10.0.0.1 key made key ba9876543210 by req_7 tenant acme" in text
    assert "scopes generate" in text
    assert 'href="/console/tenants/3/keys/ba9876543210/"' in page


async def test_pages_lead_to_one_another(auditor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAGE_SIZE", 3)
    await happened(7)
    first = await page_of(auditor, f"{AUDIT}?actor=ann")
    second = await page_of(auditor, link(first, "Older"))
    third = await page_of(auditor, link(second, "Older"))
    assert [subjects(page) for page in (first, second, third)] == [["s6", "s5", "s4"], ["s3", "s2", "s1"], ["s0"]]
    assert ">Older<" not in third
    assert ">Newer<" not in first
    assert subjects(await page_of(auditor, link(third, "Newer"))) == ["s3", "s2", "s1"]
    back = await page_of(auditor, link(second, "Newer"))
    assert subjects(back) == ["s6", "s5", "s4"]
    assert ">Newer<" not in back
    assert subjects(await page_of(auditor, f"{AUDIT}?older=nonsense&newer=9")) == ["s6", "s5", "s4"]
    assert subjects(await page_of(auditor, f"{AUDIT}?older=99999999999999999-9999999999999999999")) == [
        "s6",
        "s5",
        "s4",
    ]


async def test_what_is_done_meanwhile_moves_no_page(
    auditor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE_SIZE", 3)
    await happened(7)
    first = await page_of(auditor, f"{AUDIT}?actor=ann")
    for number in (7, 8):
        await AuditEvent.objects.acreate(
            at=NOON + datetime.timedelta(minutes=number),
            subject=f"s{number}",
            actor="ann",
            actor_kind="user",
            action="tunables changed",
            subject_kind="pool",
        )
    second = await page_of(auditor, link(first, "Older"))
    third = await page_of(auditor, link(second, "Older"))
    assert [subjects(page) for page in (second, third)] == [["s3", "s2", "s1"], ["s0"]]
    back = await page_of(auditor, link(second, "Newer"))
    assert subjects(back) == ["s6", "s5", "s4"]
    assert subjects(await page_of(auditor, link(back, "Newer"))) == ["s8", "s7", "s6"]


async def test_filters_are_in_the_address_and_bound_what_is_taken_along(auditor: httpx.AsyncClient) -> None:
    await happened(4)
    await act("key revoked", subject_kind="key", subject="0123456789ab", tenant="acme", reason="=lost, and more")
    narrowed = f"{AUDIT}?since=2030-05-01T12:01&until=2030-05-01T12:03&action=tunables+changed"
    page = await page_of(auditor, narrowed)
    assert subjects(page) == ["s2", "s1"]
    assert 'value="2030-05-01T12:01"' in page
    assert "<option selected>tunables changed</option>" in page
    response = await auditor.get(link(page, "CSV"))
    assert response.headers["Content-Disposition"].startswith('attachment; filename="audit-')
    assert [row["subject"] for row in csv.DictReader(response.text.splitlines())] == ["s2", "s1"]
    (row,) = csv.DictReader((await auditor.get("/console/audit.csv?tenant=acme")).text.splitlines())
    assert (row["action"], row["reason"], row["changes"]) == ("key revoked", "'=lost, and more", "")
    assert "No act is like this" in await page_of(auditor, f"{AUDIT}?reason=found")


async def test_csv_comes_in_pieces_with_one_header(auditor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_CSV_ROWS_AT_ONCE", 2)
    await happened(5)
    rows = list(csv.DictReader((await auditor.get("/console/audit.csv")).text.splitlines()))
    assert [row["subject"] for row in rows if row["subject"].startswith("s")] == ["s4", "s3", "s2", "s1", "s0"]
    monkeypatch.setattr(audit, "MAX_CSV_ROWS", 3)
    assert len((await auditor.get("/console/audit.csv")).text.splitlines()) == 4


@pytest.mark.parametrize(
    ("field", "typed", "complaint"),
    [
        ("since", "yesterday", "since must be a moment of UTC from 2000 to 2099, as 2030-01-31T12:00, not 'yesterday'"),
        ("until", "9999-12-31T23:59:59-23:59", "until must be a moment of UTC"),
        ("action", "key lost", "that the list offers, not 'key lost'"),
        ("actor_kind", "ghost", "actor_kind must be one of user, key, command, system, not 'ghost'"),
        ("actor", "a\0b", "actor must be a text of at most 200 characters, without NUL"),
        ("tenant", "x" * 201, "tenant must be a text of at most 200"),
        (
            "pool",
            "fp-0123456789ab-abcdefghijklmnop",
            "pool must be a text of at most 200 characters, without NUL and API keys",
        ),
    ],
)
async def test_a_filter_that_makes_no_sense_is_told_beside_it(
    auditor: httpx.AsyncClient, field: str, typed: str, complaint: str
) -> None:
    response = await auditor.get(AUDIT, params={field: typed})
    assert response.status_code == 400
    assert complaint in errors_of(response.text)[field]
    assert (await auditor.get("/console/audit.csv", params={field: typed})).status_code == 400
    if field == "pool":
        assert typed not in response.text
    elif "\0" not in typed and len(typed) <= 200:
        assert typed in response.text


async def test_an_end_before_the_beginning_is_told(auditor: httpx.AsyncClient) -> None:
    response = await auditor.get(f"{AUDIT}?since=2030-05-02T00:00&until=2030-05-01T00:00")
    assert response.status_code == 400
    assert "until must be later than since" in errors_of(response.text)["until"]


async def test_a_filter_that_there_is_not_lets_nothing_through_and_says_so(auditor: httpx.AsyncClient) -> None:
    await happened(2)
    for path in (f"{AUDIT}?act=tunables+changed", "/console/audit.csv?act=key+made"):
        page = await page_of(auditor, path, status=400)
        assert "there is no filter 'act': there are since, until, actor, action," in words(page)
        assert subjects(page) == []
    assert "'fp-0123456789ab-…'" in words(await page_of(auditor, f"{AUDIT}?fp-0123456789ab-abcdef=", status=400))


async def test_no_secret_is_ever_in_it(admin: httpx.AsyncClient, services: Services) -> None:
    """C84."""
    text = await key_of(services, await make_tenant(services), label="nightly")
    secret = text.split("-", 2)[2]
    await act("request aborted", reason=f"sent {text}", changes={"header": [text, None]})
    assert secret not in await page_of(admin, AUDIT)
    assert secret not in (await admin.get("/console/audit.csv")).text
    assert secret not in repr([vars(event) async for event in AuditEvent.objects.all()])


async def sign_in(client: httpx.AsyncClient, name: str, password: str) -> httpx.Response:
    await client.get("/console/login/")
    return await client.post(
        "/console/login/",
        data={"username": name, "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]},
        headers={"Origin": ORIGIN},
    )


async def test_who_comes_who_goes_and_who_is_turned_away_is_kept(application: Any, services: Services) -> None:
    await session_of("viewer", "vic")
    async with browser(application, None) as client:
        assert (await sign_in(client, "vic", "wrong")).status_code == 200
        assert (await sign_in(client, "hunter2-typed-as-a-name", PASSWORD)).status_code == 200
        assert (await sign_in(client, "v\0c", PASSWORD)).status_code == 200
        assert (await sign_in(client, "vic", PASSWORD)).status_code == 302
        token = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', await page_of(client, "/console/"))
        assert token
        out = await client.post("/console/logout/", data={"csrfmiddlewaretoken": token[1]}, headers={"Origin": ORIGIN})
        assert out.status_code == 302
    events = [event async for event in AuditEvent.objects.exclude(action="pool made").order_by("pk")]
    assert [(event.action, event.actor) for event in events] == [
        ("sign-in failed", "vic"),
        ("sign-in failed", UNKNOWN_NAME),
        ("sign-in failed", UNKNOWN_NAME),
        ("signed in", "vic"),
        ("signed out", "vic"),
    ]
    assert events[0].address == "127.0.0.1"
    assert "hunter2" not in repr([vars(event) for event in events])


async def test_trying_passwords_fills_no_disk(application: Any, services: Services) -> None:
    async with browser(application, None) as client:
        for number in range(MAX_FAILURES_A_MINUTE + 3):
            await sign_in(client, f"nobody {number}", "wrong")
    assert await AuditEvent.objects.filter(action="sign-in failed").acount() == MAX_FAILURES_A_MINUTE


async def test_a_redis_that_goes_between_two_failures_keeps_no_later_one_out(
    application: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise RedisConnectionError

    async with browser(application, None) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Redis, "expire", gone)
            await sign_in(client, "nobody", "wrong")
    assert 0 < services.blocking_redis.ttl(keys.failed_sign_ins()) <= 60
