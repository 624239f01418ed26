"""Which of the waiting start in a step."""

from __future__ import annotations

from serving.contracts.tunables import Tunables
from serving.engine.long_lane import gives_way, is_long_prefill
from serving.engine.order import Order
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence
from serving.engine.step_admission import KvLimits, is_company_complete, num_blocks_of, window_ends_at
from serving.engine.token_budget import most_prefill


def is_window_over(roster: Roster, tunables: Tunables, kv: KvLimits, *, oldest: Sequence, now: float) -> bool:
    """Whether the unstarted need not wait for company any longer, `oldest` being the one that waits longest."""
    if now >= window_ends_at(oldest, tunables):
        return True
    running = roster.running
    num_long = sum([s.is_prefilling and is_long_prefill(s, tunables.long_prompt_tokens) for s in running])
    most_long = len(roster.waiting) if tunables.mode == "static" else max(0, tunables.max_long_prefills - num_long)
    return is_company_complete(
        roster.needs_of(roster.waiting.company(most_long=most_long), share_prompts=tunables.mode == "continuous"),
        tunables,
        num_running=len(running),
        room_blocks=kv.room(num_used=roster.pool.num_used, alone=not running),
    )


class Joining:
    """Owns one step's admission: places, memory, prefill budget and long lane, as they fill; not to be used after it.

    In order, and nobody overtakes, but for three: a choice that waits for a sibling to compute their prompt; a long
    prompt while the long lane is full; and a long prompt that finds no memory, until it has waited for long. So what
    the first in order lacks can only grow, and it starts at last. A static batch forms whole, whatever part of its
    prompts the budget lets the first step compute: nobody could overtake, so it has no lanes and waits for no sibling.
    """

    def __init__(
        self, roster: Roster, tunables: Tunables, kv: KvLimits, order: Order, *, budget: int, least_long: int
    ) -> None:
        self._roster = roster
        self._tunables = tunables
        self._kv = kv
        self._order = order
        self._is_static = tunables.mode == "static"
        self._budget = budget
        self._least_long = least_long
        self._num_long = 0
        self._long_need = 0
        self._short_need = 0

    def join(self, prefilling: list[Sequence], now: float) -> list[Sequence]:
        """Start who may, beside those in prefill; who did, in that order."""
        roster = self._roster
        if not roster.waiting or len(roster.running) >= self._tunables.max_running:
            return []
        takes_new = self._takes_new(now)
        if not takes_new and not roster.waiting.num_preempted:
            return []
        self._order.promise(prefilling)
        for begun in prefilling:
            self._count(begun)
        joined: list[Sequence] = []
        candidates = roster.waiting.candidates(with_unstarted=takes_new)
        while len(roster.running) < self._tunables.max_running and (sequence := candidates.next()) is not None:
            is_long = not self._is_static and sequence.is_long
            if is_long and self._is_long_lane_full():
                candidates.close_long_lane()
            elif not self._is_static and roster.is_sibling_prefilling(sequence):
                candidates.pass_over(sequence)
            elif not self._has_room_for(sequence):
                if not is_long or not gives_way(sequence, now):
                    break
                candidates.close_long_lane()
            elif not self._is_static and self._budget_left(is_long=is_long) <= 0:
                break
            else:
                self._start(sequence, now)
                joined.append(sequence)
        return joined

    def _start(self, sequence: Sequence, now: float) -> None:
        self._roster.start(sequence)
        sequence.prefill_start = sequence.num_computed_tokens
        sequence.first_scheduled_at = now if sequence.first_scheduled_at is None else sequence.first_scheduled_at
        self._order.admit(sequence)
        self._count(sequence)

    def _count(self, sequence: Sequence) -> None:
        """Take what this one will compute in the step from what is left for others."""
        need = most_prefill(sequence, self._tunables)
        if is_long_prefill(sequence, self._tunables.long_prompt_tokens):
            self._num_long += 1
            self._long_need += need
        else:
            self._short_need += need

    def _budget_left(self, *, is_long: bool) -> int:
        """Tokens that one more could compute: short ones go first, but for the least that long ones are to have."""
        if is_long:
            return max(self._least_long, self._budget - self._short_need) - self._long_need
        return self._budget - self._short_need - min(self._least_long, self._long_need)

    def _is_long_lane_full(self) -> bool:
        """Of prompts, or since those in it use up what long ones have of the budget."""
        return self._num_long >= self._tunables.max_long_prefills or self._budget_left(is_long=True) <= 0

    def _has_room_for(self, sequence: Sequence) -> bool:
        roster = self._roster
        room = self._kv.room(num_used=roster.pool.num_used, alone=not roster.running)
        # The cache is asked only where it matters.
        return (
            num_blocks_of(sequence.num_tokens, roster.block_size) <= room
            or roster.num_blocks_to_start(sequence) <= room
        )

    def _takes_new(self, now: float) -> bool:
        """Whether those may start that never ran. A static batch that runs takes back who gave way, and nobody else."""
        oldest = self._roster.waiting.oldest_unstarted
        if oldest is None or (self._is_static and self._roster.running):
            return False
        return is_window_over(self._roster, self._tunables, self._kv, oldest=oldest, now=now)
