"""Chooses what a step computes: who gives way, who joins, and how the token budget is spent."""

from __future__ import annotations

from serving.contracts.messages import SequenceKey
from serving.contracts.tunables import Tunables
from serving.engine.padding import StaticBatch
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.roster import Roster
from serving.engine.sequence import Rank, Sequence, SequenceStatus
from serving.engine.step_admission import KvLimits, is_company_complete, num_blocks_of, window_ends_at
from serving.engine.token_budget import choose_decodes, prefill_budget

Portion = tuple[Sequence, int]
"""A sequence and how many of its tokens the step computes."""


class StepPlanner:
    """Owns what planning remembers between steps (KV line, static batch, turns); used by the engine's thread only.

    Moves sequences of the roster between waiting, running and preempted; touches neither their tokens nor what owners
    are told. Continuous batching: Yu et al. 2022, "Orca", section 3; chunked prefill mixed with decodes: Agrawal et al.
    2024, "Sarathi-Serve", section 4; preemption by recompute: Kwon et al. 2023 (PagedAttention), section 4.5.
    """

    def __init__(self, roster: Roster, tunables: Tunables) -> None:
        self.preempted_keys: tuple[SequenceKey, ...] = ()
        """Who was preempted by the last `plan_step`."""
        self._roster = roster
        self._tunables = tunables
        self._kv = KvLimits(roster.pool.num_blocks, tunables)
        self._static_batch = StaticBatch()
        self._last_decoded: Rank = ()

    def retune(self, tunables: Tunables) -> None:
        """Use other tunables from the next step on."""
        self._tunables = tunables
        self._kv.retune(tunables)
        if tunables.mode == "continuous":
            self._static_batch.dissolve()

    def is_window_over(self, oldest: Sequence, now: float) -> bool:
        """Whether the unstarted need not wait for company any longer, `oldest` being the one that waits longest."""
        if now >= window_ends_at(oldest, self._tunables):
            return True
        return is_company_complete(
            self._roster.waiting,
            self._tunables,
            num_running=len(self._roster.running),
            room_blocks=self._kv.room(num_used=self._roster.pool.num_used, alone=False),
            block_size=self._roster.block_size,
        )

    def plan_step(self, step: int, now: float) -> tuple[StepPlan, list[Sequence]] | None:
        """The plan of step number `step` and its chunks' sequences, in one order; None where nothing can run."""
        self._make_room_for_decodes()
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._roster.running:
            (prefilling if sequence.is_prefilling else decoding).append(sequence)
        budget = prefill_budget(self._tunables, num_decode_tokens=_count_uncomputed(decoding))
        padded = self._join(prefilling, budget=budget, now=now)
        if not decoding and not prefilling:
            return None
        prefills = self._share_out(prefilling, budget, most=self._tunables.max_prefill_chunk)
        num_prefill_tokens = sum([count for _, count in prefills])
        budget = self._tunables.max_batch_tokens - num_prefill_tokens
        chosen = choose_decodes(decoding, budget=budget, after=self._last_decoded)
        decodes = self._share_out(chosen, budget, most=budget)
        if decodes:
            self._last_decoded = decodes[-1][0].rank
            padded += self._static_batch.num_idle_slots(num_running=len(self._roster.running))
        portions = decodes + prefills
        plan = StepPlan(
            step=step,
            chunks=tuple([_chunk(sequence, count) for sequence, count in portions]),
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=sum([count for _, count in decodes]),
            num_padded_tokens=padded,
        )
        return plan, [sequence for sequence, _ in portions]

    def _make_room_for_decodes(self) -> None:
        """Give each decoding sequence the block that its next token needs, the most deserving first.

        Where none may be taken, the least deserving of all that run is preempted, be it the one that asks. So the most
        deserving always goes on; and what a preempted one needs to come back is more than its leaving left free, so it
        does not come back before another ends.
        """
        roster = self._roster
        block_size = roster.block_size
        self._kv.settle(num_used=roster.pool.num_used)
        preempted = []
        for sequence in tuple(roster.running):
            if sequence.status is not SequenceStatus.RUNNING:
                break  # It gave way to one before it, and so did everyone after it.
            if len(sequence.token_ids) <= len(sequence.block_table) * block_size:
                continue
            missing = roster.num_blocks_missing(sequence)
            while sequence.status is SequenceStatus.RUNNING and not self._may_grow(missing):
                preempted.append(roster.running[-1].key)
                roster.preempt(roster.running[-1])
            if sequence.status is SequenceStatus.RUNNING:
                roster.grow(sequence, missing)
        self.preempted_keys = tuple(preempted)

    def _may_grow(self, count: int) -> bool:
        roster = self._roster
        return self._kv.may_grow(count, num_used=roster.pool.num_used, alone=len(roster.running) == 1)

    def _join(self, prefilling: list[Sequence], *, budget: int, now: float) -> int:
        """Start waiting sequences and add them to `prefilling`; the padding that a static batch formed so would have.

        In order, without overtaking. A static batch forms whole, whatever part of
        its prompts the budget lets the first step compute.
        """
        roster, static = self._roster, self._tunables.mode == "static"
        oldest = roster.waiting.oldest_unstarted
        forming = not roster.running
        # A static batch that runs takes back those that it had to preempt, and nobody else.
        takes_new = oldest is not None and (forming or not static) and self.is_window_over(oldest, now)
        budget -= sum([self._prefill_need(sequence) for sequence in prefilling])
        joined: list[Sequence] = []
        while (static or budget > 0) and (sequence := roster.waiting.first) is not None:
            if not takes_new and sequence.status is not SequenceStatus.PREEMPTED:
                break
            if not self._has_place_for(sequence):
                break
            roster.start(sequence)
            sequence.first_scheduled_at = now if sequence.first_scheduled_at is None else sequence.first_scheduled_at
            budget -= self._prefill_need(sequence)
            joined.append(sequence)
        prefilling.extend(joined)
        return self._static_batch.form(joined) if static and forming else 0

    def _has_place_for(self, sequence: Sequence) -> bool:
        roster = self._roster
        if len(roster.running) >= self._tunables.max_running:
            return False
        room = self._kv.room(num_used=roster.pool.num_used, alone=not roster.running)
        return num_blocks_of(sequence.num_tokens, roster.block_size) <= room

    def _prefill_need(self, sequence: Sequence) -> int:
        return min(sequence.prefill_end - sequence.num_computed_tokens, self._tunables.max_prefill_chunk)

    def _share_out(self, sequences: list[Sequence], budget: int, *, most: int) -> list[Portion]:
        """Give each in turn what it lacks, up to `most`, while the budget lasts."""
        portions = []
        for sequence in sequences:
            count = min(len(sequence.token_ids) - sequence.num_computed_tokens, most, budget)
            if count <= 0:
                break
            portions.append((sequence, count))
            budget -= count
        return portions


def _count_uncomputed(sequences: list[Sequence]) -> int:
    return sum([len(sequence.token_ids) - sequence.num_computed_tokens for sequence in sequences])


def _chunk(sequence: Sequence, count: int) -> PlannedChunk:
    start = sequence.num_computed_tokens
    end = start + count
    return PlannedChunk(
        sequence.key,
        sequence.token_ids[start:end],
        start,
        sequence.block_table,
        end == len(sequence.token_ids),
        len(sequence.token_ids) - sequence.num_prompt_tokens,
        sequence.params,
        sequence.is_prefilling,
    )
