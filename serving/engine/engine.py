"""The LLM engine: commands in between steps, events out of each."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from serving.contracts.ids import OwnerId
from serving.contracts.messages import EngineState, Event, Finished, SequenceKey, Submit
from serving.contracts.tunables import Tunables
from serving.engine.departure import Departure, RunThrough, launch
from serving.engine.plan import AheadRunner, BoundedRunner, DividedRunner, Runner, StepPlan, StepResult, StepTimes
from serving.engine.scheduler import Scheduler
from serving.engine.stats import EngineCounts, StepLog, StepMember, StepRecord

_log = logging.getLogger(__name__)

_MAX_FAILED_IN_ROW = 3
_MAX_RECORDED_WAITING = 32
_MAX_ENDED_BETWEEN = 1024

Clock = Callable[[], float]
"""Seconds that never go back."""


class Engine:
    """Owns a scheduler and a runner; everything here is called by one thread, commands between steps.

    `step` is: schedule → run → update. What owners are to be told, of commands as well as of steps, is handed over by
    the next `step`, in the order in which it happened.

    A runner that looks ahead computes one plan while the next is made and launched: then `step` is schedule → launch →
    collect the plan before → update, and a device finds its next plan when it is done with one. Commands act one step
    later than without, since the plan that they could still have changed is launched; all else is as without.
    """

    def __init__(
        self, runner: Runner, *, tunables: Tunables, tunables_version: int = 0, clock: Clock = time.monotonic
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._max_step_tokens = runner.max_step_tokens if isinstance(runner, BoundedRunner) else None
        self._tunables_version = tunables_version
        self._scheduler = Scheduler(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            eos_token_ids=runner.eos_token_ids,
            tunables=self._bounded(tunables),
            long_from=runner.long_from if isinstance(runner, DividedRunner) else None,
        )
        self._ahead = runner if isinstance(runner, AheadRunner) and runner.looks_ahead else None
        self._departed: Departure | None = None
        self._ended_at = clock()
        self._steps = StepLog(started_at=self._ended_at)
        self._ended_between: deque[SequenceKey] = deque(maxlen=_MAX_ENDED_BETWEEN)
        self._num_failed_in_row = 0

    # --- commands --------------------------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> None:
        """Let a sequence wait; it is accepted or refused in the next step's events. See `Scheduler.add`."""
        self._scheduler.add(submit, self._clock())

    def abort(self, key: SequenceKey, *, attempt: int) -> None:
        """End a choice's attempts up to `attempt`, in whatever state, and those of its Submits still to come."""
        self._scheduler.abort(key, self._clock(), attempt=attempt)

    def abort_owner(self, owner_id: OwnerId) -> None:
        """End every sequence of an owner that is gone."""
        self._scheduler.abort_owner(owner_id, self._clock())

    def retune(self, version: int, tunables: Tunables, *, force: bool = False) -> None:
        """Run these tunables from the next step; without `force`, an older version than the running one is ignored."""
        if version < self._tunables_version and not force:
            return
        self._tunables_version = version
        self._scheduler.retune(self._bounded(tunables))

    def remind(self) -> None:
        """Tell the owners of all that lives here that it does."""
        self._scheduler.remind()

    def drain(self) -> None:
        """Refuse what comes from now on, hand back what never started, finish the rest. `has_work` tells when done."""
        self._scheduler.drain()

    def resume(self) -> None:
        """Take work again after `drain`."""
        self._scheduler.resume()

    def share(self) -> None:
        """Hand back what never started beyond the free places, now that other engines have joined the pool."""
        self._scheduler.share()

    def hand_back(self) -> list[tuple[OwnerId, Event]]:
        """Give all that lives back to its owners, and take nothing more; the events since the last step.

        What is in flight has no owner any more; a `step` takes it in.
        """
        self._scheduler.hand_back()
        return self._scheduler.take_events()

    def take_events(self) -> list[tuple[OwnerId, Event]]:
        """What the commands since the last step have to tell, before the next one: a step may be long."""
        events = self._scheduler.take_events()
        self._ended_between.extend(_ended_in(events))
        return events

    # --- the step --------------------------------------------------------------------------------------------------

    @property
    def tunables_version(self) -> int:
        """Version of the tunables that the next step runs."""
        return self._tunables_version

    @property
    def tunables(self) -> Tunables:
        """What the next step runs."""
        return self._scheduler.tunables

    @property
    def owners(self) -> frozenset[OwnerId]:
        """Who owns the sequences that live here."""
        return self._scheduler.owners

    @property
    def num_unfinished(self) -> int:
        """Sequences that live, running or waiting."""
        return self._scheduler.num_running + self._scheduler.num_waiting

    @property
    def is_broken(self) -> bool:
        """Whether the last steps all failed: a device in such a state fails whatever it is given."""
        return self._num_failed_in_row >= _MAX_FAILED_IN_ROW

    @property
    def draining(self) -> bool:
        """Whether new work is refused."""
        return self._scheduler.draining

    @property
    def has_work(self) -> bool:
        """Whether any sequence lives, events wait to be handed over or a plan is in flight; `next_wakeup` says when
        `step` is due."""
        return self.num_unfinished > 0 or self._scheduler.has_events or self._departed is not None

    def next_wakeup(self) -> float | None:
        """When `step` next has something to do, in the clock's seconds; now or earlier means at once.

        None while there is nothing to do until a command comes. A command may make it earlier.
        """
        now = self._clock()
        return now if self._scheduler.has_events else self._scheduler.next_wakeup(now)

    def step(self) -> list[tuple[OwnerId, Event]]:
        """Compute one step if anything can run; the events since the last call, each with the owner it is for.

        With look-ahead: launch a step if anything can run, then take in the one launched before, if there is one. A
        runner that raises, or returns something that is no result of the plan, ends that step's sequences with reason
        `error`; the engine goes on with the others.
        """
        due = self._departed
        departed = self._depart(behind=due)
        if self._ahead is None:
            due, departed = departed, None
        self._departed = departed
        return self._scheduler.take_events() if due is None else self._arrive(due)

    def _depart(self, *, behind: Departure | None) -> Departure | None:
        """Plan a step and launch it, behind the one in flight if there is one; None where nothing can run."""
        if behind is not None and behind.has_failed:
            return None  # Nobody will know the tokens that it should have chosen.
        started = self._clock()
        plan = self._scheduler.schedule(started) if behind is None else self._scheduler.schedule_ahead(started)
        if plan is None:
            return None
        scheduled = self._clock()
        launched = RunThrough(self._runner, plan) if self._ahead is None else launch(self._ahead, plan)
        return Departure(
            plan=plan,
            launched=launched,
            started_at=started,
            scheduled_at=scheduled,
            hidden_seconds=0.0 if behind is None else self._clock() - started,
            is_behind=behind is not None,
            preempted_keys=self._scheduler.preempted_keys,
            tunables=self._scheduler.tunables,
            tunables_version=self._tunables_version,
        )

    def _arrive(self, departure: Departure) -> list[tuple[OwnerId, Event]]:
        """Wait for a step's result and take it in; all events since the last time."""
        plan = departure.plan
        try:
            result = departure.launched.collect()
            _check_result(plan, result)
        except Exception as error:
            self._num_failed_in_row += 1
            _log.exception("step %d failed", plan.step)
            computed = self._clock()
            message = f"the engine failed to compute a step ({type(error).__name__})"
            events = self._scheduler.fail(plan, message, computed)
            self._record(departure, None, events, computed)
            return events
        self._num_failed_in_row = 0
        computed = self._clock()
        events = self._scheduler.update(plan, result, computed)
        self._record(departure, result, events, computed)
        return events

    # --- what it tells of itself -----------------------------------------------------------------------------------

    def counts(self) -> EngineCounts:
        """The engine's state as it is between two steps. Mutates nothing that decides."""
        scheduler = self._scheduler
        counters, waiting = scheduler.counters, scheduler.waiting_counts
        num_query, num_hit = scheduler.num_prefix_tokens
        return EngineCounts(
            state=self._state(),
            max_model_len=scheduler.max_context_tokens,
            max_step_tokens=self._max_step_tokens,
            tunables_version=self._tunables_version,
            num_waiting=scheduler.num_waiting,
            num_waiting_tokens=waiting.num_tokens,
            num_running=scheduler.num_running,
            block_size=self._runner.block_size,
            kv_blocks_total=self._runner.num_blocks,
            kv_blocks_used=scheduler.num_blocks_used,
            kv_blocks_cached=scheduler.num_blocks_cached,
            kv_blocks_free=scheduler.num_blocks_free,
            steps_total=counters.steps,
            prompt_tokens_total=counters.prompt_tokens,
            generated_tokens_total=counters.generated_tokens,
            preemptions_total=counters.preemptions,
            padded_tokens_total=counters.padded_tokens,
            idle_slot_steps_total=counters.idle_slot_steps,
            discarded_tokens_total=counters.discarded_tokens,
            drafted_tokens_total=counters.drafted_tokens,
            accepted_tokens_total=counters.accepted_tokens,
            prefix_query_tokens_total=num_query,
            prefix_hit_tokens_total=num_hit,
            left_total=counters.left,
            num_waiting_long=waiting.num_long,
            num_waiting_long_tokens=waiting.num_long_tokens,
            waiting_by_priority=waiting.by_priority,
            prefill_tokens_total=self._steps.prefill_tokens,
            decode_tokens_total=self._steps.decode_tokens,
            step_seconds_total=self._steps.step_seconds,
            busy_ratio=self._steps.busy_ratio(self._clock()),
            last_step_ms=self._steps.last_step_seconds * 1000,
        )

    def _bounded(self, tunables: Tunables) -> Tunables:
        """The tunables as far as the runner has memory for their steps."""
        bound = self._max_step_tokens
        if bound is None or tunables.max_batch_tokens <= bound:
            return tunables
        return msgspec.structs.replace(tunables, max_batch_tokens=bound)

    def _state(self) -> EngineState:
        if not self._scheduler.draining:
            return "ready"
        return "draining" if self.has_work else "drained"

    def records_since(self, step: int) -> list[StepRecord]:
        """What is kept of the steps after number `step`, the oldest first."""
        return self._steps.since(step)

    def check_invariants(self) -> None:
        """Raise AssertionError where the engine's books contradict each other. For tests."""
        self._scheduler.check_invariants()

    def _record(
        self,
        departure: Departure,
        result: StepResult | None,
        events: list[tuple[OwnerId, Event]],
        computed: float,
    ) -> None:
        plan, tunables = departure.plan, departure.tunables
        members = [
            StepMember(
                chunk.key,
                "prefill" if chunk.is_prefill else "decode",
                # Few have drafts, and everyone is noted in every step.
                chunk.num_rows if chunk.draft_ids else len(chunk.token_ids),
            )
            for chunk in plan.chunks
        ]
        num_context_tokens, num_prefill_positions = plan.count_positions()
        members += [StepMember(key, "preempted", 0) for key in departure.preempted_keys]
        ended = (*self._ended_between, *_ended_in(events))
        self._ended_between.clear()
        # A step that was planned while the one before was in flight begins where that one ended.
        began = max(departure.started_at, self._ended_at)
        self._ended_at = now = self._clock()
        times = result.times if result else StepTimes(forward_seconds=computed - departure.scheduled_at)
        if departure.is_behind:
            times = times.within(computed - began)
        self._steps.add(
            StepRecord(
                step=plan.step,
                started_at=began,
                schedule_seconds=max(0.0, departure.scheduled_at - began),
                prepare_seconds=times.prepare_seconds,
                forward_seconds=times.forward_seconds,
                sample_seconds=times.sample_seconds,
                update_seconds=now - computed,
                total_seconds=now - began,
                hidden_seconds=departure.hidden_seconds,
                num_context_tokens=num_context_tokens,
                num_prefill_positions=num_prefill_positions,
                num_prefill_tokens=plan.num_prefill_tokens,
                num_decode_tokens=plan.num_decode_tokens,
                num_padded_tokens=plan.num_padded_tokens,
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                kv_blocks_used=self._scheduler.num_blocks_used,
                tunables_version=departure.tunables_version,
                mode=tunables.mode,
                max_batch_tokens=tunables.max_batch_tokens,
                members=tuple(members),
                ended=ended,
                waiting=self._scheduler.first_waiting(_MAX_RECORDED_WAITING),
                failed=result is None,
            )
        )


def _ended_in(events: list[tuple[OwnerId, Event]]) -> list[SequenceKey]:
    return [event.key for _, event in events if type(event) is Finished]


def _check_result(plan: StepPlan, result: StepResult) -> None:
    """Raise ValueError where `result` cannot be that of `plan`."""
    if len(result.token_ids) != len(plan.chunks):
        raise ValueError(f"{len(plan.chunks)} chunks were planned, {len(result.token_ids)} came back")
    for index, (chunk, token_ids) in enumerate(zip(plan.chunks, result.token_ids, strict=True)):
        if bool(token_ids) != chunk.samples and index not in result.errors:
            raise ValueError(f"{chunk.key}: {len(token_ids)} tokens where samples is {chunk.samples}")
        if chunk.draft_ids and len(token_ids) > 1 + len(chunk.draft_ids):
            raise ValueError(f"{chunk.key}: {len(token_ids)} tokens of {len(chunk.draft_ids)} drafts")
        # Asked of prefills alone, here and elsewhere: decodes are many, and embed nothing.
        if chunk.is_prefill and chunk.embeds and index not in result.errors:
            told = result.embeddings if chunk.ends_embedding else result.hidden_sums
            if index not in told:
                raise ValueError(f"{chunk.key}: no embedding came back, nor a part of one")
