"""The console's pages: what they show, and rolling back by a form."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User

from dashboard.tuning_history import PAGE_SIZE
from serving.contracts.tunables import describe
from serving.tuning import selectors
from serving.tuning.services import change, ensure_pool
from tests.dashboard.harness import ORIGIN, POOL, Services, new_session

in_thread = database_sync_to_async
VERSIONS = f"/console/pools/{POOL}/versions/"


def browser(application: Any, cookie: str | None) -> httpx.AsyncClient:
    cookies = {} if cookie is None else {"sessionid": cookie}
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=ORIGIN, cookies=cookies)


@pytest.fixture
async def client(application: Any, operator: str) -> Any:
    async with browser(application, operator) as client:
        yield client


async def tune(services: Services, *, author: str = "ben", reason: str = "", **changes: Any) -> int:
    version = await in_thread(change)(POOL, changes, reason=reason, author=author, redis=services.blocking_redis)
    number: int = version.number
    return number


async def roll_back(client: httpx.AsyncClient, number: int, **form: str) -> httpx.Response:
    """Post the form as the page has it, with its token."""
    page = (await client.get(VERSIONS)).text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    return await client.post(f"{VERSIONS}{number}/roll-back", data={"csrfmiddlewaretoken": token[1], **form})


async def newest_number() -> int:
    number: int = (await in_thread(selectors.current_version)(POOL)).number
    return number


async def test_live_page_has_a_lever_for_every_tunable(client: httpx.AsyncClient) -> None:
    for path in ("/console/", f"/console/pools/{POOL}/"):
        response = await client.get(path)
        assert response.status_code == 200
        for spec in describe():
            assert f'data-lever="{spec.name}"' in response.text
            assert spec.help in response.text
        assert "a-model" in response.text
        assert f"/console/live/{POOL}" in response.text
        assert f"/console/pools/{POOL}/prompt" in response.text
        assert 'data-may-steer="true"' in response.text


async def test_live_page_suggests_pools_of_its_model_for_long_prompts(client: httpx.AsyncClient) -> None:
    for name, model in (("bulk", "a-model"), ("elsewhere", "another-model")):
        await in_thread(ensure_pool)(name, model)
    page = (await client.get(f"/console/pools/{POOL}/")).text
    datalist = re.search(r'<datalist id="lever-long_prompt_pool-suggestions">(.*?)</datalist>', page)
    assert datalist is not None
    assert re.findall(r'value="([^"]+)"', datalist[1]) == ["bulk"]
    assert 'list="lever-long_prompt_pool-suggestions"' in page


async def test_live_page_of_a_viewer_says_so(application: Any) -> None:
    async with browser(application, await new_session("viewer", may_steer=False)) as client:
        assert 'data-may-steer="false"' in (await client.get("/console/")).text
        assert "roll-back" not in (await client.get(VERSIONS)).text


async def test_live_page_has_a_prompt_box_for_those_who_may_ask(application: Any, client: httpx.AsyncClient) -> None:
    assert 'id="prompt-form"' in (await client.get("/console/")).text
    async with browser(application, await new_session("viewer", may_prompt=False)) as other:
        page = (await other.get("/console/")).text
    assert 'id="prompt-form"' not in page
    assert 'data-prompt-url=""' in page
    assert "You may watch, but not ask the model." in page


async def test_live_page_opens_on_the_pool_that_commands_mean_and_leads_to_the_others(
    client: httpx.AsyncClient, settings: Any
) -> None:
    await in_thread(ensure_pool)("a first", "another-model")
    assert f'data-socket-path="/console/live/{POOL}"' in (await client.get("/console/")).text
    settings.FOOTPLATE_POOL = "gone"
    page = (await client.get("/console/")).text
    assert "another-model" in page
    assert "/console/pools/a%20first/" in page
    assert f"/console/pools/{POOL}/" in page
    named = (await client.get("/console/pools/a%20first/")).text
    assert "another-model" in named
    assert 'data-socket-path="/console/live/a%20first"' in named


async def test_live_page_without_a_pool_says_so(client: httpx.AsyncClient) -> None:
    pool = await in_thread(selectors.find_pool)(POOL)
    await pool.adelete()
    response = await client.get("/console/")
    assert response.status_code == 200
    assert "No pool yet" in response.text


@pytest.mark.parametrize("name", ["nowhere", "no%00where"])
async def test_unknown_pools_are_not_found(client: httpx.AsyncClient, name: str) -> None:
    for path in ("", "versions/", "versions/?before=3"):
        assert (await client.get(f"/console/pools/{name}/{path}")).status_code == 404


async def test_versions_tell_who_when_why_and_what_changed(client: httpx.AsyncClient, services: Services) -> None:
    await tune(services, max_queue_tokens=1000, batch_window_ms=2.5, reason="<b>shorter</b>")
    page = (await client.get(VERSIONS)).text
    assert "ben" in page
    assert "&lt;b&gt;shorter&lt;/b&gt;" in page
    text = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert "max_queue_tokens 262,144 → 1,000 tokens" in text
    assert "batch_window_ms 0 → 2.5 ms" in text
    assert "2 in force" in text
    assert re.findall(r"versions/(\d+)/roll-back", page) == ["1"]


async def test_versions_are_shown_in_pages(client: httpx.AsyncClient, services: Services) -> None:
    total = 2 * PAGE_SIZE + 1
    for number in range(2, total + 1):
        await tune(services, max_running=number)
    pages, url = [], VERSIONS
    while url:
        page = (await client.get(url)).text
        pages.append([int(number) for number in re.findall(r'<th scope="row"[^>]*>(\d+)', page)])
        older, newer = (re.search(rf'href="([^"]+)" rel="{rel}"', page) for rel in ("next", "prev"))
        if newer is not None:
            assert (await client.get(newer[1])).text.count('<th scope="row"') == PAGE_SIZE
        url = "" if older is None else older[1]
    assert [len(page) for page in pages] == [PAGE_SIZE, PAGE_SIZE, 1]
    assert [number for page in pages for number in page] == list(range(total, 0, -1))


@pytest.mark.parametrize("before", ["0", "1", "-1", "x", "9" * 30, "", "%00", "1.5"])
async def test_any_page_asked_for_is_answered(client: httpx.AsyncClient, before: str) -> None:
    assert (await client.get(f"{VERSIONS}?before={before}")).status_code == 200


async def test_rolls_back_in_one_click(client: httpx.AsyncClient, services: Services) -> None:
    await tune(services, max_running=8)
    response = await roll_back(client, 1, based_on="2")
    assert (response.status_code, response.headers["Location"]) == (302, VERSIONS)
    page = (await client.get(VERSIONS)).text
    assert "version 3 is stored" in page
    version = await in_thread(selectors.current_version)(POOL)
    assert (version.number, version.author, version.changes) == (3, "operator", {"max_running": [8, 32]})
    assert "is stored" not in (await client.get(VERSIONS)).text


async def test_roll_back_that_another_overtook_shows_what_they_did(
    client: httpx.AsyncClient, services: Services
) -> None:
    await tune(services, max_running=8)
    await tune(services, prefill_share=0.25, author="carla", reason="smoother")
    response = await roll_back(client, 1, based_on="2")
    assert response.status_code == 409
    alert = response.text[response.text.index('role="alert"') : response.text.index("<table")]
    text = " ".join(re.sub(r"<[^>]+>", "", alert).split())
    assert "version 3 is in force, not 2" in text
    assert "Version 3 by carla" in text
    assert "“smoother”" in text
    assert "prefill_share 0.5 → 0.25" in text
    assert "max_running" not in text
    assert await newest_number() == 3


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (2, {"based_on": "2"}),
        (9, {"based_on": "2"}),
        (10**30, {"based_on": "2"}),
        (1, {}),
        (1, {"based_on": "two"}),
        (1, {"based_on": "2", "reason": "x" * 501}),
    ],
)
async def test_senseless_roll_backs_are_refused(
    client: httpx.AsyncClient, services: Services, number: int, form: dict[str, str]
) -> None:
    await tune(services, max_running=8)
    response = await roll_back(client, number, **form)
    assert (response.status_code, 'role="alert"' in response.text) == (400, True)
    assert await newest_number() == 2


async def test_roll_back_needs_right_token_and_method(
    client: httpx.AsyncClient, services: Services, application: Any
) -> None:
    await tune(services, max_running=8)
    path = f"{VERSIONS}1/roll-back"
    assert (await client.post(path, data={"based_on": "2"})).status_code == 403
    by_link = await client.get(path)
    assert (by_link.status_code, by_link.headers["Location"]) == (302, VERSIONS)
    await User.objects.filter(username="operator").aupdate(is_superuser=False)
    user = await User.objects.aget(username="operator")
    await in_thread(user.user_permissions.clear)()
    async with browser(application, None) as stranger:
        login = (await stranger.get("/console/login/")).text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', login)
        assert token is not None
        client.cookies.set("csrftoken", stranger.cookies["csrftoken"])
    refused = await client.post(path, data={"based_on": "2", "csrfmiddlewaretoken": token[1]})
    assert refused.status_code == 403
    assert await newest_number() == 2


async def test_roll_back_of_an_unknown_pool_is_not_found(client: httpx.AsyncClient) -> None:
    page = (await client.get("/console/")).text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    response = await client.post(
        "/console/pools/nowhere/versions/1/roll-back", data={"csrfmiddlewaretoken": token[1], "based_on": "1"}
    )
    assert response.status_code == 404


async def test_refusals_stand_in_the_consoles_frame(client: httpx.AsyncClient) -> None:
    nowhere = await client.get("/console/pools/nowhere/")
    no_token = await client.post(f"{VERSIONS}1/roll-back", data={"based_on": "1"})
    by_link = await client.get("/console/logout/")
    for response, status, text in (
        (nowhere, 404, "There is no such page"),
        (no_token, 403, "the form was out of date"),
        (by_link, 405, "belongs to a button"),
    ):
        assert response.status_code == status
        assert text in " ".join(response.text.split())
        assert 'href="/console/"' in response.text
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert by_link.headers["Allow"] == "POST, OPTIONS"


async def test_pages_come_compressed_to_who_takes_it_and_are_the_same(client: httpx.AsyncClient) -> None:
    plain = await client.get("/console/", headers={"Accept-Encoding": "identity"})
    packed = await client.get("/console/", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert int(packed.headers["Content-Length"]) < len(plain.content) / 3
    secret = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')  # masked anew in each page
    assert secret.sub("", packed.text) == secret.sub("", plain.text)


async def test_a_page_s_length_does_not_tell_what_is_in_it(client: httpx.AsyncClient) -> None:
    lengths = {
        (await client.get("/console/", headers={"Accept-Encoding": "gzip"})).headers["Content-Length"]
        for _ in range(20)
    }
    assert len(lengths) > 1


async def test_the_live_page_is_found_by_its_name_too(client: httpx.AsyncClient) -> None:
    response = await client.get("/console/live/")
    assert response.status_code == 200
    assert f"/console/live/{POOL}" in response.text


@pytest.mark.parametrize("charset", ["unicode_escape", "utf-7", "UTF-16"])
async def test_forms_in_other_encodings_are_refused(client: httpx.AsyncClient, charset: str) -> None:
    kind = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
    response = await client.post("/console/login/", content=rb"username=\ud800&password=x", headers=kind)
    assert response.status_code == 400
    assert charset in response.text
