"""A step's work, a request's tokens, and the arithmetic of steps that repeat. Pure functions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

from serving.engine.plan import StepPlan
from serving.lab.costs.model import StepWork
from serving.lab.workloads.workload import PlannedRequest

_FIRST_OWN_TOKEN, _FIRST_PREFIX_TOKEN = 1 << 60, 1 << 20


def steps_before(horizon: float, first: float, growth: float, *, most: int) -> int:
    """How many steps begin before `horizon` seconds are over, `most` at most, where the first takes `first` seconds and
    each of the others `growth` more than the one before."""
    if horizon <= 0:
        return 0

    def begins(number: int) -> float:
        return number * first + growth * number * (number - 1) / 2

    slope = first - growth / 2
    root = (math.sqrt(slope * slope + 2 * growth * horizon) - slope) / growth if growth > 0 else horizon / first
    count = min(most, max(1, math.floor(root) + 1))
    # The root may miss a step by rounding.
    while count > 1 and begins(count - 1) >= horizon:
        count -= 1
    while count < most and begins(count) < horizon:
        count += 1
    return count


def work_of(plan: StepPlan) -> StepWork:
    """What a planned step computes."""
    num_context, num_positions = plan.count_positions()
    return StepWork(
        num_prefill_tokens=plan.num_prefill_tokens,
        num_prefill_positions=num_positions,
        num_decoding=sum([not chunk.is_prefill for chunk in plan.chunks]),
        num_context_tokens=num_context,
        num_padded_tokens=plan.num_padded_tokens,
    )


def prompt_of(planned: PlannedRequest) -> list[int]:
    """Tokens that are alike where the workload says so, and nowhere else: a number for a shared text, and one for the
    request."""
    own = _FIRST_OWN_TOKEN + planned.index
    if planned.prefix is None:
        return [own] * planned.num_prompt_tokens
    # Classes do not share their texts.
    shared = _FIRST_PREFIX_TOKEN + zlib.crc32(planned.request_class.encode()) * 2**4 + planned.prefix * 2**37
    num_own = planned.num_prompt_tokens - planned.num_prefix_tokens
    return [shared] * planned.num_prefix_tokens + [own] * num_own


def spread(began: float, ended: float, count: int) -> Iterator[tuple[float, int]]:
    """So many events, evenly between two moments, as whole numbers of them for each second that they touch."""
    length = ended - began
    if count <= 0 or math.floor(began) == math.floor(ended) or length <= 0:
        yield ended, max(0, count)
        return
    done = 0
    for second in range(math.floor(began), math.floor(ended) + 1):
        until = min(ended, second + 1.0)
        reached = round(count * (until - began) / length)
        yield second, reached - done
        done = reached
