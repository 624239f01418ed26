"""Alerts are raised and ended once, by whichever monitor is active."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry.alerts import AlertWatcher, Rule, decode_alert, raised_alerts
from serving.telemetry.conditions import Condition
from serving.telemetry.events import read_newest_events
from tests.telemetry.alerting import FAST, POOL, Rules, Watched, rule
from tests.telemetry.test_conditions import frame_at


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
async def watched(redis: Redis, rules: Rules) -> Watched:
    watched = Watched(redis, rules)
    await watched.see(0, ttfts=FAST)
    return watched


async def test_an_alert_is_raised_once_its_bound_was_missed_for_long_enough(watched: Watched, redis: Redis) -> None:
    assert await watched.see(1) == []
    assert await watched.see(10.5) == []
    assert await watched.see(11) == ["slow"]
    assert await watched.see(12) == ["slow"]
    assert await redis.xlen(keys.alert_log()) == 1
    (alert,) = await raised_alerts(redis)
    assert (alert.pool, alert.text, alert.began_at) == (POOL, "TTFT p95 above 500 ms for 10 s", 11)
    assert alert.value == pytest.approx(900, rel=0.011)


async def test_it_is_over_once_its_bound_was_met_for_ten_seconds(watched: Watched, redis: Redis) -> None:
    for second in (1, 11):
        await watched.see(second)
    assert await watched.see(12, ttfts=FAST) == ["slow"]
    assert await watched.see(15) == ["slow"], "one that flutters is one alert"
    assert await watched.see(26) == ["slow"]
    assert await watched.see(27, ttfts=FAST) == ["slow"]
    assert await watched.see(37, ttfts=FAST) == []
    assert await redis.xlen(keys.alert_log()) == 2
    events = await read_newest_events(redis, POOL, now=40)
    assert [(event.kind, event.subject) for event in events] == [("alert_over", "slow"), ("alert", "slow")]


async def test_a_monitor_that_takes_over_neither_raises_it_again_nor_forgets_its_end(
    watched: Watched, redis: Redis, rules: Rules
) -> None:
    for second in (1, 11):
        await watched.see(second)
    successor = Watched(redis, rules)
    assert await successor.see(20) == ["slow"]
    assert await successor.see(21) == ["slow"]
    assert await redis.xlen(keys.alert_log()) == 1
    await successor.see(22, ttfts=FAST)
    assert await successor.see(32, ttfts=FAST) == []


async def test_a_monitor_that_works_again_goes_by_no_rule_that_it_knew_before(
    watched: Watched, redis: Redis, rules: Rules
) -> None:
    rules.rules = [rule(revision=2)]
    successor = Watched(redis, rules)
    await successor.see(100, ttfts=FAST)
    for second in (101, 111):
        await successor.see(second)
    rules.answers = asyncio.Event()
    assert await watched.see(112) == ["slow"]
    rules.answers.set()
    assert await watched.see(113) == ["slow"]
    assert await redis.xlen(keys.alert_log()) == 1


async def test_a_monitor_that_works_again_counts_no_miss_from_before_another_worked(watched: Watched) -> None:
    await watched.see(1)
    for second in (3600, 3601, 3610):
        assert await watched.see(second) == []
    assert await watched.see(3611) == ["slow"]


async def test_a_monitor_that_takes_over_ends_no_share_that_it_cannot_tell_yet(redis: Redis, rules: Rules) -> None:
    rules.rules = [rule(condition=Condition(metric="error_ratio", bound=0.1, for_seconds=30.0))]

    async def see(watched: Watched, second: int) -> list[str]:
        counts = {"finished:stop": second, "failed:internal_error": second // 2}
        await watched.watcher(frame_at(second, counts=counts))
        await asyncio.sleep(0)
        return [alert.name for alert in await raised_alerts(redis)]

    first, successor = Watched(redis, rules), Watched(redis, rules)
    for second in range(50):
        goes_on = await see(first, second)
    assert goes_on == ["slow"]
    # The first requests after that are too few to tell a share of.
    for second in range(50, 100):
        assert await see(successor, second) == ["slow"], second
    assert await redis.xlen(keys.alert_log()) == 1
    for second in range(1000, 1075):
        goes_on = await successor.see(second, ttfts=())
    assert goes_on == [], "a minute without requests is no miss"


@pytest.mark.parametrize(
    ("rules_then", "why"),
    [
        ([], "its rule was disabled or deleted"),
        ([rule(revision=2)], "its rule was changed"),
        ([rule(pool="other")], "its rule was changed"),
    ],
)
async def test_it_ends_with_the_rule_that_raised_it_and_says_so(
    watched: Watched, redis: Redis, rules: Rules, rules_then: list[Rule], why: str
) -> None:
    for second in (1, 11):
        await watched.see(second)
    rules.rules = rules_then
    await watched.see(17)
    assert await watched.see(17.5) == []
    (_, (_, ended)) = await redis.xrange(keys.alert_log())
    assert decode_alert(ended[keys.FIELD]).why_ended == why


async def test_what_goes_on_of_a_pool_that_is_configured_no_longer_ends_once_and_says_why(
    watched: Watched, redis: Redis, rules: Rules
) -> None:
    for second in (1, 11):
        await watched.see(second)
    other = PoolName("other")
    rules.pools = [other]
    successor = AlertWatcher(redis, read=rules)
    for second in (100, 100.5, 101):
        await successor(msgspec.structs.replace(frame_at(second, ttfts=FAST), pool=other))
        await asyncio.sleep(0)
    assert await raised_alerts(redis) == []
    ((_, began), (_, ended)) = await redis.xrange(keys.alert_log())
    assert decode_alert(began[keys.FIELD]).why_ended == ""
    assert decode_alert(ended[keys.FIELD]).why_ended == "its pool is no longer configured"
    (over, _) = await read_newest_events(redis, POOL, now=60)
    assert over.text == "slow is over: its pool is no longer configured"


async def test_a_pool_of_which_frames_come_is_not_taken_for_left_out(watched: Watched, rules: Rules) -> None:
    rules.pools = []
    for second in (1, 7, 11):
        await watched.see(second)
    assert await watched.see(12) == ["slow"]


async def test_without_the_database_the_rules_known_last_go_on(watched: Watched, rules: Rules) -> None:
    rules.works = False
    await watched.see(1)
    await watched.see(6)
    assert await watched.see(11) == ["slow"]


async def test_a_rule_of_one_pool_watches_no_other(redis: Redis, rules: Rules) -> None:
    rules.rules = [rule(pool="bulk")]
    watched = Watched(redis, rules)
    for second in (0, 1, 30):
        assert await watched.see(second) == []
