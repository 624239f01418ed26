"""Steering over the websocket: what is stored, what is refused, and who is told."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User

from dashboard import protocol
from dashboard.consumers import Limits
from dashboard.protocol import NUM_VERSIONS
from serving.admission.services import create_key
from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import StaleVersion
from serving.contracts.messages import AnnouncedTunables, decode_announced
from serving.contracts.tunables import Tunables
from serving.tuning import selectors
from serving.tuning.services import ensure_pool
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import CLIENT, HOST, POOL, Closed, Page, Services, new_session
from tests.dashboard.test_live import TICK, Clock, consumer_of

in_thread = database_sync_to_async


async def current_version() -> int:
    version: int = (await in_thread(selectors.current_tunables)(POOL)).version
    return version


async def test_a_change_is_stored_announced_and_answered(page: Page, services: Services) -> None:
    await page.open()
    answer = await page.ask(
        type="change", id=7, changes={"max_running": 8, "mode": "static"}, based_on=1, reason="a try"
    )
    assert (answer["type"], answer["id"]) == ("stored", 7)
    version = answer["version"]
    assert version["changes"] == {"mode": ["continuous", "static"], "max_running": [32, 8]}
    assert (version["number"], version["author"], version["reason"]) == (2, "operator", "a try")
    announced = cast(bytes, await services.redis.get(keys.announced_tunables(POOL)))
    assert decode_announced(announced) == AnnouncedTunables(2, Tunables(max_running=8, mode="static"))
    changed = await AuditEvent.objects.aget(action="tunables changed")
    assert (changed.actor, changed.actor_kind, changed.address) == ("operator", "user", CLIENT)
    listed = await page.ask(type="list_versions", id=8)
    assert [entry["number"] for entry in listed["versions"]] == [2, 1]
    assert listed["versions"][0] == version


async def test_every_command_is_answered_once_and_in_order(page: Page) -> None:
    await page.open()
    await page.receive("history")
    for number in range(1, 11):
        page.send(type="change", id=number, changes={"max_running": number}, based_on=number)
    answers = [await page.receive_any() for _ in range(10)]
    assert [(answer["type"], answer["id"]) for answer in answers] == [("stored", number) for number in range(1, 11)]
    page.send(type="list_versions", id=11)
    assert (await page.receive_any())["id"] == 11


@pytest.mark.parametrize(
    ("changes", "code", "param", "words"),
    [
        ({"max_running": 0}, "invalid_value", "max_running", ["max_running", "0", "1024"]),
        ({"max_running": "8"}, "invalid_value", "max_running", ["'8'"]),
        ({"max_running": 10**400}, "invalid_value", "max_running", ["1024"]),
        ({"max_running": None}, "invalid_value", "max_running", ["None"]),
        ({"prefill_share": 1.5}, "invalid_value", "prefill_share", ["prefill_share", "1.5", "from 0 to 1"]),
        ({"mode": {"a": []}}, "invalid_value", "mode", ["static"]),
        ({"max_runing": 8}, "unknown_field", "max_runing", ["max_running"]),
        ({"max_running": 32}, "invalid_value", "changes", ["version 1"]),
        ({}, "invalid_value", "changes", ["version 1"]),
    ],
)
async def test_refusals_name_field_value_and_bounds(
    page: Page, changes: dict[str, Any], code: str, param: str, words: list[str]
) -> None:
    await page.open()
    answer = await page.ask(type="change", id=1, changes=changes, based_on=1)
    assert (answer["type"], answer["code"], answer["param"], answer["newer"]) == ("refused", code, param, [])
    assert all(word in answer["message"] for word in words)
    assert await current_version() == 1


async def test_a_pool_for_long_prompts_must_exist_and_serve_the_model(page: Page) -> None:
    await in_thread(ensure_pool)("bulk", "a-model")
    await page.open()
    refused = await page.ask(type="change", id=1, changes={"long_prompt_pool": "nowhere"}, based_on=1)
    assert (refused["type"], refused["code"], refused["param"]) == ("refused", "invalid_value", "long_prompt_pool")
    assert all(word in refused["message"] for word in ("long_prompt_pool", "nowhere", "a-model: bulk"))
    stored = await page.ask(type="change", id=2, changes={"long_prompt_pool": "bulk"}, based_on=1)
    assert (stored["type"], stored["version"]["changes"]) == ("stored", {"long_prompt_pool": ["", "bulk"]})


async def test_a_version_from_before_a_tunable_existed_is_told_with_its_default(page: Page) -> None:
    def forget() -> None:
        version = selectors.current_version(POOL)
        del version.values["long_prompt_pool"]
        version.save()

    await in_thread(forget)()
    await page.open()
    (version,) = (await page.ask(type="list_versions", id=1))["versions"]
    assert version["values"] == Tunables().as_dict()


@pytest.mark.parametrize("reason", ["x" * 501, "a\0b"])
async def test_a_reason_that_cannot_be_stored_is_refused(page: Page, reason: str) -> None:
    await page.open()
    answer = await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1, reason=reason)
    assert (answer["code"], answer["param"]) == ("invalid_value", "reason")
    answer = await page.ask(type="roll_back", id=2, version=1, based_on=1, reason=reason)
    assert (answer["code"], answer["param"]) == ("invalid_value", "reason")


@pytest.mark.parametrize(
    "command", [{"type": "change", "changes": {"max_running": 9}}, {"type": "roll_back", "version": 1}]
)
async def test_a_conflicting_command_is_refused_with_what_the_others_did(
    make_page: OpenPage, command: dict[str, Any]
) -> None:
    mine, theirs = make_page(await new_session("ann")), make_page(await new_session("ben"))
    await mine.open()
    await theirs.open()
    await theirs.ask(type="change", id=1, changes={"max_running": 8}, based_on=1, reason="latency")
    await theirs.ask(type="change", id=2, changes={"prefill_share": 0.25}, based_on=2)
    answer = await mine.ask(id=5, based_on=1, **command)
    assert (answer["type"], answer["id"], answer["code"]) == ("refused", 5, "stale_version")
    assert [version["number"] for version in answer["newer"]] == [3, 2]
    assert answer["newer"][0]["changes"] == {"prefill_share": [0.5, 0.25]}
    assert (answer["newer"][1]["author"], answer["newer"][1]["reason"]) == ("ben", "latency")
    answer = await mine.ask(id=6, based_on=3, **command)
    assert (answer["type"], answer["version"]["number"]) == ("stored", 4)


async def test_a_version_from_the_future_is_no_base(page: Page) -> None:
    await page.open()
    answer = await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=2**53 - 1)
    assert (answer["code"], answer["newer"]) == ("stale_version", [])


async def test_roll_back_is_a_new_version(page: Page) -> None:
    await page.open()
    await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
    answer = await page.ask(type="roll_back", id=2, version=1, based_on=2)
    assert (answer["version"]["number"], answer["version"]["changes"]) == (3, {"max_running": [8, 32]})
    assert answer["version"]["reason"] == "roll back to version 1"
    for wrong in (3, 4, 0, 2**53 - 1):
        refused = await page.ask(type="roll_back", id=3, version=wrong, based_on=3)
        assert (refused["code"], refused["param"]) == ("invalid_value", "version")


async def test_two_pages_agree(make_page: OpenPage) -> None:
    pages = [make_page(await new_session(name)) for name in ("ann", "ben")]
    for page in pages:
        await page.open()
    await pages[0].ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
    await pages[1].ask(type="change", id=1, changes={"max_running": 9}, based_on=2)
    lists = [(await page.ask(type="list_versions", id=2))["versions"] for page in pages]
    assert lists[0] == lists[1]
    assert [version["author"] for version in lists[0]] == ["ben", "ann", "first start"]


async def test_a_page_is_told_of_the_newest_versions_alone(page: Page) -> None:
    await page.open()
    for number in range(1, NUM_VERSIONS + 3):
        await page.ask(type="change", id=number, changes={"max_running": number}, based_on=number)
    listed = await page.ask(type="list_versions", id=99)
    assert [version["number"] for version in listed["versions"]] == list(range(NUM_VERSIONS + 3, 3, -1))


async def test_who_may_only_watch_changes_nothing(make_page: OpenPage) -> None:
    page = make_page(await new_session("viewer", may_steer=False))
    assert (await page.open())["may_steer"] is False
    for command in ({"type": "change", "changes": {"max_running": 8}}, {"type": "roll_back", "version": 1}):
        answer = await page.ask(id=1, based_on=1, **command)
        assert (answer["type"], answer["code"]) == ("refused", "permission_denied")
    assert (await page.ask(type="list_versions", id=2))["versions"][0]["number"] == 1
    assert await current_version() == 1


async def test_permission_is_asked_for_each_command(page: Page) -> None:
    await page.open()
    await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
    user = await User.objects.aget(username="operator")
    await in_thread(user.user_permissions.clear)()
    answer = await page.ask(type="change", id=2, changes={"max_running": 9}, based_on=2)
    assert answer["code"] == "permission_denied"


async def test_a_failure_is_answered_and_the_socket_lives(
    page: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await page.open()
    with monkeypatch.context() as patched:

        def fail(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("a secret detail")

        patched.setattr("serving.tuning.services.change", fail)
        answer = await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
    assert (answer["type"], answer["code"]) == ("refused", "internal_error")
    assert "a secret detail" not in json.dumps(answer)
    assert "a secret detail" in caplog.text
    assert (await page.ask(type="change", id=2, changes={"max_running": 8}, based_on=1))["type"] == "stored"


async def test_no_event_holds_the_text_of_a_key(page: Page, application: Any) -> None:
    key = await in_thread(create_key)("tests", scopes=["operate"])
    await page.open()
    path = f"/ops/v1/pools/{POOL}/tunables"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=f"http://{HOST}") as client:
        for text in (key.text, key.text[:-1], f"{key.text}x"):
            headers = {"Authorization": f"Bearer {text}"}
            await client.patch(path, headers=headers, json={"changes": {"max_running": 8}, "reason": "by REST"})
            await client.patch(f"{path}?key={text}", headers=headers, json={"changes": {"max_running": 0}})
    listed = await page.ask(type="list_versions", id=1)
    assert (listed["versions"][0]["number"], listed["versions"][0]["reason"]) == (2, "by REST")
    refused = await page.ask(type="change", id=2, changes={"max_running": 9}, based_on=1)
    assert refused["newer"][0]["author"].startswith("tests, key ")
    _, _, secret = key.text.split("-", 2)  # a secret may have the sign too
    assert all(key.text not in text and secret not in text for text in page.texts)


async def delete_pool() -> None:
    await (await in_thread(selectors.find_pool)(POOL)).adelete()


@pytest.mark.parametrize(
    "command",
    [
        {"type": "list_versions"},
        {"type": "change", "changes": {"max_running": 8}, "based_on": 1},
        {"type": "roll_back", "version": 1, "based_on": 1},
    ],
)
async def test_a_command_to_a_deleted_pool_ends_the_page(
    page: Page, command: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await page.open()
    await page.receive("history")
    await delete_pool()
    page.send(id=1, **command)
    with pytest.raises(Closed) as closed:
        await page.receive_any()
    assert closed.value.code == protocol.NO_SUCH_POOL
    assert [record for record in caplog.records if record.name.startswith("dashboard")] == []


async def test_a_pool_that_is_deleted_during_a_command_ends_the_page(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    await page.open()
    await page.receive("history")

    def overtaken(*args: Any, **kwargs: Any) -> None:
        selectors.find_pool(POOL).delete()
        raise StaleVersion("version 2 is in force, not 1")

    monkeypatch.setattr("serving.tuning.services.change", overtaken)
    page.send(type="change", id=1, changes={"max_running": 8}, based_on=1)
    with pytest.raises(Closed) as closed:
        await page.receive_any()
    assert closed.value.code == protocol.NO_SUCH_POOL


async def test_a_silent_page_of_a_deleted_pool_is_closed(
    make_page: OpenPage, operator: str, services: Services
) -> None:
    clock = Clock()
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    await delete_pool()
    clock.seconds = 10
    assert await page.until_closed() == protocol.NO_SUCH_POOL
