"""Quotas of tenants and keys in the console: changing them, their versions, and two at once."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from dashboard.tenant_quotas import PAGE_SIZE
from serving.admission import selectors
from serving.admission.models import ApiKey, QuotaVersion, Tenant
from serving.admission.quotas import change_quotas
from serving.contracts.quotas import quota_names
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import (
    TENANTS,
    errors_of,
    fields_of,
    in_thread,
    make_key,
    make_tenant,
    page_of,
    submit,
    words,
)


class Owner:
    """Whose quotas a test changes: a tenant's or a key's, each with its page."""

    def __init__(self, services: Services, tenant: Tenant, key: ApiKey | None) -> None:
        self.services = services
        self.stored: Tenant | ApiKey = key or tenant
        self._tenant_id = tenant.pk
        self._prefix = None if key is None else key.prefix
        base = f"{TENANTS}{tenant.pk}/"
        self.page = f"{base}quotas/" if key is None else f"{base}keys/{key.prefix}/"

    async def change(self, author: str = "ben", reason: str = "", **changes: int | None) -> None:
        """What another one does meanwhile."""
        await in_thread(change_quotas)(
            self._tenant_id,
            changes,
            author=author,
            redis=self.services.blocking_redis,
            key_prefix=self._prefix,
            reason=reason,
        )

    async def in_force(self) -> tuple[int, dict[str, int]]:
        number, quotas = await in_thread(selectors.current_quotas)(self.stored)
        return number, {name: value for name, value in quotas.as_dict().items() if value is not None}


@pytest.fixture(params=["tenant", "key"])
async def owner(request: Any, services: Services, pool: str) -> Owner:
    tenant = await make_tenant(services)
    if request.param == "tenant":
        return Owner(services, tenant, None)
    prefix = (await make_key(services, tenant)).split("-")[1]
    return Owner(services, tenant, await ApiKey.objects.select_related("tenant").aget(prefix=prefix))


async def test_every_quota_has_a_field_and_is_stored_with_who_and_why(admin: httpx.AsyncClient, owner: Owner) -> None:
    values = {name: str(number) for number, name in enumerate(quota_names(), start=11)}
    response = await submit(admin, owner.page, reason="signed", **values)
    assert (response.status_code, response.headers["Location"]) == (302, owner.page)
    assert await owner.in_force() == (1, {name: int(text) for name, text in values.items()})
    version = await QuotaVersion.objects.aget()
    assert (version.author, version.reason) == ("ann", "signed")
    page = await page_of(admin, owner.page)
    assert "quotas are stored, and count for the next request" in words(page)
    assert {name: fields_of(page, action=owner.page)[name] for name in values} == values
    assert "1 in force" in words(page)
    assert "tokens_per_day no bound → 13" in words(page)


async def test_an_empty_field_takes_a_bound_away_and_thousands_may_be_kept_apart(
    admin: httpx.AsyncClient, owner: Owner
) -> None:
    await owner.change(tokens_per_day=5, requests_per_minute=7)
    await post_change(admin, owner, tokens_per_day="", tokens_per_month="1 500 000")
    assert await owner.in_force() == (2, {"requests_per_minute": 7, "tokens_per_month": 1_500_000})


async def post_change(admin: httpx.AsyncClient, owner: Owner, **changes: Any) -> httpx.Response:
    page = await page_of(admin, owner.page)
    return await admin.post(owner.page, data=fields_of(page, action=owner.page) | changes)


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "1,5", "many", "9" * 40, "1e3", "\0", "NaN", "Infinity", "１２", "0x10"]
)
async def test_what_is_no_bound_is_refused_beside_its_field_and_stays_typed(
    admin: httpx.AsyncClient, owner: Owner, text: str
) -> None:
    """C45."""
    response = await post_change(admin, owner, tokens_per_day=text, requests_per_minute="12")
    assert response.status_code == 400
    errors = errors_of(response.text)
    assert list(errors) == ["tokens_per_day"]
    assert errors["tokens_per_day"].startswith(
        "tokens_per_day must be empty, for no bound, or an integer from 1 to 1000"
    )
    again = fields_of(response.text, action=owner.page)
    assert (again["tokens_per_day"], again["requests_per_minute"], again["based_on"]) == (text, "12", "0")
    assert await owner.in_force() == (0, {})


async def test_nothing_typed_makes_no_version(admin: httpx.AsyncClient, owner: Owner) -> None:
    response = await post_change(admin, owner)
    assert (response.status_code, "nothing would change" in words(response.text)) == (400, True)
    assert await owner.in_force() == (0, {})


async def test_the_later_of_two_sees_the_conflict_and_loses_nothing(admin: httpx.AsyncClient, owner: Owner) -> None:
    await owner.change(tokens_per_minute=100, tokens_per_day=1000)
    form = fields_of(await page_of(admin, owner.page), action=owner.page) | {
        "tokens_per_day": "9000",
        "reason": "for the launch",
    }
    await owner.change(author="carla", reason="too many", tokens_per_minute=50)
    response = await admin.post(owner.page, data=form)
    assert response.status_code == 409
    text = words(response.text)
    assert "version 2 of the quotas is in force, not 1" in text
    assert "Version 2 by carla" in text
    assert "“too many”" in text
    assert "tokens_per_minute 100 → 50" in text
    assert await owner.in_force() == (2, {"tokens_per_minute": 50, "tokens_per_day": 1000})
    again = fields_of(response.text, action=owner.page)
    # What the other did stands, what was typed is kept, and to send it again puts it on top.
    assert (again["tokens_per_minute"], again["tokens_per_day"], again["reason"], again["based_on"]) == (
        "50",
        "9000",
        "for the launch",
        "2",
    )
    assert (await admin.post(owner.page, data=again)).status_code == 302
    assert await owner.in_force() == (3, {"tokens_per_minute": 50, "tokens_per_day": 9000})


@pytest.mark.parametrize("based_on", [None, "", "x", "7", "-1", "9" * 30, "\0"])
async def test_a_form_based_on_no_version_is_refused(
    admin: httpx.AsyncClient, owner: Owner, based_on: str | None
) -> None:
    form = fields_of(await page_of(admin, owner.page), action=owner.page) | {"tokens_per_day": "5"}
    form = (
        {**form, "based_on": based_on} if based_on is not None else {k: v for k, v in form.items() if k != "based_on"}
    )
    response = await admin.post(owner.page, data=form)
    assert (response.status_code, "based_on must be" in words(response.text)) == (400, True)
    assert fields_of(response.text, action=owner.page)["tokens_per_day"] == "5"
    assert await owner.in_force() == (0, {})


async def test_rolls_back_in_one_click(admin: httpx.AsyncClient, owner: Owner) -> None:
    await owner.change(tokens_per_day=5)
    await owner.change(tokens_per_day=6)
    page = await page_of(admin, owner.page)
    assert re.findall(r"/(\d+)/roll-back", page) == ["1"]
    path = f"{owner.page}1/roll-back"
    response = await admin.post(path, data=fields_of(page, action=path))
    assert (response.status_code, response.headers["Location"]) == (302, owner.page)
    assert await owner.in_force() == (3, {"tokens_per_day": 5})
    assert "Rolled back to version 1" in words(await page_of(admin, owner.page))
    by_link = await admin.get(path)
    assert (by_link.status_code, by_link.headers["Location"]) == (302, owner.page)
    assert await owner.in_force() == (3, {"tokens_per_day": 5})


async def test_roll_back_that_another_overtook_shows_what_they_did(admin: httpx.AsyncClient, owner: Owner) -> None:
    await owner.change(tokens_per_day=5)
    await owner.change(tokens_per_day=6)
    path = f"{owner.page}1/roll-back"
    form = fields_of(await page_of(admin, owner.page), action=path)
    await owner.change(author="carla", tokens_per_day=7)
    response = await admin.post(path, data=form)
    assert response.status_code == 409
    assert "Version 3 by carla" in words(response.text)
    assert await owner.in_force() == (3, {"tokens_per_day": 7})


@pytest.mark.parametrize(
    ("number", "form"), [(2, {}), (9, {}), (10**30, {}), (1, {"based_on": "x"}), (1, {"reason": "x" * 501})]
)
async def test_senseless_roll_backs_are_refused(
    admin: httpx.AsyncClient, owner: Owner, number: int, form: dict[str, str]
) -> None:
    await owner.change(tokens_per_day=5)
    await owner.change(tokens_per_day=6)
    token = fields_of(await page_of(admin, owner.page), action=f"{owner.page}1/roll-back")
    response = await admin.post(f"{owner.page}{number}/roll-back", data=token | form)
    assert (response.status_code, 'role="alert"' in response.text) == (400, True)
    assert await owner.in_force() == (2, {"tokens_per_day": 6})


async def test_versions_are_shown_in_pages(admin: httpx.AsyncClient, owner: Owner) -> None:
    total = 2 * PAGE_SIZE + 1
    for number in range(1, total + 1):
        await owner.change(tokens_per_day=number)
    found, url = [], owner.page
    while url:
        page = await page_of(admin, url)
        found.append([int(number) for number in re.findall(r'<th scope="row"[^>]*>(\d+)', page)])
        older = re.search(r'href="([^"]+)" rel="next"', page)
        assert (">Newest<" in page) == (len(found) > 1)
        url = "" if older is None else older[1]
    assert [len(page) for page in found] == [PAGE_SIZE, PAGE_SIZE, 1]
    assert [number for page in found for number in page] == list(range(total, 0, -1))
    for before in ("0", "x", "9" * 30, "%00", "-1"):
        assert (await admin.get(f"{owner.page}?before={before}")).status_code == 200
