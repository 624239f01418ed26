"""One engine, simulated: the real scheduler, a clock that is set instead of read, and steps that cost what a model
says."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from serving.contracts.errors import ContextLengthExceeded, InvalidValue, PromptTooLong
from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Event, Finished, Refused, Scheduled, SequenceKey, Submit, Tokens
from serving.contracts.quotas import Quotas
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.plan import StepPlan, StepResult
from serving.engine.scheduler import Scheduler
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel, StepWork
from serving.lab.recording import Gauges, Recorder
from serving.lab.simulator.allowances import Allowances
from serving.lab.simulator.entrance import Entrance
from serving.lab.simulator.work import prompt_of, spread, steps_before, work_of
from serving.lab.summaries import Ending, Outcome
from serving.lab.workloads.workload import PlannedRequest

_OWNER = OwnerId("simulator")
_TOKEN_ID = 7
_FAULTS: Final = (ContextLengthExceeded.code, InvalidValue.code, PromptTooLong.code)
"""Codes of what no server would ever take: clients count it as failed, not as refused."""
_SHORTEST_STRETCH = 2
_COUNTERS = ("steps", "prompt_tokens", "generated_tokens", "preemptions", "padded_tokens", "idle_slot_steps", "left")
_LONGEST_STRETCH = 1 << 20

StepWatch = Callable[[Scheduler, StepPlan, list[tuple[OwnerId, Event]], float, float], None]
"""Hears of a step: the scheduler after it, its plan and events, and when it began and ended, in seconds."""


@dataclasses.dataclass(slots=True)
class _Live:
    """A request in the engine. `last_token_at` is None before its first."""

    planned: PlannedRequest
    due_seconds: float
    is_warm_up: bool
    num_tokens: int = 0
    queue_seconds: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None


class SimulatedEngine:
    """Owns a scheduler, the virtual time in seconds, and the requests that are in the engine or on their way to it; for
    one thread.

    Requests go through the door's own verdicts. A step tells its tokens at its end; what comes during a step is taken
    in before the next, as in an engine. Where steps repeat, they are passed in one go.
    """

    def __init__(
        self,
        *,
        tunables: Tunables,
        envelope: Envelope,
        cost: CostModel,
        recorder: Recorder,
        jumps: bool = True,
        watch: StepWatch | None = None,
        quotas: Mapping[str, Quotas] = MappingProxyType({}),
    ) -> None:
        """`jumps` may be taken away to compute every step by itself, which comes to the same. Who is to `watch` each
        step hears of it when it is over. `quotas` are those of tenants, by name."""
        # What drafts would be right depends on texts, and there are none.
        tunables = msgspec.structs.replace(tunables, speculation="off")
        bound = envelope.max_step_tokens
        if bound is not None and tunables.max_batch_tokens > bound:
            tunables = msgspec.structs.replace(tunables, max_batch_tokens=bound)
        self._tunables = tunables
        self._cost = cost
        self._recorder = recorder
        self._warm_up_seconds = recorder.workload.warm_up_seconds
        self._num_blocks = envelope.num_blocks
        self._scheduler = Scheduler(
            num_blocks=envelope.num_blocks,
            block_size=envelope.block_size,
            max_model_len=envelope.max_model_len,
            eos_token_ids=frozenset(),
            tunables=tunables,
        )
        self._entrance = Entrance(
            tunables,
            scheduler=self._scheduler,
            num_blocks=envelope.num_blocks,
            block_size=envelope.block_size,
        )
        self._allowances = Allowances(quotas)
        self._jumps = jumps and watch is None
        self._watch = watch
        self._now = 0.0
        self._live: dict[RequestId, _Live] = {}
        self._params: dict[int, SamplingParams] = {}
        self._answered: list[float] = []
        self._next_gauge = 1.0
        self._busy_seconds = 0.0
        self.num_requests = 0
        """How many requests came."""
        self.waiting_requests: Counter[int] = Counter()
        """How many requests the door counted as waiting at the end of each second, by the second's number."""
        self.waiting_tokens: Counter[int] = Counter()
        """The tokens of their prompts."""

    @property
    def num_steps(self) -> int:
        """How many steps the engine took."""
        return self._scheduler.counters.steps

    def books(self) -> dict[str, int]:
        """Counters and blocks as they stand."""
        scheduler = self._scheduler
        counters = {name: getattr(scheduler.counters, name) for name in _COUNTERS}
        return counters | {
            "blocks_used": scheduler.num_blocks_used,
            "blocks_cached": scheduler.num_blocks_cached,
            "blocks_free": scheduler.num_blocks_free,
        }

    def check_invariants(self) -> None:
        """Raise AssertionError where the scheduler's books contradict each other. For tests."""
        self._scheduler.check_invariants()

    # --- open loop and closed --------------------------------------------------------------------------------------

    def play_open(self, requests: Iterator[PlannedRequest]) -> float:
        """Play requests that are due at their times, to the end of the last; when that was."""
        for planned in requests:
            assert planned.due_seconds is not None, "requests of an open loop are due at some time"
            self._run_until(planned.due_seconds + self._cost.request_seconds)
            self._arrive(planned, planned.due_seconds)
        self._run_until(math.inf)
        return self._now

    def play_closed(
        self, requests: Iterator[PlannedRequest], *, clients: int, think_seconds: float, duration_seconds: float | None
    ) -> float:
        """Play requests one after another for each of `clients`, none beginning after the duration; when the last
        ended."""
        end = math.inf if duration_seconds is None else duration_seconds
        outside = self._cost.request_seconds
        dues = [0.0] * clients
        while True:
            while dues and dues[0] + outside <= self._now and (planned := next(requests, None)) is not None:
                self._arrive(planned, heapq.heappop(dues))
                self._hear_answers(dues, think_seconds, end)
            until = dues[0] + outside if dues else math.inf
            if until <= self._now:
                dues.clear()  # no request is left to send
            elif not self._advance(until):
                if not dues:
                    return self._now
                self._now = until
            self._hear_answers(dues, think_seconds, end)

    def _hear_answers(self, dues: list[float], think_seconds: float, end: float) -> None:
        """Let the clients whose answers have come send their next requests in time."""
        for answered_at in self._answered:
            if answered_at + think_seconds < end:
                heapq.heappush(dues, answered_at + think_seconds)
        self._answered.clear()

    # --- time ------------------------------------------------------------------------------------------------------

    def _run_until(self, moment: float) -> None:
        """Step until the moment is reached; a step that began before it ends after it."""
        while self._now < moment:
            if not self._advance(moment):
                if math.isfinite(moment):
                    self._now = max(self._now, moment)
                    self._note_gauges()
                return

    def _advance(self, until: float) -> bool:
        """Take the next step, or several that repeat, that begin before `until`; False where none does."""
        wakeup = self._scheduler.next_wakeup(self._now)
        if wakeup is None or wakeup >= until:
            return False
        self._now = max(self._now, wakeup)
        if self._jumps and (count := self._count_stretch(until)) >= _SHORTEST_STRETCH:
            self._pass_stretch(count)
        else:
            self._step()
        self._note_gauges()
        self._entrance.look(self._now)
        return True

    def _step(self) -> None:
        scheduler, began = self._scheduler, self._now
        plan = scheduler.schedule(began)
        if plan is None:
            self._take(scheduler.take_events())
            return
        self._now = began + self._cost.seconds(work_of(plan))
        self._busy_seconds += self._now - began
        tokens = [[_TOKEN_ID] if chunk.samples else [] for chunk in plan.chunks]
        events = scheduler.update(plan, StepResult(tokens), self._now)
        self._recorder.note_tokens(at_seconds=self._now, count=0, prompt_tokens=plan.num_prefill_tokens)
        if self._watch is not None:
            self._watch(scheduler, plan, events, began, self._now)
        self._take(events)

    def _count_stretch(self, until: float) -> int:
        """How many of the next steps repeat, and begin before `until`, before somebody is refused for waiting, and
        before the door looks again."""
        most = self._scheduler.steady_steps(most=_LONGEST_STRETCH)
        if most < _SHORTEST_STRETCH:
            return 0
        refusal = self._scheduler.next_refusal()
        horizon = min(until, self._entrance.next_look, math.inf if refusal is None else refusal) - self._now
        if math.isinf(horizon):
            return most
        work = self._steady_work()
        return steps_before(horizon, self._cost.seconds(work), self._cost.growth_seconds(work), most=most)

    def _pass_stretch(self, count: int) -> None:
        began, work = self._now, self._steady_work()
        first = self._cost.seconds(work)
        total = self._cost.steady_seconds(work, count)
        self._now = began + total
        self._busy_seconds += total
        self._scheduler.pass_steady(count, token_id=_TOKEN_ID, began=began)
        gaps: Counter[tuple[str, float, bool]] = Counter()
        for key, _ in self._scheduler.running_contexts():
            live = self._live[key.request_id]
            assert live.last_token_at is not None, "who decodes has a token"
            gaps[live.planned.request_class, began + first - live.last_token_at, live.is_warm_up] += 1
            live.last_token_at = self._now
            live.num_tokens += count
        for (request_class, seconds, is_warm_up), number in gaps.items():
            self._note_gaps(request_class, seconds, began + first, number, is_warm_up=is_warm_up)
            mean = (total - first) / (count - 1)
            for at_seconds, share in spread(began + first, self._now, count - 1):
                self._note_gaps(request_class, mean, at_seconds, number * share, is_warm_up=is_warm_up)
        for at_seconds, share in spread(began, self._now, count):
            self._recorder.note_tokens(at_seconds=at_seconds, count=share * work.num_decoding)

    def _note_gaps(
        self, request_class: str, seconds: float, at_seconds: float, count: int, *, is_warm_up: bool
    ) -> None:
        if count:
            self._recorder.note_gap(
                request_class, seconds=seconds, at_seconds=at_seconds, count=count, is_warm_up=is_warm_up
            )

    def _steady_work(self) -> StepWork:
        contexts = self._scheduler.running_contexts()
        return StepWork(num_decoding=len(contexts), num_context_tokens=sum([length for _, length in contexts]))

    # --- requests --------------------------------------------------------------------------------------------------

    def _arrive(self, planned: PlannedRequest, due_seconds: float) -> None:
        self.num_requests += 1
        self._recorder.note_arrival(at_seconds=due_seconds)
        live = _Live(planned, due_seconds, is_warm_up=due_seconds < self._warm_up_seconds)
        came_at = due_seconds + self._cost.request_seconds
        code = self._entrance.verdict(planned) or self._allowances.verdict(planned, came_at)
        if code is not None:
            self._end(live, "failed" if code in _FAULTS else "refused", code=code)
            return
        self._entrance.let_in(planned)
        self._allowances.charge(planned, came_at)
        request_id = RequestId(str(planned.index))
        self._live[request_id] = live
        submit = Submit(
            key=SequenceKey(request_id, 0),
            attempt=1,
            owner_id=_OWNER,
            tenant=planned.tenant,
            prompt_ids=prompt_of(planned),
            params=self._params_of(planned),
            priority=planned.priority,
        )
        self._scheduler.add(submit, self._now)

    def _params_of(self, planned: PlannedRequest) -> SamplingParams:
        """A client that goes away after some tokens ends its request there."""
        longest = planned.num_output_tokens
        if planned.cancel_after_tokens is not None:
            longest = min(longest, max(1, planned.cancel_after_tokens))
        params = self._params.get(longest)
        if params is None:
            params = self._params[longest] = SamplingParams(max_tokens=longest, seed=0, ignore_eos=True)
        return params

    def _take(self, events: list[tuple[OwnerId, Event]]) -> None:
        """Hear what the engine tells at this moment."""
        gaps: Counter[tuple[str, float, bool]] = Counter()
        num_tokens = 0
        for _, event in events:
            if isinstance(event, Tokens):
                live = self._live[event.key.request_id]
                num_tokens += len(event.token_ids)
                live.num_tokens += len(event.token_ids)
                if live.last_token_at is None:
                    live.first_token_at = self._now
                else:
                    gaps[live.planned.request_class, self._now - live.last_token_at, live.is_warm_up] += 1
                live.last_token_at = self._now
            elif isinstance(event, Scheduled):
                live = self._live[event.key.request_id]
                live.queue_seconds = self._now - event.age_seconds - live.due_seconds
                self._entrance.release(live.planned)
            elif isinstance(event, Finished):
                live = self._live.pop(event.key.request_id)
                used_tokens = live.planned.num_prompt_tokens + live.num_tokens
                self._allowances.settle(live.planned, used_tokens=used_tokens, at_seconds=self._now)
                is_cancelled = live.planned.cancel_after_tokens is not None
                self._end(live, "cancelled" if is_cancelled else "finished")
            elif isinstance(event, Refused):
                live = self._live.pop(event.key.request_id)
                self._entrance.release(live.planned)
                self._allowances.settle(live.planned, used_tokens=0, at_seconds=self._now)
                self._end(live, "refused", code=event.code)
        for (request_class, seconds, is_warm_up), count in gaps.items():
            self._note_gaps(request_class, seconds, self._now, count, is_warm_up=is_warm_up)
        if num_tokens:
            self._recorder.note_tokens(at_seconds=self._now, count=num_tokens)

    def _end(self, live: _Live, ending: Ending, *, code: str = "") -> None:
        planned, first, last = live.planned, live.first_token_at, live.last_token_at
        tpot = None
        if first is not None and last is not None and live.num_tokens > 1:
            tpot = (last - first) / (live.num_tokens - 1)
        self._answered.append(self._now)
        self._recorder.end(
            Outcome(
                index=planned.index,
                request_class=planned.request_class,
                tenant=planned.tenant,
                due_seconds=live.due_seconds,
                end_seconds=self._now,
                ending=ending,
                num_prompt_tokens=planned.num_prompt_tokens,
                num_output_tokens=live.num_tokens,
                is_streamed=planned.is_streamed,
                is_warm_up=live.is_warm_up,
                queue_seconds=live.queue_seconds,
                ttft_seconds=None if first is None else first - live.due_seconds,
                tpot_seconds=tpot,
                e2e_seconds=self._now - live.due_seconds,
                code=code,
            )
        )

    def _note_gauges(self) -> None:
        """Once a second, as far as time has come."""
        if self._now < self._next_gauge:
            return
        count = math.floor(self._now - self._next_gauge) + 1
        # What a step takes beyond a whole second is the next one's.
        busy_seconds = min(self._busy_seconds, float(count))
        self._busy_seconds -= busy_seconds
        scheduler, waiting = self._scheduler, self._entrance.waiting
        gauges = Gauges(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            kv_used_ratio=scheduler.num_blocks_used / self._num_blocks,
            busy_ratio=busy_seconds / count,
            preemptions=scheduler.counters.preemptions,
            padded_tokens=scheduler.counters.padded_tokens - scheduler.counters.idle_slot_steps,
            idle_slot_steps=scheduler.counters.idle_slot_steps,
            permits_requests=waiting.sequences,
            permits_tokens=waiting.tokens,
        )
        for number in range(count):
            self._recorder.note_gauges(self._next_gauge + number - 1, gauges)
            if waiting.sequences:
                second = math.floor(self._next_gauge) + number - 1
                self.waiting_requests[second] = waiting.sequences
                self.waiting_tokens[second] = waiting.tokens
        self._next_gauge += count
