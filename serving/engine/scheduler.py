"""Decides what each step computes, and what its results mean for every sequence."""

from __future__ import annotations

import itertools

from serving.contracts.ids import OwnerId
from serving.contracts.messages import (
    Accepted,
    Event,
    RefusalCode,
    SequenceKey,
    Submit,
)
from serving.contracts.tunables import Tunables
from serving.engine.endings import Endings
from serving.engine.flights import Flights
from serving.engine.order import Order, order_of
from serving.engine.plan import StepPlan, StepResult
from serving.engine.planner import StepPlanner
from serving.engine.recent import RecentMap
from serving.engine.results import ResultTaker
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.stats import Counters
from serving.engine.steady import pass_steady_steps
from serving.engine.step_admission import overdue_message, refusal_of, wait_ends_at, window_ends_at
from serving.engine.waiting import WaitingCounts

_MAX_REMEMBERED = 10_000


class Scheduler:
    """Owns the roster of live sequences and what is remembered of aborts; used by the engine's thread only.

    Knows no clock: `now` is given, in seconds, and never goes back. A step is `schedule`, then `update` (or `fail`)
    with that plan; sequences may be added and aborted at any time, between the two as well. With look-ahead, another
    plan is made by `schedule_ahead` between the two, and their results are taken in one after the other. What owners
    are to be told gathers until `update` or `take_events` hands it over. Every submitted key ends in exactly one
    `Finished`, `Refused` or `Returned` of its newest attempt.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        tunables: Tunables,
        long_from: int | None = None,
    ) -> None:
        self.max_context_tokens = min(max_model_len, num_blocks * block_size)
        self.counters = Counters()
        self.draining = False
        self._eos_token_ids = eos_token_ids
        self._long_from = long_from
        self._tunables = tunables
        self._order: Order = order_of(tunables.order)
        self._roster = Roster(
            num_blocks=num_blocks,
            block_size=block_size,
            order=self._order,
            long_tokens=tunables.long_prompt_tokens,
        )
        self._roster.use_prefix_caching(is_on=tunables.prefix_caching == "on")
        self._planner = StepPlanner(self._roster, tunables, self._order)
        self._num_added = 0
        self._aborted_attempts: RecentMap[SequenceKey, int] = RecentMap(_MAX_REMEMBERED)
        self._flights = Flights()
        self._endings = Endings(self._roster, self.counters)
        self._results = ResultTaker(self._roster, self._endings, self._planner.speculator, self._order)

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def tunables(self) -> Tunables:
        """What the next `schedule` goes by."""
        return self._tunables

    @property
    def owners(self) -> frozenset[OwnerId]:
        """Who owns the live sequences."""
        return frozenset(sequence.owner_id for sequence in self._roster)

    @property
    def num_running(self) -> int:
        """Sequences that hold a place in the batch."""
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones included."""
        return len(self._roster.waiting)

    @property
    def waiting_counts(self) -> WaitingCounts:
        """Their context tokens, lanes and priorities."""
        return self._roster.waiting.counts()

    @property
    def num_blocks_used(self) -> int:
        """Blocks that live sequences hold."""
        return self._roster.pool.num_used

    @property
    def num_blocks_cached(self) -> int:
        """Blocks kept for reuse that nobody holds."""
        return self._roster.pool.num_cached

    @property
    def num_blocks_free(self) -> int:
        """Blocks with nothing in them."""
        return self._roster.pool.num_free

    @property
    def num_prefix_tokens(self) -> tuple[int, int]:
        """Context tokens of the sequences that started while prefix caching was on, since the engine's start (not those
        that a sibling had computed), and those of them that were found."""
        return self._roster.num_prefix_query_tokens, self._roster.num_prefix_hit_tokens

    @property
    def preempted_keys(self) -> tuple[SequenceKey, ...]:
        """Who was preempted by the last `schedule`."""
        return self._planner.preempted_keys

    def first_waiting(self, count: int) -> tuple[SequenceKey, ...]:
        """The first of those that wait, in the order in which they would be served."""
        waiting = self._roster.waiting
        return tuple([sequence.key for sequence in itertools.islice(waiting.in_order(), count)]) if waiting else ()

    @property
    def has_events(self) -> bool:
        """Whether owners are to be told something."""
        return self._endings.has_events

    def take_events(self) -> list[tuple[OwnerId, Event]]:
        """Hand over the events gathered since the last time, in the order in which they happened."""
        return self._endings.take_events()

    def next_wakeup(self, now: float) -> float | None:
        """When there is something to schedule or to take in: `now` or earlier means at once, None not before something
        comes."""
        if self._roster.running or self._flights:
            return now
        waiting = self._roster.waiting
        if not waiting:
            return None
        # Alone in the pool, whoever is first fits.
        oldest, refusable = waiting.oldest_unstarted, self._next_overdue()
        if oldest is None or waiting.num_preempted or self._planner.is_window_over(oldest, now):
            return now
        window_end = window_ends_at(oldest, self._tunables)
        return window_end if refusable is None else min(window_end, wait_ends_at(refusable, self._tunables))

    @property
    def num_in_flight(self) -> int:
        """Plans whose results were not taken in yet."""
        return len(self._flights)

    def check_invariants(self) -> None:
        """Raise AssertionError where the books contradict each other. For tests."""
        self._roster.check_invariants()
        self._flights.check_invariants(self._roster)

    # --- commands --------------------------------------------------------------------------------------------------

    def add(self, submit: Submit, now: float) -> None:
        """Let a sequence wait, or refuse what can never run.

        A newer attempt of a live key takes the older one's place without a word to its owner; an older or equal one is
        ignored. What was aborted before it came ends at once.
        """
        current = self._roster.find(submit.key)
        latest = current.attempt if current else self._endings.last_attempt(submit.key)
        if latest is not None and submit.attempt <= latest:
            return
        if current is not None:
            self._endings.let_go(current)
        self._num_added += 1
        sequence = Sequence.of(
            submit,
            eos_token_ids=self._eos_token_ids,
            serial=self._num_added,
            now=now,
            long_from=self._long_from,
        )
        sequence.rank = self._order.rank(sequence)
        self._roster.enter(sequence)
        if submit.attempt <= (self._aborted_attempts.get(submit.key) or 0):
            self._endings.finish(sequence, "abort", now)
            return
        if (refusal := self._refusal_of(submit)) is not None:
            self._endings.refuse(sequence, *refusal)
            return
        num_ahead = self._roster.waiting.num_ahead_of(sequence)
        self._endings.tell(sequence, Accepted(sequence.key, sequence.attempt, num_ahead))
        # An earlier attempt may have delivered its last token and died before it could say so.
        reason = sequence.end_reason()
        if reason is not None:
            self._endings.finish(sequence, reason, now)

    def abort(self, key: SequenceKey, now: float, *, attempt: int) -> None:
        """End a choice's attempts up to `attempt`, whatever their state. Remembered, since Submits may be on their way.

        Ended and newer ones are left alone. The last 10,000 aborts are remembered.
        """
        self._aborted_attempts.keep(key, max(attempt, self._aborted_attempts.get(key) or 0))
        sequence = self._roster.find(key)
        if sequence is not None and sequence.attempt <= attempt:
            self._endings.finish(sequence, "abort", now)

    def abort_owner(self, owner_id: OwnerId, now: float) -> None:
        """End every sequence of an owner that is gone."""
        for sequence in self._roster.owned_by(owner_id):
            self._endings.finish(sequence, "abort", now)

    def remind(self) -> None:
        """Say of every live sequence that it is in good hands: silence would mean that word of it was lost."""
        for sequence in self._roster.running:
            self._endings.tell(sequence, Accepted(sequence.key, sequence.attempt))
        for num_ahead, sequence in enumerate(self._roster.waiting.in_order()):
            self._endings.tell(sequence, Accepted(sequence.key, sequence.attempt, num_ahead))

    def retune(self, tunables: Tunables) -> None:
        """Use other tunables from the next `schedule` on."""
        before, self._tunables = self._tunables, tunables
        if tunables.order != before.order:
            self._order = order_of(tunables.order)
        if (tunables.order, tunables.long_prompt_tokens) != (before.order, before.long_prompt_tokens):
            self._roster.rank_anew(self._order, long_tokens=tunables.long_prompt_tokens)
        self._planner.retune(tunables, self._order)
        self._results.charge_by(self._order)
        self._roster.use_prefix_caching(is_on=tunables.prefix_caching == "on")

    def drain(self) -> None:
        """Accept nothing new and hand back what never started; what has run goes on to its end."""
        self.draining = True
        for sequence in self._roster.waiting.unstarted():
            self._endings.give_back(sequence)

    def resume(self) -> None:
        """Accept what is new again."""
        self.draining = False

    def share(self) -> None:
        """Hand back what never started but for the most deserving, a sequence a free place: others may have more."""
        num_places = max(0, self._tunables.max_running - len(self._roster.running))
        for sequence in self._order.by_merit(self._roster.waiting.unstarted())[num_places:]:
            self._endings.give_back(sequence)

    def hand_back(self) -> None:
        """Give every live sequence back to its owner, who goes on with it elsewhere."""
        self.draining = True
        for sequence in list(self._roster):
            self._endings.give_back(sequence)

    # --- the step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Choose what the next step computes; None where nothing can run now."""
        assert not self._flights, "the plan in flight has no result yet"
        self._refuse_overdue(now)
        planned = self._planner.plan_step(self.counters.steps + 1, now)
        self.counters.preemptions += len(self._planner.preempted_keys)
        return self._take_off(planned, now)

    def schedule_ahead(self, now: float) -> StepPlan | None:
        """Choose what the step computes after the one in flight, whose tokens are not known; None where nothing can run
        then, or where it takes the result to say what."""
        if not self._flights.may_be_followed():
            return None
        awaited = self._flights.awaited()
        # Here too, since there may never be a step that is not planned ahead.
        self._planner.speculator.forget_all_but(self._roster.running)
        if self._planner.speculator.is_worth_waiting(awaited):
            return None
        self._refuse_overdue(now)
        planned = self._planner.plan_ahead(self.counters.steps + 2, now, awaited=awaited)
        return self._take_off(planned, now)

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[tuple[OwnerId, Event]]:
        """Take in the result of `plan`, the oldest in flight, and hand over all events gathered since the last time.

        What was aborted, replaced or ended meanwhile keeps nothing of it.
        """
        sequences, began = self._land(plan, now)
        self._planner.speculator.note_step(plan, now - began)
        self._results.take(plan, sequences, result, (began, now))
        return self.take_events()

    def fail(self, plan: StepPlan, message: str, now: float) -> list[tuple[OwnerId, Event]]:
        """End every sequence of `plan`, the oldest in flight, which could not be computed; hands over the events like
        `update`."""
        sequences, _ = self._land(plan, now)
        for sequence in sequences:
            if sequence.status is SequenceStatus.RUNNING:
                self._endings.finish(sequence, "error", now, message=message)
        return self.take_events()

    # --- many steps at once ----------------------------------------------------------------------------------------

    def steady_steps(self, *, most: int) -> int:
        """How many of the next steps, `most` at most, all do the same: everyone that runs decodes a token, and nobody
        joins, ends or gives way, if nothing comes, and each begins before `next_refusal`. Mutates nothing."""
        return 0 if self._flights else self._planner.count_steady_steps(most=most)

    def running_contexts(self) -> list[tuple[SequenceKey, int]]:
        """Everyone that runs, and the length of its context."""
        return [(sequence.key, len(sequence.token_ids)) for sequence in self._roster.running]

    def next_refusal(self) -> float | None:
        """When the first of those that wait is refused for it, if nothing changes; None where nobody is."""
        overdue = self._next_overdue()
        return None if overdue is None else wait_ends_at(overdue, self._tunables)

    def pass_steady(self, count: int, *, token_id: int, began: float) -> None:
        """Be where `count` steps lead that `steady_steps` allows and that each chose `token_id` for everyone, the first
        begun at `began`; tells owners nothing of them. So that who knows no model can simulate them in one go."""
        assert not self._flights, "a plan is in flight"
        running = self._roster.running
        pass_steady_steps(self._roster, count, token_id=token_id, began=began)
        self.counters.steps += count
        self.counters.generated_tokens += count * len(running)
        num_idle = count * self._planner.num_idle_slots()
        self.counters.padded_tokens += num_idle
        self.counters.idle_slot_steps += num_idle
        if self._order.weighs_service:
            for sequence in running:
                self._order.charge(sequence, num_prompt_tokens=0, num_generated=count)

    # --- overdue sequences, and plans on their way -----------------------------------------------------------------

    def _refuse_overdue(self, now: float) -> None:
        while (overdue := self._next_overdue()) is not None:
            if now < wait_ends_at(overdue, self._tunables):
                return
            self._endings.refuse(overdue, "queue_timeout", overdue_message(overdue, self._tunables))

    def _next_overdue(self) -> Sequence | None:
        """Who is the first to have waited too long if nothing changes; None where nobody is refused for waiting."""
        waiting = self._roster.waiting
        first = [sequence for sequence in (waiting.oldest_refusable, waiting.soonest_deadline) if sequence is not None]
        return min(first, key=lambda sequence: wait_ends_at(sequence, self._tunables), default=None)

    def _take_off(self, planned: tuple[StepPlan, list[Sequence]] | None, now: float) -> StepPlan | None:
        if planned is None:
            return None
        self._flights.take_off(*planned, now)
        return planned[0]

    def _land(self, plan: StepPlan, now: float) -> tuple[list[Sequence], float]:
        self.counters.steps += 1
        self.counters.padded_tokens += plan.num_padded_tokens
        self.counters.idle_slot_steps += plan.num_idle_slots
        return self._flights.land(plan, now)

    def _refusal_of(self, submit: Submit) -> tuple[RefusalCode, str] | None:
        if self.draining:
            return "draining", "the engine is finishing its work and takes no more"
        return refusal_of(submit, max_context_tokens=self.max_context_tokens)
