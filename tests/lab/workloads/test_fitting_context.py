"""Workloads that are made to fit a model's context."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.arrivals import Trace, TraceRequest
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.distributions import Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.fitting_context import clippings, fitted_to
from serving.lab.workloads.ready import READY
from tests.lab.workloads.shapes import request_class, workload


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize("context", [8, 512, 2048])
def test_no_request_of_a_ready_workload_is_longer_than_the_context(name: str, context: int) -> None:
    fitted = fitted_to(READY[name], max_context_tokens=context)
    check_workload(fitted)
    for _, each in zip(range(300), plan_requests(fitted), strict=False):
        assert each.num_prompt_tokens + each.num_output_tokens <= context


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(
        [Fixed(900), Uniform(10, 3000), Uniform(2500, 3000), LogNormal(700, 1.0), Histogram((1, 100, 5000), (3, 4))]
    ),
    st.sampled_from([Fixed(3), Fixed(5000), Uniform(1, 300), LogNormal(400, 0.7), Histogram((3000, 4000), (1,))]),
    st.integers(8, 6000),
)
def test_any_lengths_fit_and_can_be_played(prompt: Lengths, output: Lengths, context: int) -> None:
    given_one = workload(classes=(request_class(prompt_tokens=prompt, output_tokens=output),), num_requests=200)
    fitted = fitted_to(given_one, max_context_tokens=context)
    check_workload(fitted)
    assert max(each.num_prompt_tokens + each.num_output_tokens for each in plan_requests(fitted)) <= context


def test_what_fits_stays_as_it_is_and_nothing_is_told() -> None:
    fitting = workload()
    assert fitted_to(fitting, max_context_tokens=8192) == fitting
    assert clippings(fitting, max_context_tokens=8192) == ()


def test_says_which_share_is_cut() -> None:
    cut = workload(classes=(request_class(prompt_tokens=Uniform(1, 1000), output_tokens=Fixed(100)),))
    assert clippings(cut, max_context_tokens=600) == ("50.0% of the prompts of class chat are cut to 500 tokens",)


def test_counts_the_traced_requests_that_are_cut() -> None:
    trace = Trace((TraceRequest(0, 90, 10), TraceRequest(1, 100, 10)), speed=2.0)
    cut = workload(arrivals=trace)
    fitted = fitted_to(cut, max_context_tokens=100).arrivals
    assert fitted == Trace((TraceRequest(0, 90, 10), TraceRequest(1, 90, 10)), speed=2.0)
    assert clippings(cut, max_context_tokens=100) == ("1 of 2 traced requests are cut to 100 tokens",)


def test_refuses_a_context_in_which_nothing_fits() -> None:
    with pytest.raises(InvalidValue, match="max_context_tokens must be at least 8"):
        fitted_to(workload(), max_context_tokens=7)
