"""Workloads that are there from the start, by name. Their lengths are published ones; their rates are a beginning, to
be scaled to what is measured of one's own server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serving.lab.workloads.arrivals import ClosedLoop, Gamma, Poisson
from serving.lab.workloads.distributions import LogNormal
from serving.lab.workloads.workload import RequestClass, SharedPrefixes, Slo, Workload

_SPLITWISE = (
    "Medians of the Azure LLM inference traces of 2023: Patel et al. 2024, 'Splitwise: Efficient Generative LLM "
    "Inference Using Phase Splitting', section 3."
)
_DISTSERVE = (
    "Mean lengths of the dataset in Zhong et al. 2024, 'DistServe: Disaggregating Prefill and Decoding for "
    "Goodput-optimized Large Language Model Serving', section 6."
)
_BURSTS = "That real arrivals come in bursts, as gamma-distributed gaps: Wang et al. 2024, 'BurstGPT'."
_OWN = "Spread, rate, shared beginnings, cancelled share and objectives are the Lab's own choice."

READY: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload(
            name="chat",
            about="Conversations: prompts that carry what was said before, answers of a paragraph, all streamed",
            source=f"{_SPLITWISE} {_BURSTS} {_OWN}",
            arrivals=Gamma(rate=0.5, cv=2.0),
            duration_seconds=300,
            warm_up_seconds=30,
            classes=(
                RequestClass(
                    name="turn",
                    prompt_tokens=LogNormal(median=1020, sigma=0.9, low=8, high=8000),
                    output_tokens=LogNormal(median=129, sigma=0.8, low=4, high=1000),
                    prefixes=SharedPrefixes(share=0.9, tokens=200, count=4),
                    cancelled_share=0.03,
                    slo=Slo(ttft_ms=2000, itl_ms=200),
                ),
            ),
        ),
        Workload(
            name="code",
            about="Completion in an editor: long prompts, a few tokens of answer, often given up",
            source=f"{_SPLITWISE} {_BURSTS} {_OWN}",
            arrivals=Gamma(rate=1.0, cv=2.0),
            duration_seconds=300,
            warm_up_seconds=30,
            classes=(
                RequestClass(
                    name="completion",
                    prompt_tokens=LogNormal(median=1500, sigma=0.7, low=50, high=8000),
                    output_tokens=LogNormal(median=13, sigma=1.0, low=1, high=300),
                    prefixes=SharedPrefixes(share=0.5, tokens=800, count=20),
                    cancelled_share=0.15,
                    slo=Slo(ttft_ms=1500, itl_ms=150),
                ),
            ),
        ),
        Workload(
            name="summarise",
            about="Documents in, a short summary out",
            source=f"{_DISTSERVE} (LongBench: 1,738 tokens in, 91 out.) {_OWN}",
            arrivals=Poisson(rate=0.3),
            duration_seconds=300,
            warm_up_seconds=30,
            classes=(
                RequestClass(
                    name="document",
                    prompt_tokens=LogNormal(median=1535, sigma=0.5, low=200, high=12_000),
                    output_tokens=LogNormal(median=80, sigma=0.5, low=16, high=400),
                    slo=Slo(ttft_ms=8000, itl_ms=300),
                ),
            ),
        ),
        Workload(
            name="rag",
            about="Questions with retrieved passages: long prompts over a few shared instructions, beside short chats",
            source=f"{_DISTSERVE} (Passages as LongBench's inputs, short chats as ShareGPT's: 755 in, 200 out.) {_OWN}",
            arrivals=Poisson(rate=0.5),
            duration_seconds=300,
            warm_up_seconds=30,
            classes=(
                RequestClass(
                    name="question",
                    share=0.6,
                    prompt_tokens=LogNormal(median=1600, sigma=0.4, low=400, high=8000),
                    output_tokens=LogNormal(median=90, sigma=0.6, low=8, high=500),
                    prefixes=SharedPrefixes(share=1.0, tokens=400, count=2),
                    slo=Slo(ttft_ms=4000, itl_ms=250),
                ),
                RequestClass(
                    name="chat",
                    share=0.4,
                    prompt_tokens=LogNormal(median=500, sigma=0.9, low=8, high=4000),
                    output_tokens=LogNormal(median=150, sigma=0.75, low=4, high=1000),
                    slo=Slo(ttft_ms=2000, itl_ms=200),
                ),
            ),
        ),
        Workload(
            name="bulk",
            about="Offline work: as much as sixteen clients that wait for nothing but their answers can get",
            source=f"{_DISTSERVE} (HumanEval: 171 tokens in, 98 out.) {_OWN}",
            arrivals=ClosedLoop(clients=16),
            duration_seconds=300,
            warm_up_seconds=30,
            classes=(
                RequestClass(
                    name="line",
                    prompt_tokens=LogNormal(median=150, sigma=0.5, low=20, high=2000),
                    output_tokens=LogNormal(median=90, sigma=0.4, low=10, high=500),
                    streaming_share=0.0,
                    slo=Slo(e2e_ms=600_000),
                ),
            ),
        ),
    )
}
"""Each is as good as any other workload, but cannot be changed: a copy can."""
