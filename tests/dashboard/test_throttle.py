"""Passwords are tried so many times and no more, whoever tries them and from wherever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard import throttle
from dashboard.throttle import MAX_FAILURES, SECONDS, count_attempt, forget_failures
from serving.audit.models import AuditEvent
from serving.contracts import keys
from tests.dashboard.harness import PASSWORD, Services
from tests.dashboard.tenancy import browser, fields_of, page_of, words

LOGIN = "/console/login/"


@pytest.fixture
def redis(valkey: str) -> Any:
    with Redis.from_url(valkey) as client:
        yield client


def tries(redis: Redis, count: int, *, name: str = "ann", address: str = "203.0.113.1") -> list[bool]:
    """Whether each of so many passwords may be tried."""
    return [count_attempt(redis, name=name, address=address).wait_seconds == 0 for _ in range(count)]


def test_a_name_is_held_back_from_wherever_it_is_tried(redis: Redis) -> None:
    for number in range(MAX_FAILURES["name"]):
        assert tries(redis, 1, address=f"203.0.113.{number}") == [True]
    held = count_attempt(redis, name="ann", address="198.51.100.1")
    assert 0 < held.wait_seconds <= SECONDS
    assert held.is_first_held_back
    assert not count_attempt(redis, name="ann", address="198.51.100.1").is_first_held_back
    assert tries(redis, 1, name="ben", address="198.51.100.1") == [True]


def test_an_address_is_held_back_whatever_names_it_tries(redis: Redis) -> None:
    for number in range(MAX_FAILURES["address"]):
        assert tries(redis, 1, name=f"name {number}") == [True]
    assert tries(redis, 1, name="another") == [False]
    assert tries(redis, 1, name="another", address="203.0.113.2") == [True]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("", "", True),
    ],
)
def test_addresses_are_told_apart_as_far_as_people_own_them(redis: Redis, one: str, other: str, is_same: bool) -> None:
    for number in range(MAX_FAILURES["address"]):
        tries(redis, 1, name=f"name {number}", address=one)
    assert tries(redis, 1, name="another", address=other) == [not is_same]


def test_of_many_tries_at_once_no_more_are_let_through(redis: Redis) -> None:
    with ThreadPoolExecutor(8) as threads:
        let_in = list(threads.map(lambda number: tries(redis, 1, address=f"203.0.113.{number}")[0], range(40)))
    assert sum(let_in) == MAX_FAILURES["name"]


def test_a_right_password_forgets_what_the_name_failed_and_its_own_try_alone(redis: Redis) -> None:
    tries(redis, MAX_FAILURES["name"] - 1)
    assert tries(redis, 1) == [True]
    forget_failures(redis, name="ann", address="203.0.113.1")
    assert tries(redis, 1) == [True]
    # Who has an account of his own gains no further tries at others'.
    forget_failures(redis, name="ann", address="203.0.113.1")
    for number in range(MAX_FAILURES["address"]):
        tries(redis, 1, name=f"name {number}")
    assert tries(redis, 1, name="another") == [False]


def test_made_up_names_take_a_bounded_part_of_redis_and_each_count_ends(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "_NUM_PLACES", 4)
    for number in range(50):
        count_attempt(redis, name=f"made up {number}", address=f"203.0.113.{number}")
        forget_failures(redis, name=f"made up {number}", address=f"198.51.100.{number}")
    counts = redis.keys(keys.sign_in_failures("*", 0).removesuffix("0") + "*")
    assert 0 < len(counts) <= 8
    assert all(0 < redis.ttl(count) <= SECONDS for count in counts)


def test_without_redis_the_password_decides() -> None:
    away = Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    assert tries(away, MAX_FAILURES["name"] + 1) == [True] * (MAX_FAILURES["name"] + 1)
    forget_failures(away, name="ann", address="203.0.113.1")


async def sign_in(client: httpx.AsyncClient, name: str, password: str) -> httpx.Response:
    fields = fields_of(await page_of(client, LOGIN))
    return await client.post(LOGIN, data={**fields, "username": name, "password": password})


@pytest.mark.parametrize("name", ["ann", "nobody"])
async def test_the_page_holds_back_and_tells_nothing_of_who_exists(application: Any, pool: str, name: str) -> None:
    await database_sync_to_async(User.objects.create_superuser)("ann", password=PASSWORD)
    async with browser(application, None) as client:
        for _ in range(MAX_FAILURES["name"]):
            failed = await sign_in(client, name, "wrong password")
            assert (failed.status_code, "do not match" in failed.text) == (200, True)
            assert f'value="{name}"' in failed.text
        for _ in range(2):
            held = await sign_in(client, name, PASSWORD)
            assert (held.status_code, held.headers["Retry-After"].isdigit()) == (429, True)
            assert "Too many passwords were tried" in words(held.text)
            assert "sessionid" not in client.cookies
            assert PASSWORD not in held.text
    noted = [event async for event in AuditEvent.objects.filter(action="sign-ins held back")]
    assert [event.subject for event in noted] == ["ann" if name == "ann" else "(a name that no user has)"]


async def test_a_name_is_counted_as_it_is_read_whatever_is_typed_around_it(application: Any, pool: str) -> None:
    await database_sync_to_async(User.objects.create_superuser)("ann", password=PASSWORD)
    async with browser(application, None) as client:
        for _ in range(MAX_FAILURES["name"]):
            await sign_in(client, "ann", "wrong password")
        for name in (" ann ", " " * 252 + "ann", " " * 300 + "ann", "\uff41nn"):
            assert (await sign_in(client, name, PASSWORD)).status_code == 429


async def test_after_the_hold_the_right_password_lets_in(application: Any, services: Services, pool: str) -> None:
    await database_sync_to_async(User.objects.create_superuser)("ann", password=PASSWORD)
    async with browser(application, None) as client:
        for _ in range(MAX_FAILURES["name"] + 1):
            held = await sign_in(client, "ann", "wrong password")
        assert held.status_code == 429
        await services.redis.flushdb()  # as when the time has run out
        assert (await sign_in(client, "ann", PASSWORD)).status_code == 302
        kinds = {"name": 0, "address": 0}
        for kind in kinds:
            found = await services.redis.keys(keys.sign_in_failures(kind, 0).removesuffix("0") + "*")
            kinds[kind] = sum([int(await services.redis.get(key)) for key in found])
        assert kinds == {"name": 0, "address": 0}


async def test_names_that_no_database_takes_are_turned_away(application: Any, pool: str) -> None:
    async with browser(application, None) as client:
        for name in ("", "\0", "a\0b", "x" * 100_000, "fp-0123456789ab-secret"):
            assert (await sign_in(client, name, "wrong password")).status_code == 200
