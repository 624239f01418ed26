"""Workloads for tests."""

from __future__ import annotations

from typing import Any

from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.distributions import Fixed, LogNormal
from serving.lab.workloads.workload import RequestClass, Workload


def request_class(name: str = "chat", /, **changes: Any) -> RequestClass:
    """A class of prompts of median 200 and answers of 50 tokens, but for `changes`."""
    return RequestClass(
        **{
            "name": name,
            "prompt_tokens": LogNormal(median=200, sigma=0.5, high=4000),
            "output_tokens": Fixed(50),
            **changes,
        }
    )


def workload(**changes: Any) -> Workload:
    """10 requests a second at random for 100 s, but for `changes`."""
    facts: dict[str, Any] = {
        "name": "some",
        "arrivals": Poisson(10),
        "classes": (request_class(),),
        "duration_seconds": 100.0,
    }
    return Workload(**{**facts, **changes})
