"""The pages about alerts: what goes on, rules that are made, changed and deleted, and who may do what."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry import alert_rules
from serving.telemetry.alert_log import store_alerts
from serving.telemetry.alerts import RaisedAlert, encode_alert
from serving.tuning.services import ensure_pool, leave_out_others
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import browser, errors_of, fields_of, in_thread, page_of, session_of, submit, words

ALERTS = "/console/alerts/"
NEW = f"{ALERTS}new/"


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.FOOTPLATE_WEBHOOK_HOSTS = frozenset({"alerts.example"})


@pytest.fixture
async def operator(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator")) as client:
        yield client


async def make_rule(operator: httpx.AsyncClient, **changes: str) -> Any:
    response = await submit(operator, NEW, **{"name": "slow", "bound": "750", **changes})
    assert response.status_code == (200 if changes.get("webhook_url") else 302), errors_of(response.text)
    return (await in_thread(alert_rules.all_rules)())[-1]


async def change(operator: httpx.AsyncClient, rule: Any, **changes: str) -> httpx.Response:
    """Send the rule's form, which stands before those that do something else to it."""
    url = f"{ALERTS}{rule.pk}/"
    form, _, _ = (await page_of(operator, url)).partition("rule-act")
    return await operator.post(url, data=fields_of(form + "</form>") | changes)


async def raise_alert(services: Services, rule: Any, **changes: Any) -> RaisedAlert:
    alert = RaisedAlert(
        **{
            "alert_id": f"{rule.pk}.1:default:5",
            "rule_id": rule.pk,
            "revision": 1,
            "name": rule.name,
            "pool": PoolName("default"),
            "text": "TTFT p95 above 750 ms for 60 s",
            "value": 912.4,
            "began_at": 1_790_000_000.0,
            **changes,
        }
    )
    await services.redis.hset(keys.alerts(), f"{rule.pk}:default", encode_alert(alert))
    await services.redis.xadd(keys.alert_log(), {keys.FIELD: encode_alert(alert)})
    return alert


async def test_without_rules_the_page_says_what_to_do(operator: httpx.AsyncClient, pool: str) -> None:
    text = words(await page_of(operator, ALERTS))
    assert "Nothing is the matter, as far as is watched: there is no rule yet." in text
    assert "A good first rule" in text


async def test_a_rule_is_made_shown_and_watched(operator: httpx.AsyncClient, pool: str) -> None:
    await make_rule(operator, pool="default", webhook_url="https://alerts.example/hook")
    await make_rule(operator, name="failing", metric="error_ratio", bound="2.5", for_seconds="30")
    text = words(await page_of(operator, ALERTS))
    assert "slow default TTFT p95 above 750 ms for 60 s alerts.example ✓ met" in text
    assert "failing each Failed requests above 2.5 % for 30 s none ✓ met" in text
    bounds = {rule.name: rule.condition.bound for rule in await in_thread(alert_rules.rules_in_force)()}
    assert bounds == {"slow": 750.0, "failing": 0.025}


@pytest.mark.parametrize(
    ("typed", "field", "message"),
    [
        ({"name": " "}, "name", "1 to 100 characters"),
        ({"bound": "fast"}, "bound", "bound must be a number, not 'fast'"),
        ({"metric": "error_ratio", "bound": "250"}, "bound", "a number from 0 to 100 (%), not 250"),
        ({"for_seconds": "99999"}, "for_seconds", "from 0 to 3600"),
        ({"pool": "gone"}, "pool", "one of default"),
        ({"webhook_url": "https://evil.example/"}, "webhook_url", "alerts.example"),
        ({"webhook_url": "http://alerts.example/"}, "webhook_url", "https"),
        ({"metric": "nul\0"}, "metric", "one of"),
    ],
)
async def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(
    operator: httpx.AsyncClient, pool: str, typed: dict[str, str], field: str, message: str
) -> None:
    response = await submit(operator, NEW, **{"name": "slow", "bound": "750", **typed})
    assert response.status_code == 400
    assert message in errors_of(response.text)[field]
    if field in ("bound", "for_seconds", "webhook_url"):
        assert f'value="{typed[field]}"' in response.text
    assert await in_thread(alert_rules.all_rules)() == []


async def test_of_two_who_change_a_rule_the_later_sees_the_other_change(operator: httpx.AsyncClient, pool: str) -> None:
    rule = await make_rule(operator)
    assert (await change(operator, rule, bound="800")).status_code == 302
    late = await change(operator, rule, bound="900", revision="1")
    assert late.status_code == 409
    assert "stored now as: TTFT p95 above 800 ms" in words(late.text)
    assert 'value="900"' in late.text
    assert 'name="revision" value="2"' in late.text
    assert (await change(operator, rule, bound="900")).status_code == 302


async def test_what_was_typed_about_a_rule_that_was_deleted_meanwhile_can_be_made_a_new_one(
    operator: httpx.AsyncClient, pool: str
) -> None:
    rule = await make_rule(operator)
    page = f"{ALERTS}{rule.pk}/"
    form, _, _ = (await page_of(operator, page)).partition("rule-delete")
    assert (await submit(operator, page, at=f"{page}delete")).status_code == 302
    late = await operator.post(page, data=fields_of(form + "</form>") | {"bound": "900"})
    assert (late.status_code, "somebody deleted this rule meanwhile" in words(late.text)) == (409, True)
    assert (await operator.post(NEW, data=fields_of(late.text, action=NEW))).status_code == 302
    assert [rule.bound for rule in await in_thread(alert_rules.all_rules)()] == [900]


async def test_a_rule_that_was_changed_meanwhile_is_not_deleted(operator: httpx.AsyncClient, pool: str) -> None:
    rule = await make_rule(operator)
    page = f"{ALERTS}{rule.pk}/"
    stale = fields_of(await page_of(operator, page), action=f"{page}delete")
    assert (await change(operator, rule, bound="800")).status_code == 302
    answer = await operator.post(f"{page}delete", data=stale)
    assert (answer.status_code, answer.headers["Location"]) == (302, page)
    text = await page_of(operator, page)
    assert "The rule is not deleted: somebody changed this rule meanwhile" in words(text)
    assert (await operator.post(f"{page}delete", data=fields_of(text, action=f"{page}delete"))).status_code == 302
    assert await in_thread(alert_rules.all_rules)() == []


async def test_a_rule_is_deleted_and_its_alerts_stay(
    operator: httpx.AsyncClient, services: Services, pool: str
) -> None:
    rule = await make_rule(operator, webhook_url="https://alerts.example/hook")
    await raise_alert(services, rule)
    await sync_to_async(store_alerts)(services.blocking_redis)
    text = words(await page_of(operator, ALERTS))
    assert "slow default TTFT p95 above 750 ms for 60 s; it was 912.4 ms." in text
    assert "▲ missed" in text
    assert "912.4 ms goes on beginning to be told" in text
    page = f"{ALERTS}{rule.pk}/"
    assert (await submit(operator, page, at=f"{page}delete")).status_code == 302
    await services.redis.delete(keys.alerts())
    text = words(await page_of(operator, ALERTS))
    assert "The rule slow is deleted." in text
    assert "912.4 ms goes on" in text
    assert (await operator.get(page)).status_code == 404


def secret_in(page: str) -> str:
    found = re.search(r">(whsec_[A-Za-z0-9+/]{43}=)<", page)
    assert found
    return found[1]


async def test_a_webhooks_secret_is_shown_once_and_renewed_by_whoever_saw_the_last(
    operator: httpx.AsyncClient, pool: str
) -> None:
    told = {"name": "slow", "bound": "750", "webhook_url": "https://alerts.example/hook"}
    made = await submit(operator, NEW, **told)
    assert made.headers["Cache-Control"] == "no-store"
    secrets = [secret_in(made.text)]
    (rule,) = await in_thread(alert_rules.all_rules)()
    assert secrets[0] == alert_rules.webhook_secret(rule)
    page = f"{ALERTS}{rule.pk}/"
    assert (await change(operator, rule, bound="800")).status_code == 302, "the address is the same"
    stale = fields_of(await page_of(operator, page), action=f"{page}secret")
    secrets.append(secret_in((await operator.post(f"{page}secret", data=stale)).text))
    assert (await operator.post(f"{page}secret", data=stale)).headers["Location"] == page
    assert "Nothing was changed: somebody renewed this secret meanwhile" in words(await page_of(operator, page))
    assert (await operator.get(f"{page}secret")).status_code == 302
    secrets.append(secret_in((await change(operator, rule, webhook_url="https://alerts.example/new")).text))
    assert len(set(secrets)) == 3
    assert (await change(operator, rule, webhook_url="")).status_code == 302
    assert "fingerprint" not in await page_of(operator, page)
    told_of = repr([vars(event) async for event in AuditEvent.objects.all()])
    assert "webhook secret renewed" in told_of
    everything = [await page_of(operator, path) for path in (ALERTS, page)] + [told_of]
    assert not any(secret[6:] in text for secret in secrets for text in everything)


async def test_a_rule_of_a_pool_that_was_left_out_rests_and_watches_again_with_it(
    operator: httpx.AsyncClient, services: Services, pool: str
) -> None:
    await in_thread(ensure_pool)("second", "a-model")
    rule = await make_rule(operator, pool="second")
    await raise_alert(services, rule, pool=PoolName("second"))
    ended = await raise_alert(services, rule, pool=PoolName("second"), ended_at=1_790_000_060.0, why_ended="left out")
    await services.redis.delete(keys.alerts())
    await sync_to_async(store_alerts)(services.blocking_redis)
    await in_thread(leave_out_others)([pool])
    text = words(await page_of(operator, ALERTS))
    assert "slow second TTFT p95 above 750 ms for 60 s none rests: pool not configured" in text
    assert f"{ended.value} ms 1 min left out" in text
    assert (await change(operator, rule, bound="800")).status_code == 302, "it can be changed all the same"
    refused = await submit(operator, NEW, name="another", bound="1", pool="second")
    assert errors_of(refused.text)["pool"] == "pool must be empty (each pool), or one of default, not 'second'."
    await in_thread(ensure_pool)("second", "a-model")
    assert "rests" not in words(await page_of(operator, ALERTS))


async def test_the_banner_tells_every_page_what_goes_on(
    operator: httpx.AsyncClient, services: Services, pool: str
) -> None:
    assert (await operator.get(f"{ALERTS}banner")).json() == {"alerts": []}
    rule = await make_rule(operator)
    alert = await raise_alert(services, rule)
    told = (await operator.get(f"{ALERTS}banner")).json()["alerts"]
    assert told == [{"name": "slow", "pool": "default", "text": alert.text}]


async def test_while_redis_is_away_no_bound_is_said_to_be_met_and_the_banner_stays(
    operator: httpx.AsyncClient, services: Services, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_rule(operator)

    async def away(*_args: Any, **_options: Any) -> Any:
        raise ConnectionError("Redis is away")

    monkeypatch.setattr(services.redis, "hvals", away)
    text = words(await page_of(operator, ALERTS))
    assert "Redis does not answer" in text
    assert "TTFT p95 above 750 ms for 60 s none not known" in text
    assert (await operator.get(f"{ALERTS}banner")).json() == {"alerts": None}


async def test_a_viewer_sees_alerts_and_changes_none(application: Any, operator: httpx.AsyncClient, pool: str) -> None:
    rule = await make_rule(operator)
    async with browser(application, await session_of("viewer")) as viewer:
        page = await page_of(viewer, ALERTS)
        assert "slow" in page
        assert NEW not in page
        for path in (NEW, f"{ALERTS}{rule.pk}/"):
            assert (await viewer.get(path)).status_code == 403
        assert (await viewer.post(f"{ALERTS}{rule.pk}/delete")).status_code == 403
    async with browser(application, None) as stranger:
        assert (await stranger.get(ALERTS)).status_code == 302
    assert len(await in_thread(alert_rules.all_rules)()) == 1
