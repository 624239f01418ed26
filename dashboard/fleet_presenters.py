"""What the Fleet pages show, from what was read: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from dashboard.tenant_presenters import count
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.engine_acts import POSSIBLE, EngineAct
from serving.telemetry.fleet import Fleet, PoolFleet, SeenEngine
from serving.telemetry.processes import SeenProcess
from serving.telemetry.recent_logs import LogLine

LEVELS: Mapping[str, int] = {
    "all": logging.NOTSET,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""The names of the log's filters, and the least level that each shows."""
_MAX_GONE = 20
_UNKNOWN = "–"
_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60
_LEVEL_LABELS = {"all": "All", "info": "Info and above", "warning": "Warnings and errors", "error": "Errors"}


class StoredPool(Protocol):
    """A pool as the database has it."""

    model: str
    unconfigured_since: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine that lives. `acts` are what it can be told in its state; `is_behind` says that it runs an older
    version of the tunables than is announced (who runs a newer one tries it first); `kv_used` and `kv_held` (used and
    cached) are percent of the KV memory. `use` is of its accelerator or, without one, the share of time spent in steps;
    `processor` is empty where its process does not tell; `strain` (power and temperature), `slowed` (by what) and
    `device_memory` where there is no accelerator or it does not tell them."""

    engine_id: str
    name: str
    state: str
    device: str
    backend: str
    version: str
    uptime: str
    heartbeat: str
    kv: str
    kv_used: float
    kv_held: float
    running: str
    waiting: str
    use: str
    strain: str
    slowed: str
    processor: str
    memory: str
    device_memory: str
    tunables: str
    is_behind: bool
    restarts: str
    acts: tuple[EngineAct, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolCard:
    """A pool and its engines. `problem` says what is wrong with it, `""` where nothing is. `unconfigured_since` is None
    while the settings name it; then no engine is missing."""

    name: str
    model: str
    summary: str
    problem: str
    rows: tuple[EngineRow, ...]
    unconfigured_since: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process of the last hour. `state` is `up`, `ended` or `lost`; `last_seen_at` is None while it is up."""

    process_id: str
    kind: str
    name: str
    state: str
    host: str
    pid: int
    version: str
    uptime: str
    memory: str
    cpu: str
    doing: str
    restarts: str
    seen: str
    started_at: datetime.datetime
    last_seen_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Those that are up, those that went last, and how many more went within the hour."""

    up: tuple[ProcessRow, ...]
    gone: tuple[ProcessRow, ...]
    num_more: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One record of a log. `tone` is `""`, `warn` or `problem`."""

    number: int
    at: datetime.datetime
    level: str
    tone: str
    logger: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelChoice:
    """One of the log's filters."""

    name: str
    label: str
    is_chosen: bool


def present_pools(fleet: Fleet, stored: Mapping[PoolName, StoredPool]) -> tuple[PoolCard, ...]:
    """A card a pool, in their order, those last that are no longer configured. `stored` are by the pool's name."""
    processes = {process.record.process_id: process for process in fleet.processes}
    cards = (_present_pool(pool, stored[pool.pool], processes) for pool in fleet.pools)
    return tuple(sorted(cards, key=lambda card: card.unconfigured_since is not None))


def present_processes(processes: Iterable[SeenProcess], *, now: datetime.datetime) -> Processes:
    """All processes: the living in their order, those that are gone the latest first."""
    rows = [(process, present_process(process, now=now)) for process in processes]
    gone = sorted(((p.seconds_ago, row) for p, row in rows if p.state != "up"), key=lambda pair: pair[0])
    return Processes(
        up=tuple(row for process, row in rows if process.state == "up"),
        gone=tuple(row for _, row in gone[:_MAX_GONE]),
        num_more=max(0, len(gone) - _MAX_GONE),
    )


def present_process(process: SeenProcess, *, now: datetime.datetime) -> ProcessRow:
    """One process."""
    record = process.record
    seen_at = now - datetime.timedelta(seconds=process.seconds_ago)
    return ProcessRow(
        process_id=record.process_id,
        kind=record.kind,
        name=record.name,
        state=process.state,
        host=record.host,
        pid=record.pid,
        version=record.version,
        uptime=duration(record.uptime_seconds),
        memory=_megabytes(record.rss_bytes),
        cpu=f"{record.cpu_ratio * 100:.0f}%",
        doing=record.doing or _UNKNOWN,
        restarts=_restarts(process),
        seen=f"{duration(process.seconds_ago)} ago",
        started_at=seen_at - datetime.timedelta(seconds=record.uptime_seconds),
        last_seen_at=None if process.state == "up" else seen_at,
    )


def present_log(lines: Iterable[LogLine]) -> tuple[LogRow, ...]:
    """The lines of a log in their order."""
    return tuple(
        LogRow(
            number=line.number,
            at=datetime.datetime.fromtimestamp(line.unix_seconds, datetime.UTC),
            level=logging.getLevelName(line.level).lower(),
            tone=_tone(line.level),
            logger=line.logger,
            text=line.text,
        )
        for line in lines
    )


def present_levels(chosen: str) -> tuple[LevelChoice, ...]:
    """The log's filters."""
    return tuple(LevelChoice(name=name, label=_LEVEL_LABELS[name], is_chosen=name == chosen) for name in LEVELS)


def possible_acts(snapshot: EngineSnapshot) -> tuple[EngineAct, ...]:
    """What the engine can be told in its state."""
    return tuple(act for act, states in POSSIBLE.items() if snapshot.standing in states)


def is_last_taker(pool: PoolFleet, snapshot: EngineSnapshot) -> bool:
    """Whether no other engine of the pool takes work, and this one does."""
    takers = [engine.snapshot.engine_id for engine in pool.engines if engine.snapshot.state == "ready"]
    return takers == [snapshot.engine_id]


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3 h 20 min`, `5 d 3 h`."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def _present_pool(pool: PoolFleet, stored: StoredPool, processes: Mapping[str, SeenProcess]) -> PoolCard:
    takers = sum(engine.snapshot.state == "ready" for engine in pool.engines)
    waits = f"; {count(pool.num_unread, 'sequence')} not read by any yet" if pool.num_unread else ""
    return PoolCard(
        name=pool.pool,
        model=stored.model,
        summary=f"{count(len(pool.engines), 'engine')}, {takers} taking work{waits}",
        problem="" if takers or stored.unconfigured_since is not None else _standstill(pool),
        unconfigured_since=stored.unconfigured_since,
        rows=tuple(
            _present_engine(engine, processes.get(engine.snapshot.engine_id), announced=pool.announced_version)
            for engine in pool.engines
        ),
    )


def _standstill(pool: PoolFleet) -> str:
    why = "no engine runs" if not pool.engines else "none of its engines takes work"
    return f"Pool {pool.pool} stands still: {why}. New requests are refused with 503 and told when to try again"


def _present_engine(engine: SeenEngine, process: SeenProcess | None, *, announced: int | None) -> EngineRow:
    snapshot = engine.snapshot
    is_behind = announced is not None and snapshot.tunables_version < announced
    total = max(1, snapshot.kv_blocks_total)
    return EngineRow(
        engine_id=snapshot.engine_id,
        name=snapshot.name,
        state=snapshot.standing,
        device=f"{snapshot.device} · {snapshot.dtype}",
        backend=f"{snapshot.backend} backend" if snapshot.backend else "",
        version=_UNKNOWN if process is None else process.record.version,
        uptime=duration(snapshot.uptime_seconds),
        heartbeat=f"{engine.seconds_ago:.1f} s ago",
        kv=_kv_in_words(snapshot),
        kv_used=round(100 * snapshot.kv_blocks_used / total, 1),
        kv_held=round(100 * (snapshot.kv_blocks_used + snapshot.kv_blocks_cached) / total, 1),
        running=f"{snapshot.num_running:,}",
        waiting=f"{snapshot.num_waiting:,}",
        use=_use_in_words(snapshot),
        strain=_strain_in_words(snapshot),
        slowed=_slowed_in_words(snapshot),
        processor="" if process is None else f"processor {process.record.cpu_ratio * 100:.0f}%",
        memory=_megabytes(snapshot.rss_bytes),
        device_memory=_device_memory(snapshot),
        tunables=_version_in_words(snapshot.tunables_version, announced),
        is_behind=is_behind,
        restarts=_UNKNOWN if process is None else _restarts(process),
        acts=possible_acts(snapshot),
    )


def _use_in_words(snapshot: EngineSnapshot) -> str:
    if snapshot.accelerator_ratio is None:
        return f"busy {snapshot.busy_ratio:.0%}"
    return f"accelerator {snapshot.accelerator_ratio:.0%}"


def _strain_in_words(snapshot: EngineSnapshot) -> str:
    told = []
    if snapshot.accelerator_power_watts is not None:
        limit = snapshot.accelerator_power_limit_watts
        most = "" if limit is None else f" of {limit:,.0f}"
        told.append(f"{snapshot.accelerator_power_watts:,.0f}{most} W")
    if snapshot.accelerator_celsius is not None:
        told.append(f"{snapshot.accelerator_celsius:.0f} °C")
    return ", ".join(told)


def _slowed_in_words(snapshot: EngineSnapshot) -> str:
    return f"slowed by {' and '.join(snapshot.accelerator_slowed_by)}" if snapshot.accelerator_slowed_by else ""


def _device_memory(snapshot: EngineSnapshot) -> str:
    used, total = snapshot.accelerator_memory_bytes, snapshot.accelerator_memory_total_bytes
    if used is None:
        return ""
    most = "" if total is None else f" of {total / 2**30:,.1f}"
    return f"device {used / 2**30:,.1f}{most} GiB"


def _version_in_words(version: int, announced: int | None) -> str:
    if announced is None or version == announced:
        return f"{version}"
    return f"{version}, not {announced} yet" if version < announced else f"{version}, ahead of {announced}"


def _kv_in_words(snapshot: EngineSnapshot) -> str:
    total = max(1, snapshot.kv_blocks_total)
    cached = f", {snapshot.kv_blocks_cached / total:.0%} cached" if snapshot.kv_blocks_cached else ""
    return f"{snapshot.kv_blocks_used / total:.0%} in use{cached}"


def _restarts(process: SeenProcess) -> str:
    return _UNKNOWN if process.record.restarts is None else f"{process.record.restarts:,}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _tone(level: int) -> str:
    if level >= logging.ERROR:
        return "problem"
    return "warn" if level >= logging.WARNING else ""
