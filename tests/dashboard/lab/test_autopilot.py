"""The pages about autopilots: who may switch one on, with which terms, and what it did."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.audit.models import AuditEvent
from serving.lab.autopilot import services
from serving.lab.autopilot.selectors import usual_terms
from serving.lab.models import Autopilot, AutopilotMove
from tests.dashboard.tenancy import in_thread, page_of, submit, words

AUTOPILOTS = "/console/lab/autopilot/"
ONE = f"{AUTOPILOTS}default/"


async def row() -> Autopilot:
    found: Autopilot = await in_thread(Autopilot.objects.get)(pool="default")
    return found


async def test_every_pool_has_one_and_it_is_off(viewer: httpx.AsyncClient) -> None:
    assert "default off" in words(await page_of(viewer, AUTOPILOTS))
    page = await page_of(viewer, ONE)
    assert "Switch on" not in page
    assert 'value="10000"' in page  # the pool's own objective


async def test_switched_on_it_has_the_terms_that_were_typed(steerer: httpx.AsyncClient) -> None:
    typed = {
        "objective-ttft_p95": "900",
        "objective-itl_p95": "",
        "lever-max_running": "on",
        "max_running-low": "4",
        "max_running-high": "48",
        "missed_seconds": "90",
        "reason": "hold it",
    }
    boxes = {f"lever-{name}": None for name in ("max_batch_tokens", "max_prefill_chunk", "prefill_share")}
    boxes |= {f"lever-{name}": None for name in ("max_queue_requests", "max_queue_tokens", "max_long_prefills")}
    response = await submit(steerer, ONE, at=f"{ONE}on", **typed, **boxes)
    assert response.status_code == 302
    kept = await row()
    assert kept.is_on
    assert kept.terms["objectives"] == [{"metric": "ttft_p95", "bound_ms": 900.0}]
    assert kept.terms["levers"] == [{"field": "max_running", "low": 4.0, "high": 48.0}]
    assert kept.terms["missed_seconds"] == 90
    event = await in_thread(AuditEvent.objects.get)(action="autopilot switched on")
    assert (event.actor, event.reason) == ("ann", "hold it")
    assert "The autopilot is on." in words(await page_of(steerer, ONE))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"objective-ttft_p95": "soon"}, "must be a number"),
        ({"max_running-low": "0"}, "levers.max_running.low"),
        ({"judged_seconds": "5"}, "judged_seconds"),
    ],
)
async def test_terms_that_cannot_be_kept_change_nothing(
    steerer: httpx.AsyncClient, typed: dict[str, Any], said: str
) -> None:
    response = await submit(steerer, ONE, at=f"{ONE}on", **typed)
    assert response.status_code == 302
    assert said in words(await page_of(steerer, ONE))
    assert await in_thread(Autopilot.objects.count)() == 0


@pytest.mark.parametrize("act", ["on", "off", "resume"])
async def test_who_may_only_look_switches_nothing(viewer: httpx.AsyncClient, act: str) -> None:
    assert (await viewer.post(f"{ONE}{act}")).status_code == 403


async def test_what_it_did_is_told_with_its_reason(steerer: httpx.AsyncClient, pool: str) -> None:
    terms = await in_thread(usual_terms)(pool)
    await in_thread(services.switch_on)(pool, terms, reason="", author="ann")
    made = {
        "autopilot": await row(),
        "field": "max_running",
        "before": 32,
        "after": 40,
        "version": 2,
        "reason": "TTFT was too long",
        "state": "undone",
        "verdict": "no help",
    }
    await in_thread(AutopilotMove.objects.create)(**made)
    told = words(await page_of(steerer, ONE))
    assert "max_running 32 → 40 TTFT was too long undone no help" in told
    await in_thread(Autopilot.objects.update)(paused_because="version 3 is of bob, who knows better")
    assert "version 3 is of bob" in words(await page_of(steerer, AUTOPILOTS))
    assert (await submit(steerer, ONE, at=f"{ONE}resume")).status_code == 302
    assert (await row()).paused_because == ""
    assert (await submit(steerer, ONE, at=f"{ONE}off")).status_code == 302
    assert not (await row()).is_on


async def test_a_pool_or_an_act_that_there_is_not_is_not_found(steerer: httpx.AsyncClient) -> None:
    assert (await steerer.get(f"{AUTOPILOTS}nowhere/")).status_code == 404
    assert (await submit(steerer, ONE, at=f"{ONE}fly")).status_code == 404
