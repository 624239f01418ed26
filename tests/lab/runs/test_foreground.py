"""Experiments in the foreground of a command: keys of each tenant's own, and a pool that goes back."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from redis import Redis

from serving.admission.models import ApiKey
from serving.admission.tenants import ensure_tenant
from serving.contracts import keys
from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import Unavailable
from serving.contracts.messages import encode
from serving.lab.experiments.bench import Bench
from serving.lab.experiments.sweep_plan import Dimension, SweepPlan
from serving.lab.experiments.sweep_selectors import list_sweeps
from serving.lab.models import Experiment, State
from serving.lab.runs.foreground import play_in_foreground
from serving.tuning.selectors import current_version
from tests.lab.runs.scripted import POOL, WORKLOAD, Handler
from tests.telemetry.conftest import snapshot


@pytest.fixture
def followed(pool: str, redis: Redis) -> str:
    """A pool whose engine runs every version at once."""
    engine = snapshot("one", tunables_version=99)
    redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    return pool


def played(kind: str, plan: Mapping[str, Any], redis: Redis, **options: Any) -> Mapping[str, Any]:
    return play_in_foreground(kind, pool=POOL, title="t", plan=plan, author=COMMAND_LINE, redis=redis, **options)


def test_a_sweeps_tenants_are_kept_apart_by_keys_that_end_with_each_run(
    followed: str, redis: Redis, handler: type[Handler]
) -> None:
    ensure_tenant("acme")
    own, of_tenant = WORKLOAD.classes[0], msgspec.structs.replace(WORKLOAD.classes[0], name="b", tenant="acme")
    plan = SweepPlan(
        workload=msgspec.structs.replace(WORKLOAD, classes=(own, of_tenant), num_requests=20),
        dimensions=(Dimension(name="max_running", values=(4, 8)),),
        repeats=1,
        settle_seconds=0,
    )
    titles: list[str] = []
    result = played("sweep", msgspec.to_builtins(plan), redis, say=titles.append)
    assert [point["value"] for point in result["legs"][0]["points"]] == [4, 8]
    assert [title.split(",")[0] for title in titles] == ["max_running 4", "max_running 8"]
    by_tenant = {name: set(ApiKey.objects.filter(tenant__name=name)) for name in ("acme", "lab")}
    assert [len(made) for made in by_tenant.values()] == [2, 2]
    for made in by_tenant.values():
        for key in made:
            assert key.revoked_at is not None
            assert any(key.prefix in seen for seen in handler.seen)
    assert current_version(POOL).values["max_running"] == 32
    (kept,) = list_sweeps()
    assert (kept.state, kept.author) == ("finished", "command line")
    assert Experiment.objects.get().runs.count() == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_puts_the_pool_back_and_says_so(
    followed: str, redis: Redis, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        bench.retune({"max_running": 4}, reason="to see")
        signal.raise_signal(number)
        bench.pause(1)
        return {}

    monkeypatch.setattr("serving.lab.runs.working.player_of", lambda _kind: play)
    with pytest.raises(KeyboardInterrupt, match="the tunables of version 1 are back, as version 3"):
        played("sweep", {}, redis)
    assert current_version(POOL).values["max_running"] == 32
    assert Experiment.objects.get().state == State.FAILED


def test_stopped_in_the_console_it_says_that_an_operator_asked(
    followed: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
        Experiment.objects.update(stop_asked=True)
        bench.pause(1)
        return {}

    monkeypatch.setattr("serving.lab.runs.working.player_of", lambda _kind: play)
    with pytest.raises(Unavailable, match="stopped: an operator asked for it"):
        played("sweep", {}, redis)
    assert Experiment.objects.get().state == State.STOPPED
