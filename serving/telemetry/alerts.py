"""Raising alerts: the active monitor's part. It writes what is the matter to Redis; jobs store it and tell others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry.conditions import Condition, ConditionWatch, Reading, Readings
from serving.telemetry.events import event_of, note_event
from serving.telemetry.frames import Frame

logger = logging.getLogger(__name__)

_MAX_ENTRIES = 10_000
_RULES_SECONDS = 5.0
_DATABASE_SECONDS = 2.0
_CALM_SECONDS = 10.0
"""An alert is over once its bound has been met for so long: one that flutters is one alert."""
_GAP_SECONDS = 10.0
_LEFT_OUT = "its pool is no longer configured"
_RULE_CHANGED = "its rule was changed"
_RULE_GONE = "its rule was disabled or deleted"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An alert rule as the monitor needs it. `revision` grows with every change of it; `pool` is empty for each."""

    id: int
    revision: int
    name: str
    pool: str
    condition: Condition

    def is_of(self, pool: PoolName) -> bool:
        """Whether it watches that pool."""
        return self.pool in ("", pool)


class RaisedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that goes on or, in the log, went on until `ended_at`, and `why_ended` where it was not that the bound
    was met. Times are Redis's, unix seconds."""

    alert_id: str
    rule_id: int
    revision: int
    name: str
    pool: PoolName
    text: str
    value: float
    began_at: float
    ended_at: float | None = None
    why_ended: str = ""


class ToWatch(msgspec.Struct, frozen=True):
    """The rules that are in force, and the pools that are configured."""

    rules: Sequence[Rule]
    pools: Sequence[PoolName]


WatchSource = Callable[[], Awaitable[ToWatch]]
"""What is to be watched, as the database tells at this moment."""

encode_alert = msgspec.msgpack.Encoder().encode
decode_alert = msgspec.msgpack.Decoder(RaisedAlert).decode


class AlertWatcher:
    """Owns the watch over every rule and pool, and the task that reads the rules; on the monitor's event loop.

    What goes on lies in Redis and is read with every frame, so that a monitor that takes over neither raises it again
    nor forgets its end. What goes on of a pool that is no longer configured, of which no frames come, ends with those
    of others. Without the database it goes by what it knew last.
    """

    def __init__(self, redis: Redis, *, read: WatchSource) -> None:
        self._redis = redis
        self._read = read
        self._rules: Mapping[int, Rule] | None = None
        self._pools: frozenset[PoolName] = frozenset()
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._readings: dict[PoolName, Readings] = {}
        self._watches: dict[tuple[int, PoolName], tuple[int, ConditionWatch]] = {}
        self._calm_since: dict[str, float] = {}
        self._seen_at: dict[PoolName, float] = {}

    async def __call__(self, frame: Frame) -> None:
        """Take a pool's newest frame in: raise and end what it gives reason to. Errors of Redis pass through, and
        leave what was not written to be written with the next frame."""
        self._notice_gap(frame)
        self._look_at_rules(frame.unix_seconds)
        known = self._readings.setdefault(frame.pool, Readings())
        readings = known.see(frame)
        if self._rules is None:
            return
        going_on = await raised_alerts(self._redis)
        raised = {alert.rule_id: alert for alert in going_on if alert.pool == frame.pool}
        # Of what goes on, a monitor that has just begun cannot tell at once whether it is over.
        early = {
            rule.id
            for rule in self._rules_of(frame.pool)
            if rule.id in raised and known.is_too_early(rule.condition.metric, readings.get(rule.condition.metric))
        }
        rules = [rule for rule in self._rules_of(frame.pool) if rule.id not in early]
        missed = {rule.id: rule for rule in self._missed_rules(rules, frame, readings, raised)}
        for rule in missed.values():
            if rule.id not in raised:
                await self._raise(rule, frame, readings[rule.condition.metric])
        for alert in raised.values():
            is_missed = alert.rule_id in {*missed, *early}
            if why := self._what_became_of_its_rule(alert):
                await self._end(alert, frame.unix_seconds, why=why)
            elif self._is_over(alert, is_missed=is_missed, now=frame.unix_seconds):
                await self._end(alert, frame.unix_seconds)
        for alert in going_on:
            if self._is_left_out(alert.pool, now=frame.unix_seconds):
                await self._end(alert, frame.unix_seconds, why=_LEFT_OUT)

    async def end(self) -> None:
        """Break off the reading of rules, if that is going on."""
        while self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait({self._reading}, timeout=0.5)

    def _notice_gap(self, frame: Frame) -> None:
        """After frames that this process did not make, be it that another monitor made them, rules may have changed
        and bounds been met: it begins as a process that has just started."""
        seen_at, now = self._seen_at.get(frame.pool), frame.unix_seconds
        self._seen_at[frame.pool] = now
        if seen_at is not None and not 0 <= now - seen_at <= _GAP_SECONDS:
            self._rules, self._read_at, self._watches, self._calm_since = None, None, {}, {}

    def _is_left_out(self, pool: PoolName, *, now: float) -> bool:
        """Whether the pool is not configured. One of which frames come is, whatever was read before it was."""
        seen_at = self._seen_at.get(pool)
        return pool not in self._pools and (seen_at is None or now - seen_at > _GAP_SECONDS)

    def _rules_of(self, pool: PoolName) -> list[Rule]:
        return [rule for rule in (self._rules or {}).values() if rule.is_of(pool)]

    def _missed_rules(
        self, rules: Iterable[Rule], frame: Frame, readings: Mapping[str, Reading], raised: Mapping[int, RaisedAlert]
    ) -> Iterable[Rule]:
        for rule in rules:
            watch = self._watch_of(rule, frame.pool, raised.get(rule.id))
            if watch.see(readings.get(rule.condition.metric), now=frame.unix_seconds):
                yield rule

    def _what_became_of_its_rule(self, alert: RaisedAlert) -> str:
        """Empty where the rule that raised it is in force."""
        rule = (self._rules or {}).get(alert.rule_id)
        if rule is None:
            return _RULE_GONE
        is_the_same = rule.revision == alert.revision and rule.is_of(alert.pool)
        return "" if is_the_same else _RULE_CHANGED

    def _is_over(self, alert: RaisedAlert, *, is_missed: bool, now: float) -> bool:
        if is_missed:
            self._calm_since.pop(alert.alert_id, None)
            return False
        return now - self._calm_since.setdefault(alert.alert_id, now) >= _CALM_SECONDS

    def _watch_of(self, rule: Rule, pool: PoolName, raised: RaisedAlert | None) -> ConditionWatch:
        known = self._watches.get((rule.id, pool))
        if known is not None and known[0] == rule.revision:
            return known[1]
        missed_since = None
        if raised is not None and raised.revision == rule.revision:
            missed_since = raised.began_at - rule.condition.for_seconds
        watch = ConditionWatch(rule.condition, missed_since=missed_since)
        self._watches[(rule.id, pool)] = rule.revision, watch
        return watch

    async def _raise(self, rule: Rule, frame: Frame, reading: Reading) -> None:
        alert = RaisedAlert(
            alert_id=f"{rule.id}.{rule.revision}:{frame.pool}:{int(frame.unix_seconds * 1000)}",
            rule_id=rule.id,
            revision=rule.revision,
            name=rule.name,
            pool=frame.pool,
            text=rule.condition.describe(),
            value=reading.value,
            began_at=frame.unix_seconds,
        )
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.alerts(), _field(rule.id, frame.pool), encode_alert(alert))
        _log(pipe, alert)
        _mark(pipe, alert, "alert", at=alert.began_at)
        await pipe.execute()
        logger.warning("pool %s: alert %s: %s", frame.pool, rule.name, alert.text)

    async def _end(self, alert: RaisedAlert, now: float, *, why: str = "") -> None:
        field = _field(alert.rule_id, alert.pool)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hdel(keys.alerts(), field)
        over = msgspec.structs.replace(alert, ended_at=max(now, alert.began_at), why_ended=why)
        _log(pipe, over)
        _mark(pipe, over, "alert_over", at=now)
        await pipe.execute()
        self._calm_since.pop(alert.alert_id, None)
        logger.info("pool %s: alert %s is over", alert.pool, alert.name)

    def _look_at_rules(self, now: float) -> None:
        """Read the rules in the background where five seconds have passed since they were read last."""
        if self._reading is not None and not self._reading.done():
            return
        if self._read_at is not None and 0 <= now - self._read_at < _RULES_SECONDS:
            return
        self._read_at = now
        self._reading = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                to_watch = await self._read()
        except Exception as error:  # Whatever a database driver raises; the rounds complain of the database.
            logger.debug("alert rules cannot be read: %r", error)
            return
        self._rules = {rule.id: rule for rule in to_watch.rules}
        self._pools = frozenset(to_watch.pools)


async def raised_alerts(redis: Redis) -> list[RaisedAlert]:
    """The alerts that go on, of all pools, the oldest first. Errors of Redis pass through."""
    values = cast("list[bytes]", await redis.hvals(keys.alerts()))
    alerts = [alert for value in values if (alert := decode_or_none(decode_alert, value)) is not None]
    return sorted(alerts, key=lambda alert: alert.began_at)


def _log(pipe: Any, alert: RaisedAlert) -> None:
    pipe.xadd(keys.alert_log(), {keys.FIELD: encode_alert(alert)}, maxlen=_MAX_ENTRIES, approximate=True)


def _mark(pipe: Any, alert: RaisedAlert, kind: Literal["alert", "alert_over"], *, at: float) -> None:
    over = f"{alert.name} is over" + (f": {alert.why_ended}" if alert.why_ended else "")
    text = f"{alert.name}: {alert.text}" if kind == "alert" else over
    note_event(pipe, event_of(alert.pool, kind, at=at, subject=alert.name, text=text, occurrence=alert.alert_id))


def _field(rule_id: int, pool: PoolName) -> str:
    return f"{rule_id}:{pool}"
