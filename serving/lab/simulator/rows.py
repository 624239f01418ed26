"""A simulated engine's steps one by one, as a real one publishes its own: for pictures of batches."""

from __future__ import annotations

import itertools

from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import Event, Finished, Refused, SequenceKey
from serving.contracts.steps import DECODE, MAX_WAITING, PREFILL, StepBatch, StepRow
from serving.contracts.tunables import Tunables
from serving.engine.plan import StepPlan
from serving.engine.scheduler import Scheduler
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.recording import Recorder
from serving.lab.simulator.engine import SimulatedEngine
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import Workload


class _Rows:
    """Owns the steps that were seen so far, and the places of their sequences; for one thread."""

    def __init__(self, tunables: Tunables, *, most: int) -> None:
        self._tunables = tunables
        self._most = most
        self._places: dict[SequenceKey, int] = {}
        self.rows: list[StepRow] = []

    def see(
        self, scheduler: Scheduler, plan: StepPlan, events: list[tuple[OwnerId, Event]], began: float, ended: float
    ) -> None:
        if len(self.rows) >= self._most:
            return
        members = [(chunk.key, chunk.is_prefill, len(chunk.token_ids)) for chunk in plan.chunks]
        single = [key for key, is_prefill, count in members if not is_prefill and count == 1]
        others = [each for each in members if each[1] or each[2] > 1]
        self.rows.append(
            StepRow(
                step=plan.step,
                unix_seconds=began,
                total_ms=(ended - began) * 1e3,
                schedule_ms=0.0,
                prepare_ms=0.0,
                forward_ms=(ended - began) * 1e3,
                sample_ms=0.0,
                update_ms=0.0,
                num_prefill_tokens=plan.num_prefill_tokens,
                num_decode_tokens=plan.num_decode_tokens,
                num_padded_tokens=plan.num_padded_tokens,
                max_batch_tokens=self._tunables.max_batch_tokens,
                num_running=scheduler.num_running,
                num_waiting=scheduler.num_waiting,
                kv_blocks_used=scheduler.num_blocks_used,
                tunables_version=0,
                is_static=self._tunables.mode == "static",
                failed=False,
                decoding=[self._place(key) for key in single],
                others=[
                    number
                    for key, is_prefill, count in others
                    for number in (self._place(key), PREFILL if is_prefill else DECODE, count)
                ],
                ended=[self._place(event.key) for _, event in events if isinstance(event, Finished | Refused)],
                waiting=[self._place(key) for key in scheduler.first_waiting(MAX_WAITING)],
            )
        )

    def batch(self) -> StepBatch:
        """What was seen."""
        return StepBatch(EngineId("simulated"), list(self._places), self.rows, 0)

    def _place(self, key: SequenceKey) -> int:
        return self._places.setdefault(key, len(self._places))


def record_steps(
    workload: Workload, *, tunables: Tunables, envelope: Envelope, cost: CostModel, num_requests: int, most: int
) -> StepBatch:
    """The first steps, `most` at most, of one engine that is asked the workload's first `num_requests`."""
    rows = _Rows(tunables, most=most)
    engine = SimulatedEngine(
        tunables=tunables, envelope=envelope, cost=cost, recorder=Recorder(workload, is_simulated=True), watch=rows.see
    )
    requests = itertools.islice(plan_requests(workload), num_requests)
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        engine.play_closed(
            requests,
            clients=arrivals.clients,
            think_seconds=arrivals.think_seconds,
            duration_seconds=workload.duration_seconds,
        )
    else:
        engine.play_open(requests)
    return rows.batch()
