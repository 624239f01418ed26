"""Chooses what a step computes: who gives way, who joins, and how the token budget is spent."""

from __future__ import annotations

import msgspec

from serving.contracts.messages import SequenceKey
from serving.contracts.tunables import Tunables
from serving.engine.flights import Awaited
from serving.engine.joining import Joining, is_window_over
from serving.engine.long_lane import is_long_prefill, least_share
from serving.engine.order import Order
from serving.engine.padding import StaticBatch
from serving.engine.plan import MOST_READ_TOKENS, MOST_SAMPLED_ROWS, PlannedChunk, StepPlan
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence, SequenceStatus
from serving.engine.speculation.speculator import Speculator
from serving.engine.steady import count_steady_steps
from serving.engine.step_admission import KvLimits
from serving.engine.token_budget import most_prefill, prefill_budget

_PREEMPTIONS_BEFORE_PROTECTION = 2
_AWAITED_TOKEN = (0,)

Portion = tuple[Sequence, int]
"""A sequence and how many of its tokens the step computes."""


class StepPlanner:
    """Owns what planning remembers between steps (KV line, static batch, protection); used by the engine's thread only.

    Moves sequences of the roster between waiting, running and preempted; touches neither their tokens nor what owners
    are told. Continuous batching: Yu et al. 2022, "Orca", section 3; chunked prefill mixed with decodes: Agrawal et al.
    2024, "Sarathi-Serve", section 4; preemption by recompute: Kwon et al. 2023 (PagedAttention), section 4.5.
    """

    def __init__(self, roster: Roster, tunables: Tunables, order: Order) -> None:
        self.preempted_keys: tuple[SequenceKey, ...] = ()
        """Who was preempted by the last `plan_step`."""
        self.speculator = Speculator(tunables)
        """Who guesses, and is told by the scheduler what came of it."""
        self._roster = roster
        self._tunables = tunables
        self._order = order
        self._kv = KvLimits(roster.pool.num_blocks, tunables)
        self._static_batch = StaticBatch()
        self._num_protected = 0

    def retune(self, tunables: Tunables, order: Order) -> None:
        """Use other tunables, and the order that they name, from the next step on."""
        self._tunables = tunables
        self._order = order
        self._kv.retune(tunables)
        self.speculator.retune(tunables)
        if tunables.mode == "continuous":
            self._static_batch.dissolve()

    def is_window_over(self, oldest: Sequence, now: float) -> bool:
        """Whether the unstarted need not wait for company any longer, `oldest` being the one that waits longest."""
        return is_window_over(self._roster, self._tunables, self._kv, oldest=oldest, now=now)

    def plan_step(self, step: int, now: float) -> tuple[StepPlan, list[Sequence]] | None:
        """The plan of step number `step` and its chunks' sequences, in one order; None where nothing can run."""
        self._make_room_for_decodes(now)
        return self._plan(step, now, awaited=None)

    def plan_ahead(self, step: int, now: float, *, awaited: Awaited) -> tuple[StepPlan, list[Sequence]] | None:
        """As `plan_step`, while the step before is in flight, in which a token is chosen for each of the `awaited`.

        What is in flight counts as computed. None also where someone would have to give way.
        """
        if not self._grow_ahead(awaited):
            return None
        return self._plan(step, now, awaited=awaited)

    def count_steady_steps(self, *, most: int) -> int:
        """See `steady.count_steady_steps`."""
        return count_steady_steps(self._roster, self._tunables, self._kv, most=most)

    def num_idle_slots(self) -> int:
        """Slots of the static batch that stay empty in a step of all that run; 0 where there is none."""
        return self._static_batch.num_idle_slots(num_running=len(self._roster.running))

    def _plan(self, step: int, now: float, *, awaited: Awaited | None) -> tuple[StepPlan, list[Sequence]] | None:
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._roster.running:
            # As `is_prefilling` has it; asked of everyone in every step.
            (prefilling if sequence.num_planned_tokens < sequence.prefill_end else decoding).append(sequence)
        num_ending = 0
        if awaited is not None:
            num_ending = len(decoding)
            # The others' tokens in flight are their last, whichever they are.
            decoding = [s for s in decoding if s in awaited or s.num_planned_tokens < len(s.token_ids)]
            num_ending -= len(decoding)
        budget = prefill_budget(self._tunables, num_decode_tokens=_count_uncomputed(decoding))
        padded = self._join(prefilling, step=step, budget=budget, now=now)
        if not decoding and not prefilling:
            return None
        prefills = self._share_prefill(prefilling, step=step, budget=budget)
        num_prefill_tokens = sum([count for _, count in prefills])
        decodes = self._share_decode(decoding, self._tunables.max_batch_tokens - num_prefill_tokens)
        num_idle = 0
        if decodes:
            num_idle = self._static_batch.num_idle_slots(num_running=len(self._roster.running) - num_ending)
        num_decode_tokens = sum([count for _, count in decodes])
        if awaited:
            chunks = [_decode_ahead(sequence, count, awaited) for sequence, count in decodes]
        else:
            chunks = [_chunk(sequence, count, is_prefill=False) for sequence, count in decodes]
        if self.speculator.is_on and awaited is None:
            budget = self._tunables.max_batch_tokens - num_prefill_tokens - num_decode_tokens
            budget = min(budget, MOST_SAMPLED_ROWS - len(decodes) - len(prefills))
            num_decode_tokens += self._add_drafts(chunks, decodes, budget)
        chunks += [_chunk(sequence, count, is_prefill=True) for sequence, count in prefills]
        plan = StepPlan(
            step=step,
            chunks=tuple(chunks),
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=num_decode_tokens,
            num_padded_tokens=padded + num_idle,
            num_idle_slots=num_idle,
        )
        return plan, [sequence for sequence, _ in decodes + prefills]

    def _make_room_for_decodes(self, now: float) -> None:
        """Give each decoding sequence the block that its next token needs, the most deserving first.

        Where none may be taken, the least deserving of all that run is preempted, be it the one that asks. So the most
        deserving always goes on; and what a preempted one needs to come back is more than its leaving left free, so it
        does not come back before another ends. Where the order moves meanwhile, those who would take turns in giving
        way are protected after the second time: they go before all others, and among themselves in a fixed order, so
        that whoever is protected first runs to its end.
        """
        self.preempted_keys = ()
        roster, block_size = self._roster, self._roster.block_size
        self._kv.settle(num_used=roster.pool.num_used)
        growing = [s for s in roster.running if len(s.token_ids) > len(s.block_table) * block_size]
        if not growing:
            return
        num_missing = sum([roster.num_blocks_missing(sequence) for sequence in growing])
        if self._may_grow(num_missing) or (self._take_back_spare() and self._may_grow(num_missing)):
            for sequence in growing:
                roster.grow(sequence, roster.num_blocks_missing(sequence))
            return
        preempted = []
        by_merit = self._order.by_merit(roster.running)
        least_deserving = list(by_merit)
        for sequence in by_merit:
            if sequence.status is not SequenceStatus.RUNNING:
                break  # It gave way to one before it, and so did everyone after it.
            missing = max(0, roster.num_blocks_missing(sequence))
            while missing and sequence.status is SequenceStatus.RUNNING and not self._may_grow(missing):
                preempted.append(least_deserving[-1].key)
                self._preempt(least_deserving.pop(), now)
            if sequence.status is SequenceStatus.RUNNING:
                roster.grow(sequence, missing)
        self.preempted_keys = tuple(preempted)

    def _grow_ahead(self, awaited: Awaited) -> bool:
        """Give each the block that its awaited token needs, if there are enough for all; whether there were.

        The others that decode had theirs in an earlier step.
        """
        self.preempted_keys = ()
        roster = self._roster
        self._kv.settle(num_used=roster.pool.num_used)
        block_size = roster.block_size
        growing = [s for s in awaited if len(s.token_ids) >= len(s.block_table) * block_size]
        if growing and not self._may_grow(len(growing)):
            return False
        for sequence in growing:
            roster.grow(sequence, 1)
        return True

    def _preempt(self, sequence: Sequence, now: float) -> None:
        batch_size = len(self._roster.running)
        sequence.spans.note_preempted(now, position=len(sequence.token_ids) - 1, batch_size=batch_size)
        if sequence.num_preemptions + 1 >= _PREEMPTIONS_BEFORE_PROTECTION and not sequence.protection:
            self._num_protected += 1
            sequence.protection = self._num_protected
            sequence.rank = self._order.rank(sequence)
        self._roster.preempt(sequence)

    def _add_drafts(self, chunks: list[PlannedChunk], decodes: list[Portion], budget: int) -> int:
        """Add guesses to the `chunks` of `decodes`; how many. They have the places in the step that all that is real
        leaves over, and blocks that a sequence which joins could have: nobody gives way for a guess."""
        self.speculator.begin_step(self._roster.running, num_decoding=len(decodes))
        num_drafts = 0
        for index, (sequence, _) in enumerate(decodes):
            if num_drafts >= budget:
                break
            if not chunks[index].samples:
                continue
            draft_ids = self.speculator.propose(sequence, most=budget - num_drafts)
            draft_ids = draft_ids[: self._room_for_drafts(sequence, len(draft_ids))]
            if draft_ids:
                chunks[index] = msgspec.structs.replace(chunks[index], draft_ids=draft_ids)
                num_drafts += len(draft_ids)
        return num_drafts

    def _room_for_drafts(self, sequence: Sequence, count: int) -> int:
        """For how many of `count` positions behind its context a sequence has blocks, which it is given if they are to
        spare. It keeps them for its next tokens, but none that another one needs."""
        roster = self._roster
        missing = roster.num_blocks_missing(sequence, num_awaited=count)
        if 0 < missing <= self._kv.room(num_used=roster.pool.num_used, alone=len(roster.running) == 1):
            roster.grow(sequence, missing)
        return min(count, len(sequence.block_table) * roster.block_size - len(sequence.token_ids))

    def _take_back_spare(self) -> bool:
        """Take the blocks that were given for guesses and are empty still; whether there were any."""
        spare = [(s, -self._roster.num_blocks_missing(s)) for s in self._roster.running]
        for sequence, count in spare:
            if count > 0:
                self._roster.shrink(sequence, count)
        return any(count > 0 for _, count in spare)

    def _may_grow(self, count: int) -> bool:
        roster = self._roster
        return self._kv.may_grow(count, num_used=roster.pool.num_used, alone=len(roster.running) == 1)

    def _join(self, prefilling: list[Sequence], *, step: int, budget: int, now: float) -> int:
        """Start waiting sequences and add them to `prefilling`; the padding of a static batch that forms so."""
        forms_batch = self._tunables.mode == "static" and not self._roster.running
        joining = Joining(
            self._roster, self._tunables, self._kv, self._order, budget=budget, least_long=least_share(budget, step)
        )
        joined = joining.join(prefilling, now)
        prefilling.extend(joined)
        return self._static_batch.form(joined) if forms_batch else 0

    def _share_prefill(self, prefilling: list[Sequence], *, step: int, budget: int) -> list[Portion]:
        """The prefill budget's portions: those whose stream had begun first, then by merit; and of them the short ones
        before the long, but for the long ones' least share.
        """
        if not prefilling:
            return []
        long_tokens = self._tunables.long_prompt_tokens
        by_merit = sorted(self._order.by_merit(prefilling), key=_never_gave_way)
        wanted = _wanted(by_merit, self._tunables)
        short = [portion for portion in wanted if not is_long_prefill(portion[0], long_tokens)]
        long = [portion for portion in wanted if is_long_prefill(portion[0], long_tokens)]
        kept_for_long = min(least_share(budget, step), sum([count for _, count in long]))
        portions = _share_out(short, budget - kept_for_long)
        budget -= sum([count for _, count in portions])
        return portions + _share_out(long, budget)

    def _share_decode(self, decoding: list[Sequence], budget: int) -> list[Portion]:
        if len(decoding) > budget:
            decoding = self._order.choose_decodes(decoding, budget)
        # Where nothing is uncomputed, the token is that which is awaited.
        return _share_out([(s, len(s.token_ids) - s.num_planned_tokens or 1) for s in decoding], budget)


def _wanted(prefilling: list[Sequence], tunables: Tunables) -> list[Portion]:
    """What each could compute. Those that read their prompts share what a step may read, the others wait."""
    wanted = []
    unread = MOST_READ_TOKENS
    for sequence in prefilling:
        count = most_prefill(sequence, tunables)
        if sequence.reads_prompt:
            count = min(count, unread)
            unread -= count
        if count:
            wanted.append((sequence, count))
    return wanted


def _share_out(wanted: list[Portion], budget: int) -> list[Portion]:
    """Give each in turn what it wants while the budget lasts."""
    portions = []
    for sequence, most in wanted:
        count = most if most < budget else budget
        if count <= 0:
            break
        portions.append((sequence, count))
        budget -= count
    return portions


def _never_gave_way(sequence: Sequence) -> bool:
    return sequence.num_preemptions == 0


def _count_uncomputed(sequences: list[Sequence]) -> int:
    return sum([len(sequence.token_ids) - sequence.num_planned_tokens or 1 for sequence in sequences])


def _decode_ahead(sequence: Sequence, count: int, awaited: Awaited) -> PlannedChunk:
    if (awaits := awaited.get(sequence)) is None:
        return _chunk(sequence, count, is_prefill=False)
    start, num_prompt_tokens = sequence.num_planned_tokens, sequence.num_prompt_tokens
    sequence.num_planned_tokens = start + 1
    return PlannedChunk(
        sequence.key,
        _AWAITED_TOKEN,
        start,
        sequence.block_table,
        samples=True,
        sample_index=start + 1 - num_prompt_tokens,
        params=sequence.params,
        is_prefill=False,
        context=sequence.token_ids,
        num_prompt_tokens=num_prompt_tokens,
        awaits=awaits,
    )


def _chunk(sequence: Sequence, count: int, *, is_prefill: bool) -> PlannedChunk:
    token_ids, start, num_prompt_tokens = sequence.token_ids, sequence.num_planned_tokens, sequence.num_prompt_tokens
    end, length = start + count, len(token_ids)
    sequence.num_planned_tokens = end
    return PlannedChunk(
        sequence.key,
        token_ids[start:end],
        start,
        sequence.block_table,
        end == length and not (is_prefill and sequence.params.embeds),
        length - num_prompt_tokens,
        sequence.params,
        is_prefill,
        token_ids,
        num_prompt_tokens,
        sequence.hidden_sum,
    )
