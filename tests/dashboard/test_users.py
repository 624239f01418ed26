"""Users of the console: who makes and changes them, and what becomes of those who are changed."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, User
from django.db import connection

from dashboard import users
from dashboard.models import ConsoleSession
from dashboard.permissions import may_steer
from dashboard.roles import ROLES, role_of
from dashboard.sessions import NotAllowed, SignedOut, read_operator
from dashboard.user_reading import UserNotFound, account_of, administrators, find_user, must_change_password
from serving.audit.models import AuditEvent
from serving.contracts.actors import COMMAND_LINE, Actor
from serving.contracts.errors import InvalidValue, StaleVersion
from tests.dashboard.harness import PASSWORD
from tests.dashboard.tenancy import browser, errors_of, fields_of, page_of, session_of, submit, words

USERS = "/console/users/"
ANN = Actor("ann", "user")
BEN = Actor("ben", "user")
in_thread = database_sync_to_async
PASSWORD_SHOWN = re.compile(r'id="secret"[^>]*>([^<]+)<')


def change(name: str, *, by: Any = COMMAND_LINE, **changes: Any) -> bool:
    """Change a user as somebody does who has just looked."""
    user = find_user(User.objects.get(username=name).pk)
    seen = account_of(user).revision
    return users.change_user(user.pk, **{"enabled": user.is_active, "seen": seen, "author": by, **changes})


async def send(client: httpx.AsyncClient, path: str, **changes: Any) -> httpx.Response:
    """Open a user's page, change the form of role and state, and send it."""
    fields = fields_of(await page_of(client, path), action=path) | changes
    return await client.post(path, data={name: value for name, value in fields.items() if value is not None})


@pytest.fixture
async def ben(admin: httpx.AsyncClient) -> str:
    """The path of an operator whom ann may change; she is the one administrator."""
    made = await in_thread(users.make_user)("ben", role="operator", author=ANN)
    return f"{USERS}{made.user_id}/"


async def user_named(name: str) -> Any:
    return await in_thread(lambda: find_user(User.objects.get(username=name).pk))()


async def shown_password(response: httpx.Response) -> str:
    """A password that was given out, which is in no table and on no page that is loaded later."""
    found = PASSWORD_SHOWN.search(response.text)
    assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")
    assert found is not None
    assert found[1] not in str([vars(event) async for event in AuditEvent.objects.all()])
    sessions = [session.get_decoded() async for session in ConsoleSession.objects.all()]
    assert found[1] not in str(sessions)
    return found[1]


# --- who may


@pytest.mark.parametrize("role", sorted(ROLES))
async def test_administrators_alone_see_and_change_users(application: Any, ben: str, role: str) -> None:
    expected = 200 if role == "admin" else 403
    async with browser(application, await session_of(role)) as client:
        for path in (USERS, f"{USERS}new/", ben):
            assert (await client.get(path)).status_code == expected, path
        token = {"csrfmiddlewaretoken": fields_of(await page_of(client, "/console/account/"))["csrfmiddlewaretoken"]}
        for path in (f"{USERS}new/", ben, f"{ben}password", f"{ben}end-sessions"):
            status = (await client.post(path, data=token)).status_code
            assert (status == 403) == (expected == 403), path
        account = await page_of(client, "/console/account/")
        assert (f'href="{USERS}"' in account) == (role == "admin")
    assert (await user_named("ben")).username == "ben"


async def test_each_form_wants_its_token(admin: httpx.AsyncClient, ben: str) -> None:
    for path in (f"{USERS}new/", ben, f"{ben}password", f"{ben}end-sessions"):
        assert (await admin.post(path, data={"name": "x", "role": "viewer", "seen": "1"})).status_code == 403
    assert (await user_named("ben")).is_active


async def test_users_who_are_not_there_are_not_found(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(f"{USERS}999999/")).status_code == 404
    with pytest.raises(UserNotFound):
        await in_thread(find_user)(999_999)


# --- the list, and making one


async def test_the_list_says_who_there_is_and_what_roles_may(admin: httpx.AsyncClient, ben: str) -> None:
    await in_thread(change)("ben", role="auditor", enabled=False)
    page = words(await page_of(admin, USERS))
    assert re.search(r"ann admin the user’s own 1 \d{4}-", page)
    assert re.search(r"ben disabled auditor to be changed 0 never", page)
    assert re.search(r"Read the audit – no – no yes yes", page)
    assert "ben" not in words(await page_of(admin, f"{USERS}?q=AN"))
    assert "No user has “zoe” in the name." in words(await page_of(admin, f"{USERS}?q=zoe"))


async def test_a_search_that_no_database_takes_is_refused(admin: httpx.AsyncClient) -> None:
    for asked in ("q=%00", "after=%00", f"q={'x' * 151}", "q=fp-0123456789ab-secret", "after=fp-0123456789ab-secret"):
        page = await page_of(admin, f"{USERS}?{asked}", status=400)
        assert "q must be a text" in errors_of(page)["q"]
        assert "secret" not in page


async def test_long_lists_have_pages(admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.user_pages.PAGE_SIZE", 2)
    for name in ("bea", "cem", "dan"):
        await in_thread(User.objects.create_user)(name)
    first = await page_of(admin, USERS)
    assert "bea" in first
    assert "cem" not in first
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    second = await page_of(admin, following[1])
    assert ("cem" in second, "dan" in second, 'rel="next"' in second) == (True, True, False)


async def test_a_new_user_chooses_a_password_before_anything_else(application: Any, admin: httpx.AsyncClient) -> None:
    made = await submit(admin, f"{USERS}new/", name=" olga ", role="operator", reason="on call")
    password = await shown_password(made)
    event = await AuditEvent.objects.aget(action="user made", subject="olga")
    assert (event.actor, event.changes, event.reason) == ("ann", {"role": [None, "operator"]}, "on call")
    async with browser(application, None) as client:
        form = {**fields_of(await page_of(client, "/console/login/")), "username": "olga", "password": password}
        assert (await client.post("/console/login/", data=form)).status_code == 302
        session = (await client.get("/console/session.json")).json()
        assert session == {"user": "olga", "may_watch": True, "must_change_password": True}
        # `sending.js` lets the forms of this page go all the same.
        assert "data-for-all" in await page_of(client, "/console/account/")
        for path in ("/console/", "/console/tuning/", "/console/alerts/banner"):
            sent = await client.get(path)
            assert (sent.status_code, sent.headers["Location"]) == (302, "/console/account/"), path
        with pytest.raises(NotAllowed, match="password of your own"):
            await in_thread(read_operator)(client.cookies["sessionid"])
        changed = await submit(
            client, "/console/account/", old_password=password, new_password1=PASSWORD, new_password2=PASSWORD
        )
        assert changed.status_code == 302
        assert (await client.get("/console/")).status_code == 200
        assert (await in_thread(read_operator)(client.cookies["sessionid"])).may_steer


async def test_names_that_cannot_be_are_refused_and_what_was_typed_stays(admin: httpx.AsyncClient) -> None:
    for name in ("", " ", "x" * 151, "a\0b", "a\nb", "ann", "ANN", "fp-0123456789ab-secret"):
        refused = await submit(admin, f"{USERS}new/", name=name, role="auditor", reason="because")
        assert refused.status_code == 400
        assert errors_of(refused.text)["name"].startswith("name must be ")
        fields = fields_of(refused.text)
        assert (fields["role"], fields["reason"]) == ("auditor", "because")
        assert "secret" not in refused.text
    assert await User.objects.acount() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["\u00a8x", "\ufdfa" * 10, "\uff46\uff50-0123456789ab-secret"])
def test_a_name_is_judged_as_it_is_kept(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"^name must be "):
        users.make_user(name, role="viewer", author=COMMAND_LINE)
    assert not User.objects.exists()


async def test_a_name_is_shown_as_it_is_kept(admin: httpx.AsyncClient) -> None:
    made = await submit(admin, f"{USERS}new/", name="\uff4flga", role="viewer")
    assert "Hand it to olga" in words(made.text)


@pytest.mark.django_db
def test_names_that_differ_in_case_alone_are_one_on_every_database() -> None:
    users.make_user("ärger", role="viewer", author=COMMAND_LINE)
    with pytest.raises(InvalidValue, match="in whatever case"):
        users.make_user("Ärger", role="viewer", author=COMMAND_LINE)


async def test_a_role_that_is_none_and_a_reason_that_cannot_be_kept_are_refused(
    admin: httpx.AsyncClient, ben: str
) -> None:
    for fill, path in ((submit, f"{USERS}new/"), (send, ben)):
        for field, value in (("role", "king"), ("reason", "a\0b"), ("reason", "x" * 501)):
            refused = await fill(admin, path, **{"name": "zoe", field: value})
            assert (refused.status_code, list(errors_of(refused.text))) == (400, [field])
    assert role_of(await user_named("ben")) == "operator"


# --- changing one


async def test_a_role_is_changed_and_counts_at_once(application: Any, admin: httpx.AsyncClient, ben: str) -> None:
    cookie = await session_of("operator", "cem")
    cem = f"{USERS}{(await user_named('cem')).pk}/"
    assert (await in_thread(read_operator)(cookie)).may_steer
    changed = await send(admin, cem, role="viewer", reason="left the team")
    assert (changed.status_code, changed.headers["Location"]) == (302, cem)
    assert not (await in_thread(read_operator)(cookie)).may_steer
    event = await AuditEvent.objects.aget(action="user changed")
    assert (event.actor, event.subject, event.changes, event.reason) == (
        "ann",
        "cem",
        {"role": ["operator", "viewer"]},
        "left the team",
    )
    page = words(await page_of(admin, cem))
    assert "The change is stored" in page
    assert re.search(r"Last changed \d{4}-\S+ \S+ by ann", page)
    same = await send(admin, cem)
    assert same.status_code == 302
    assert await AuditEvent.objects.filter(action="user changed").acount() == 1


async def test_who_is_disabled_is_signed_out_for_good(application: Any, admin: httpx.AsyncClient) -> None:
    cookie = await session_of("operator", "cem")
    cem = f"{USERS}{(await user_named('cem')).pk}/"
    assert (await send(admin, cem, enabled=None)).status_code == 302
    with pytest.raises(SignedOut):
        await in_thread(read_operator)(cookie)
    assert await in_thread(authenticate)(username="cem", password=PASSWORD) is None
    assert "disabled" in words(await page_of(admin, cem))
    assert (await send(admin, cem, enabled="on")).status_code == 302
    assert await in_thread(authenticate)(username="cem", password=PASSWORD) is not None
    # What ended does not come back.
    with pytest.raises(SignedOut):
        await in_thread(read_operator)(cookie)


async def test_a_role_keeps_what_a_user_has_beside_it(admin: httpx.AsyncClient, ben: str) -> None:
    def add_groups() -> None:
        ben = User.objects.get(username="ben")
        ben.groups.add(Group.objects.create(name="night shift"), Group.objects.get(name="auditor"))

    await in_thread(add_groups)()
    page = words(await page_of(admin, ben))
    assert "operator, auditor and night shift" in page
    assert (await send(admin, ben)).status_code == 302
    assert role_of(await user_named("ben")) == "operator, auditor"
    assert (await send(admin, ben, role="viewer")).status_code == 302
    assert {group.name for group in (await user_named("ben")).groups.all()} == {"viewer", "night shift"}


async def test_of_two_windows_the_second_is_told_and_nothing_typed_is_lost(admin: httpx.AsyncClient, ben: str) -> None:
    old = fields_of(await page_of(admin, ben), action=ben)
    assert (await send(admin, ben, role="viewer")).status_code == 302
    for path in (ben, f"{ben}password"):
        stale = await admin.post(path, data={**old, "role": "auditor", "reason": "mine"})
        assert stale.status_code == 409
        assert "ben was changed since this page was loaded, last by ann" in words(stale.text)
    assert role_of(await user_named("ben")) == "viewer"
    stale = await admin.post(ben, data={**old, "role": "auditor", "reason": "mine"})
    fields = fields_of(stale.text, action=ben)
    assert (fields["role"], fields["reason"]) == ("auditor", "mine")
    assert (await admin.post(ben, data=fields)).status_code == 302
    assert role_of(await user_named("ben")) == "auditor"


async def test_a_form_that_does_not_say_what_it_saw_is_refused(admin: httpx.AsyncClient, ben: str) -> None:
    for seen in ("", "-1", "one", "\0", "9" * 40):
        assert (await send(admin, ben, role="viewer", seen=seen)).status_code == 409
    assert role_of(await user_named("ben")) == "operator"


# --- passwords and sessions of others


async def test_a_new_password_is_shown_once_and_ends_the_old_and_all_sessions(
    admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    cookie = await session_of("operator", "cem")
    cem = f"{USERS}{(await user_named('cem')).pk}/"
    form = fields_of(await page_of(admin, cem), action=f"{cem}password")
    response = await admin.post(f"{cem}password", data=form)
    password = await shown_password(response)
    assert await in_thread(authenticate)(username="cem", password=password) is not None
    assert await in_thread(authenticate)(username="cem", password=PASSWORD) is None
    assert await in_thread(must_change_password)(await user_named("cem"))
    with pytest.raises(SignedOut):
        await in_thread(read_operator)(cookie)
    # The same form again is out of date, and a page that is loaded tells nothing.
    again = await admin.post(f"{cem}password", data=form)
    assert (again.status_code, password in again.text) == (409, False)
    assert (await admin.get(f"{cem}password")).headers["Location"] == cem
    assert password not in await page_of(admin, cem)
    assert password not in caplog.text


async def test_nobody_becomes_a_superuser_by_setting_the_password_of_one(admin: httpx.AsyncClient) -> None:
    root = await in_thread(User.objects.create_superuser)("root", password=PASSWORD)
    path = f"{USERS}{root.pk}/"
    assert "Set a new password" not in words(await page_of(admin, path))
    with pytest.raises(NotAllowed):
        await in_thread(users.set_new_password)(root.pk, seen=0, author=ANN)
    with pytest.raises(InvalidValue, match="left as it is"):
        await in_thread(change)("root", by=ANN, role="viewer")
    assert await in_thread(change)("root", by=ANN, enabled=False)
    assert await in_thread(authenticate)(username="root", password=PASSWORD) is None


async def test_all_sessions_of_a_user_are_ended(admin: httpx.AsyncClient, ben: str) -> None:
    cookie = await session_of("operator", "cem")
    cem = f"{USERS}{(await user_named('cem')).pk}/"
    form = fields_of(await page_of(admin, cem), action=f"{cem}end-sessions")
    assert (await admin.post(f"{cem}end-sessions", data=form)).status_code == 302
    assert "Signed out: 1 session ended." in words(await page_of(admin, cem))
    with pytest.raises(SignedOut):
        await in_thread(read_operator)(cookie)
    assert await in_thread(authenticate)(username="cem", password=PASSWORD) is not None
    assert (await AuditEvent.objects.aget(action="sessions ended")).subject == "cem"
    assert (await admin.get("/console/account/")).status_code == 200


# --- the last one who may


@pytest.mark.django_db(transaction=True)
def test_the_last_administrator_stays(transactional_db: None) -> None:
    users.make_user("ann", role="admin", author=COMMAND_LINE)
    users.make_user("ben", role="viewer", author=COMMAND_LINE)
    for changes in ({"role": "operator"}, {"enabled": False}):
        with pytest.raises(users.LastAdministrator, match="ann is the last"):
            change("ann", **changes)
    assert [user.username for user in administrators()] == ["ann"]
    assert not AuditEvent.objects.filter(action="user changed").exists()
    assert change("ben", role="admin")
    assert change("ann", role="operator")
    with pytest.raises(users.LastAdministrator, match="ben is the last"):
        change("ben", enabled=False)


async def test_the_page_says_why_the_last_administrator_stays(admin: httpx.AsyncClient) -> None:
    path = f"{USERS}{(await user_named('ann')).pk}/"
    refused = await send(admin, path, enabled=None, reason="holidays")
    assert refused.status_code == 400
    assert "ann is the last one who may change users" in errors_of(refused.text)["role"]
    fields = fields_of(refused.text, action=path)
    assert (fields["reason"], "enabled" in fields) == ("holidays", False)
    assert (await admin.get(path)).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_of_two_who_demote_each_other_at_once_one_stays(transactional_db: None) -> None:
    ids = {name: users.make_user(name, role="admin", author=COMMAND_LINE).user_id for name in ("ann", "ben")}
    begin = threading.Barrier(2)

    def demote(author: Actor, victim: str) -> str:
        try:
            begin.wait(timeout=20)
            users.change_user(ids[victim], role="viewer", enabled=True, seen=1, author=author)
        except NotAllowed:
            return "refused"
        finally:
            connection.close()
        return "done"

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(demote, (ANN, BEN), ("ben", "ann")))
    assert sorted(outcomes) == ["done", "refused"]
    assert administrators().count() == 1


@pytest.mark.django_db(transaction=True)
def test_who_was_demoted_meanwhile_changes_nothing(transactional_db: None) -> None:
    for name in ("ann", "ben"):
        users.make_user(name, role="admin", author=COMMAND_LINE)
    change("ben", by=ANN, role="viewer")
    ann = User.objects.get(username="ann")
    with pytest.raises(NotAllowed):
        users.make_user("eve", role="admin", author=BEN)
    with pytest.raises(NotAllowed):
        change("ann", by=BEN, enabled=False)
    with pytest.raises(NotAllowed):
        users.set_new_password(ann.pk, seen=1, author=BEN)
    with pytest.raises(NotAllowed):
        users.end_sessions(ann.pk, author=BEN)
    with pytest.raises(StaleVersion):
        users.change_user(ann.pk, enabled=False, seen=0, author=ANN)
    assert may_steer(ann)
    assert not User.objects.filter(username="eve").exists()
