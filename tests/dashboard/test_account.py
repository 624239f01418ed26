"""One's own account: the password, and where one is signed in."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth import authenticate
from django.contrib.auth.models import User

from dashboard.sessions import SignedOut, read_operator
from dashboard.throttle import MAX_FAILURES
from dashboard.users import change_own_password
from serving.audit.models import AuditEvent
from serving.contracts.actors import Actor
from serving.contracts.errors import StaleVersion
from tests.dashboard.harness import PASSWORD, new_session, sign_in
from tests.dashboard.tenancy import browser, errors_of, fields_of, page_of, submit, words

ACCOUNT = "/console/account/"
OTHER = "quite another password"
in_thread = database_sync_to_async


async def change(client: httpx.AsyncClient, old: str, new: str, again: str | None = None) -> httpx.Response:
    typed = {"old_password": old, "new_password1": new, "new_password2": new if again is None else again}
    return await submit(client, ACCOUNT, at=ACCOUNT, **typed)


async def test_a_changed_password_keeps_this_session_and_ends_the_others(
    application: Any, operator: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = await sign_in(await User.objects.aget(username="operator"))
    async with browser(application, operator) as client:
        assert (await change(client, PASSWORD, OTHER)).status_code == 302
        assert "Your password is changed" in words(await page_of(client, ACCOUNT))
        (kept,) = {cookie.value for cookie in client.cookies.jar if cookie.name == "sessionid"} - {operator}
        assert (await in_thread(read_operator)(kept)).name == "operator"
    for ended in (elsewhere, operator):
        with pytest.raises(SignedOut):
            await in_thread(read_operator)(ended)
    assert await in_thread(authenticate)(username="operator", password=OTHER) is not None
    event = await AuditEvent.objects.aget(action="password changed")
    assert (event.actor, event.subject) == ("operator", "operator")
    written = str([vars(event) async for event in AuditEvent.objects.all()]) + caplog.text
    assert PASSWORD not in written
    assert OTHER not in written


async def test_what_is_wrong_stands_beside_its_field_and_nothing_changes(application: Any, operator: str) -> None:
    wrong = [
        ("wrong password", OTHER, OTHER, "old_password"),
        ("", OTHER, OTHER, "old_password"),
        (PASSWORD, "elevenchars", "elevenchars", "new_password2"),
        (PASSWORD, "1q2w3e4r5t6y", "1q2w3e4r5t6y", "new_password2"),
        (PASSWORD, "operator1234", "operator1234", "new_password2"),
        (PASSWORD, OTHER, OTHER + "s", "new_password2"),
        (PASSWORD, PASSWORD, PASSWORD, "new_password1"),
        (PASSWORD, "long enough, with \0", "long enough, with \0", "new_password1"),
        (PASSWORD, "x" * 5000, "x" * 5000, "new_password1"),
    ]
    async with browser(application, operator) as client:
        for old, new, again, field in wrong:
            refused = await change(client, old, new, again)
            assert (refused.status_code, field in errors_of(refused.text)) == (400, True), new[:30]
            assert all(typed not in refused.text for typed in (old, new) if typed)
        assert (await client.get("/console/")).status_code == 200
    assert await in_thread(authenticate)(username="operator", password=PASSWORD) is not None


async def test_the_old_password_cannot_be_found_out_by_trying(application: Any, operator: str) -> None:
    async with browser(application, operator) as client:
        for number in range(MAX_FAILURES["name"]):
            # What is not even looked at gives no further tries.
            assert (await change(client, f"wrong {number}", "x" * 5000)).status_code == 400
            assert (await change(client, f"wrong {number}", OTHER)).status_code == 400
        held = await change(client, PASSWORD, OTHER)
        assert (held.status_code, "too many passwords were tried" in words(held.text)) == (429, True)
    assert await in_thread(authenticate)(username="operator", password=PASSWORD) is not None


async def test_a_password_that_was_set_anew_meanwhile_stays(application: Any, operator: str) -> None:
    user = await User.objects.aget(username="operator")
    stored = await User.objects.aget(username="operator")
    stored.set_password("set by an administrator")
    await stored.asave()
    with pytest.raises(StaleVersion):
        await in_thread(change_own_password)(user, OTHER, author=Actor("operator", "user"), kept=None)
    assert await in_thread(authenticate)(username="operator", password="set by an administrator") is not None


async def test_one_sees_where_one_is_signed_in_and_ends_it(application: Any, operator: str) -> None:
    stranger = await new_session("someone")
    async with browser(application, None) as client:
        form = {**fields_of(await page_of(client, "/console/login/")), "username": "operator", "password": PASSWORD}
        assert (await client.post("/console/login/", data=form)).status_code == 302
        page = await page_of(client, ACCOUNT)
        assert words(page).count("127.0.0.1 this one") == 1
        assert page.count('data-label="Ends"') == 2
        path = f"{ACCOUNT}end-other-sessions"
        ended = await client.post(path, data=fields_of(page, action=path))
        assert ended.status_code == 302
        assert "1 session ended" in words(await page_of(client, ACCOUNT))
        assert path not in await page_of(client, ACCOUNT)
    with pytest.raises(SignedOut):
        await in_thread(read_operator)(operator)
    assert (await in_thread(read_operator)(stranger)).name == "someone"


async def test_the_account_says_what_its_role_may_do(admin: httpx.AsyncClient) -> None:
    page = words(await page_of(admin, ACCOUNT))
    assert "ann, admin" in page
    assert "admin yours" in page
