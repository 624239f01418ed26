"""The door of a simulated pool: the same verdicts, with counts in place of Redis."""

from __future__ import annotations

import math

from serving.admission.pace import PaceMeter
from serving.admission.permits import Weight
from serving.admission.prediction import Load, lateness, predict
from serving.admission.verdicts import overfills_queue
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.contracts.tunables import Tunables
from serving.engine.scheduler import Scheduler
from serving.lab.workloads.workload import PlannedRequest

_LOOK_SECONDS = 0.5
_NO_PRIORITY_ORDER = "fcfs"


class Entrance:
    """Owns what waits in front of one simulated engine, and the pace that it has shown; for one thread."""

    def __init__(self, tunables: Tunables, *, scheduler: Scheduler, num_blocks: int, block_size: int) -> None:
        self._tunables = tunables
        self._scheduler = scheduler
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._sequences = 0
        self._tokens = 0
        self._meter = PaceMeter()
        self._looked_at: float | None = None

    def verdict(self, planned: PlannedRequest) -> str | None:
        """The code with which the request is refused; None where it may come in."""
        tunables, num_prompt = self._tunables, planned.num_prompt_tokens
        if num_prompt + planned.num_output_tokens > self._scheduler.max_context_tokens:
            return "context_length_exceeded"
        if self._would_be_late(planned):
            return "predicted_too_late"
        return "queue_full" if overfills_queue(self.waiting, Weight(1, num_prompt), tunables=tunables) else None

    def let_in(self, planned: PlannedRequest) -> None:
        """It waits from now on."""
        self._sequences += 1
        self._tokens += planned.num_prompt_tokens

    def release(self, planned: PlannedRequest) -> None:
        """It waits no longer."""
        self._sequences -= 1
        self._tokens -= planned.num_prompt_tokens

    @property
    def waiting(self) -> Weight:
        """What waits."""
        return Weight(self._sequences, self._tokens)

    @property
    def next_look(self) -> float:
        """When `look` has something to take in again: never where nothing is refused by the pace."""
        if self._tunables.early_reject == "off":
            return math.inf
        return 0.0 if self._looked_at is None else self._looked_at + _LOOK_SECONDS

    def look(self, now: float) -> None:
        """Take in how fast the engine goes, as a gateway does from what engines publish."""
        if now >= self.next_look:
            self._looked_at = now
            self._meter.look([self._snapshot(now)], max_running=self._tunables.max_running)

    def _would_be_late(self, planned: PlannedRequest) -> bool:
        if self._tunables.early_reject == "off" or self._tunables.order != _NO_PRIORITY_ORDER:
            return False
        pace = self._meter.pace
        ahead = Load(max(self._sequences, pace.num_waiting), max(self._tokens, pace.num_waiting_tokens))
        prediction = predict(Load(1, planned.num_prompt_tokens), ahead=ahead, pace=pace)
        return lateness(prediction, tunables=self._tunables, timeout_seconds=None) is not None

    def _snapshot(self, now: float) -> EngineSnapshot:
        scheduler = self._scheduler
        return EngineSnapshot(
            engine_id=EngineId("simulated"),
            name="simulated",
            pool=PoolName("simulated"),
            model="",
            state="ready",
            device="",
            dtype="",
            max_model_len=scheduler.max_context_tokens,
            tunables_version=0,
            num_waiting=scheduler.num_waiting,
            num_waiting_tokens=scheduler.waiting_counts.num_tokens,
            num_running=scheduler.num_running,
            block_size=self._block_size,
            kv_blocks_total=self._num_blocks,
            kv_blocks_used=scheduler.num_blocks_used,
            kv_blocks_cached=scheduler.num_blocks_cached,
            kv_blocks_free=scheduler.num_blocks_free,
            steps_total=scheduler.counters.steps,
            prompt_tokens_total=scheduler.counters.prompt_tokens,
            generated_tokens_total=scheduler.counters.generated_tokens,
            preemptions_total=scheduler.counters.preemptions,
            padded_tokens_total=scheduler.counters.padded_tokens,
            busy_ratio=1.0,
            last_step_ms=0.0,
            rss_bytes=0,
            uptime_seconds=now,
            left_total=scheduler.counters.left,
        )
