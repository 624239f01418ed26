"""Guardrails and canaries on the command line."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from serving.audit.models import AuditEvent
from serving.tuning import canaries, guardrails, selectors
from tests.tuning.engines import beat, write_frame

Run = Callable[..., str]


@pytest.fixture
def run(pool: str, valkey: str, settings: Any) -> Run:
    settings.REDIS_URL = valkey

    def call(*arguments: str) -> str:
        output = io.StringIO()
        call_command("tunables", *arguments, "--pool", pool, stdout=output)
        return output.getvalue()

    return call


def test_a_change_is_stored_with_its_guardrail(run: Run) -> None:
    told = run("set", "max_running=8", "--guardrail", "itl_p95:80:20")
    assert "it goes back where ITL p95 is above 80 ms for 20 s" in told
    (watched,) = guardrails.watched()
    assert (watched.condition.describe(), watched.watch_seconds) == ("ITL p95 above 80 ms for 20 s", 600)
    run("preset", "chat", "--guardrail", "error_ratio:0.05")
    assert guardrails.watched()[0].condition.describe() == "Failed requests above 5 % for 60 s"


@pytest.mark.parametrize(
    ("guardrail", "told"),
    [
        ("ttft_p95", "is not of the form METRIC:BOUND"),
        ("ttft_p95:1:2:3:4", "is not of the form METRIC:BOUND"),
        ("ttft_p95:soon", "guardrail bound must be a number, not 'soon'"),
        ("ttft_p95:nan", "guardrail bound must be a number from 0 to 3600000"),
        ("luck:1", "guardrail metric must be one of ttft_p95"),
    ],
)
def test_a_guardrail_that_cannot_be_watched_stores_nothing(run: Run, pool: str, guardrail: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run("set", "max_running=8", "--guardrail", guardrail)
    assert selectors.current_version(pool).number == 1


def test_a_version_is_tried_told_of_and_promoted(run: Run, pool: str, redis: Redis) -> None:
    assert "no version is being tried" in run("canary")
    beat(redis, "engine-1", "engine-2")
    told = run("set", "max_running=8", "--canary", "engine-2", "--guardrail", "ttft_p95:500")
    assert "engine engine-2 tries it" in told
    assert "where TTFT p95 on engine-2 is above 500 ms" in told
    assert "no monitor tells how its requests do" in run("canary")
    write_frame(redis, version=2, engine_id="engine-2")
    shown = run("canary")
    assert re.search(r"version 2 is tried on engine-2 since \d{4}-\d\d-\d\d ", shown)
    assert any(
        line.split() == ["TTFT", "p95", "100", "ms", "of", "40", "200", "ms", "of", "50"] for line in shown.splitlines()
    )
    assert "version 2 runs on all engines" in run("promote", "--reason", "better")
    assert selectors.current_version(pool).number == 2
    audited = AuditEvent.objects.latest("pk")
    assert (audited.action, audited.actor_kind, audited.reason) == ("canary taken to all", "command", "better")


def test_a_version_is_tried_on_the_first_engine_and_withdrawn(run: Run, pool: str, redis: Redis) -> None:
    for action in ("promote", "withdraw"):
        with pytest.raises(CommandError, match="no version of pool default is being tried"):
            run(action)
    beat(redis, "engine-1", "engine-2")
    run("set", "max_running=8", "--canary")
    trial = canaries.trial_of(pool)
    assert trial is not None
    assert trial.engine_id == "engine-1"
    redis.flushall()
    assert "that engine does not live" in run("canary")
    assert "version 3 is stored: max_running 8 → 32" in run("withdraw")
