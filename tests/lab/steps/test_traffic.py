"""Whether traffic is still what a workload was measured from: pure."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from serving.lab.steps.traffic import LEAST_REQUESTS, hold_against
from serving.lab.workloads.distributions import Fixed, LogNormal, Uniform
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import Workload
from tests.lab.workloads.shapes import request_class, workload

TWO = workload(
    num_requests=2000,
    duration_seconds=None,
    classes=(
        request_class("short", share=3, prompt_tokens=LogNormal(median=100, sigma=0.4), output_tokens=Uniform(10, 40)),
        request_class("long", share=1, prompt_tokens=Fixed(3000), output_tokens=Fixed(200)),
    ),
)


def drawn(played: Workload) -> tuple[list[int], list[int]]:
    planned = list(plan_requests(played))
    return [each.num_prompt_tokens for each in planned], [each.num_output_tokens for each in planned]


def test_requests_of_the_workload_itself_are_within_the_bound() -> None:
    prompts, answers = drawn(TWO)
    found = hold_against(TWO.classes, prompts=prompts, answers=answers, num_requests=2000)
    assert found.prompts is not None
    assert found.answers is not None
    assert max(found.prompts, found.answers) < found.bound == 0.1


def test_a_class_that_grew_moves_the_lengths_by_as_much() -> None:
    long, short = TWO.classes[1], TWO.classes[0]
    moved = msgspec.structs.replace(
        TWO, classes=(msgspec.structs.replace(short, share=1), msgspec.structs.replace(long, share=1))
    )
    prompts, answers = drawn(moved)
    found = hold_against(TWO.classes, prompts=prompts, answers=answers, num_requests=2000)
    assert found.prompts == pytest.approx(0.25, abs=0.04)
    assert found.answers == pytest.approx(0.25, abs=0.04)


def test_lengths_that_are_all_one_and_the_same_are_as_far_as_they_are() -> None:
    assert hold_against(TWO.classes, prompts=[3000] * 50, answers=[], num_requests=50).prompts == pytest.approx(
        0.75, abs=0.01
    )


def test_few_are_not_compared_and_of_some_the_bound_is_wide() -> None:
    few = hold_against(TWO.classes, prompts=[7] * (LEAST_REQUESTS - 1), answers=[], num_requests=29)
    assert (few.prompts, few.answers) == (None, None)
    some = hold_against(TWO.classes, prompts=[7] * LEAST_REQUESTS, answers=[7] * 900, num_requests=900)
    assert some.bound == pytest.approx(1.36 / np.sqrt(LEAST_REQUESTS))
    assert some.prompts == pytest.approx(1.0, abs=0.01)
