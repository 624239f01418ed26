"""A pool that the settings name no longer: its past stays, nothing can be done to it, and it may come back."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, PoolNotConfigured
from serving.contracts.guardrails import GuardrailTerms
from serving.management.commands import runmonitor
from serving.tuning import canaries, guardrails, selectors, services
from serving.tuning.watch_book import read_standing
from tests.tuning.conftest import POOL

OTHER = "other"


@pytest.fixture
def left_out(pool: str, redis: Redis) -> str:
    services.ensure_pool(OTHER, "a-model")
    services.change(pool, {"max_running": 8}, reason="", author="ada", redis=redis)
    assert services.leave_out_others([OTHER]) == [pool]
    return pool


def test_nothing_can_be_done_to_it_and_its_past_is_read(left_out: str, redis: Redis) -> None:
    acts: dict[str, Any] = {
        "change": lambda **who: services.change(left_out, {"max_running": 4}, **who),
        "roll back": lambda **who: services.roll_back(left_out, 1, **who),
        "take to all": lambda **who: canaries.take_to_all(left_out, 2, **who),
        "take back": lambda **who: canaries.take_back(left_out, 2, **who),
    }
    for act in acts.values():
        with pytest.raises(PoolNotConfigured, match=rf"pool {left_out} is not configured since 20\d\d-"):
            act(reason="", author="ada", redis=redis)
    assert [version.number for version in selectors.versions(left_out)] == [2, 1]
    assert selectors.find_pool(left_out).unconfigured_since is not None
    assert (selectors.pool_names(), selectors.configured_pool_names()) == ([left_out, OTHER], [OTHER])


def test_it_is_noted_once_and_comes_back_as_it_was(left_out: str, redis: Redis) -> None:
    since = selectors.find_pool(left_out).unconfigured_since
    assert services.leave_out_others([OTHER]) == []
    assert selectors.find_pool(left_out).unconfigured_since == since
    services.ensure_pool(left_out, "a-model")
    services.ensure_pool(left_out, "a-model")
    assert selectors.find_pool(left_out).unconfigured_since is None
    assert selectors.current_version(left_out).number == 2
    services.change(left_out, {"max_running": 4}, reason="", author="ada", redis=redis)
    events = AuditEvent.objects.filter(pool=left_out, actor="start").order_by("pk")
    assert [event.action for event in events] == ["pool left out", "pool taken in again"]


def test_no_monitor_watches_it_and_no_pool_sends_it_long_prompts(left_out: str, redis: Redis) -> None:
    assert list(runmonitor.stored_tunables()) == [OTHER]
    assert list(runmonitor.to_watch().pools) == [OTHER]
    assert read_standing().trials == {}
    with pytest.raises(InvalidValue, match="long_prompt_pool"):
        services.change(OTHER, {"long_prompt_pool": POOL}, reason="", author="ada", redis=redis)


def test_nobody_watches_its_versions_and_none_is_said_to_have_been_watched(pool: str, redis: Redis) -> None:
    services.ensure_pool(OTHER, "a-model")
    terms = GuardrailTerms(metric="ttft_p95", bound=500, window_seconds=30, watch_seconds=600)
    for name in (pool, OTHER):
        services.change(name, {"max_running": 8}, reason="", author="ada", redis=redis, guardrail=terms)
    services.leave_out_others([OTHER])
    guardrail = selectors.newest_guardrail(selectors.find_pool(pool))
    assert guardrail is not None
    assert (guardrail.state, guardrail.note) == ("called_off", "called off: its pool was left out before its end")
    assert guardrail.ended_at is not None
    assert [watched.pool for watched in guardrails.watched()] == [OTHER]


def test_the_command_shows_it_with_a_warning_and_changes_nothing(left_out: str, valkey: str, settings: Any) -> None:
    settings.REDIS_URL = valkey
    for action in ("show", "history"):
        output = io.StringIO()
        call_command("tunables", action, "--pool", left_out, stdout=output)
        assert f"mind: pool {left_out} is not configured since" in output.getvalue()
    for arguments in (["set", "max_running=4"], ["preset", "chat"]):
        with pytest.raises(CommandError, match=f"pool {left_out} is not configured since"):
            call_command("tunables", *arguments, "--pool", left_out, stdout=io.StringIO())
