"""Steps that repeat: how many there are while nothing comes, and what they amount to, without planning each."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from serving.contracts.tunables import Tunables
from serving.engine.roster import Roster
from serving.engine.sequence import Sequence
from serving.engine.step_admission import KvLimits, num_blocks_of


def count_steady_steps(roster: Roster, tunables: Tunables, kv: KvLimits, *, most: int) -> int:
    """How many of the next steps, `most` at most, are decodes of one token by each that runs, in which nobody joins,
    ends or gives way, whenever they are, if nothing comes and nobody is refused for waiting. 0 where the next step is
    none. Mutates nothing.

    None but those are counted in which waiting sequences can do nothing else but wait: since all places are taken, or
    a static batch runs and took nobody back.
    """
    running = roster.running
    if not running or tunables.speculation == "on" or len(running) > tunables.max_batch_tokens:
        return 0
    waiting = roster.waiting
    is_closed = tunables.mode == "static" and not waiting.num_preempted
    if waiting and not is_closed and len(running) < tunables.max_running:
        return 0
    if not all(_decodes_one(sequence) for sequence in running):
        return 0
    # The step with which one ends is none of them.
    left = min([s.params.max_tokens - len(s.token_ids) + s.num_prompt_tokens for s in running]) - 1
    return _count_with_room(roster, kv, min(most, left))


def pass_steady_steps(roster: Roster, count: int, *, token_id: int, began: float) -> None:
    """Bring the books to where they are after `count` steps, which `count_steady_steps` allows, each of which chose
    `token_id` for everyone; the first began at `began`, in seconds of the scheduler's clock."""
    block_size, batch_size = roster.block_size, len(roster.running)
    for sequence in roster.running:
        position = len(sequence.token_ids) - 1
        missing = num_blocks_of(position + count, block_size) - len(sequence.block_table)
        if missing > 0:
            roster.grow(sequence, missing)
        sequence.token_ids.extend([token_id] * count)
        sequence.num_computed_tokens = sequence.num_planned_tokens = position + count
        if position + count > sequence.spans.run_until:
            sequence.spans.begin_run(began, position=position, batch_size=batch_size)
        if sequence.num_computed_tokens >= sequence.next_block_end:
            roster.note_full_blocks(sequence)


def _decodes_one(sequence: Sequence) -> bool:
    num_tokens = len(sequence.token_ids)
    is_decoding = sequence.num_planned_tokens >= sequence.prefill_end and sequence.num_planned_tokens == num_tokens - 1
    return is_decoding and not sequence.is_bound_to_host


def _count_with_room(roster: Roster, kv: KvLimits, most: int) -> int:
    """How many steps, `most` at most, find the blocks that they need without a preemption."""
    if most <= 0:
        return 0
    room = kv.room_to_grow(num_used=roster.pool.num_used, alone=len(roster.running) == 1)
    contexts = [(len(sequence.token_ids) - 1, len(sequence.block_table)) for sequence in roster.running]
    block_size = roster.block_size
    if _num_blocks(contexts, most, block_size) <= room:
        return most
    fewest, too_many = 0, most
    while too_many - fewest > 1:
        middle = (fewest + too_many) // 2
        if _num_blocks(contexts, middle, block_size) <= room:
            fewest = middle
        else:
            too_many = middle
    return fewest


def _num_blocks(contexts: Seq[tuple[int, int]], count: int, block_size: int) -> int:
    """Blocks that so many steps take; `contexts` are the positions that are computed, and the blocks that are held."""
    return sum([max(0, -(-(position + count) // block_size) - held) for position, held in contexts])
