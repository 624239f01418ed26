"""Workloads that cannot be played, and workloads as JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.arrivals import ClosedLoop, Gamma, Poisson, Ramp, Steps, Trace, TraceRequest
from serving.lab.workloads.checking import MAX_TRACE_REQUESTS, check_workload
from serving.lab.workloads.codec import LARGEST_BYTES, decode_workload, workload_to_dict, workload_to_json
from serving.lab.workloads.distributions import Fixed, Histogram, LogNormal, Uniform
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import SharedPrefixes, Slo
from tests.lab.workloads.shapes import request_class, workload


def _of(**changes: Any) -> dict[str, Any]:
    return {"classes": (request_class("a"), request_class("b", **changes))}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Some thing"}, "name"),
        ({"seed": -1}, "seed"),
        ({"schema_version": 2}, "schema_version"),
        ({"about": "x" * 2001}, "about"),
        ({"duration_seconds": None}, "duration_seconds"),
        ({"duration_seconds": math.nan}, "duration_seconds"),
        ({"duration_seconds": 0.0}, "duration_seconds"),
        ({"num_requests": 0}, "num_requests"),
        ({"num_requests": 3_000_000}, "num_requests"),
        ({"warm_up_seconds": 100.0}, "warm_up_seconds"),
        ({"arrivals": Poisson(0)}, "arrivals.rate"),
        ({"arrivals": Poisson(math.inf)}, "arrivals.rate"),
        ({"arrivals": Gamma(1, 0)}, "arrivals.cv"),
        ({"arrivals": ClosedLoop(0)}, "arrivals.clients"),
        ({"arrivals": ClosedLoop(1, -1)}, "arrivals.think_seconds"),
        ({"arrivals": Ramp(0, 0)}, "arrivals.end_rate"),
        ({"arrivals": Ramp(1, 2), "duration_seconds": None, "num_requests": 5}, "duration_seconds"),
        ({"arrivals": Steps(())}, "arrivals.rates"),
        ({"arrivals": Steps((1, -1))}, "arrivals.rates[1]"),
        ({"arrivals": Steps((0, 0))}, "arrivals.rates"),
        ({"arrivals": Trace(())}, "arrivals.requests"),
        ({"arrivals": Trace((TraceRequest(0, 1, 1),), speed=0)}, "arrivals.speed"),
        ({"arrivals": Trace((TraceRequest(0, 0, 1),))}, "arrivals.requests[0].prompt_tokens"),
        (
            {"arrivals": Trace((TraceRequest(2, 1, 1), TraceRequest(1, 1, 1)))},
            "arrivals.requests[1].offset_seconds",
        ),
        ({"arrivals": Trace((TraceRequest(0, 1, 1, "z"),))}, "arrivals.requests[0].request_class"),
        ({"classes": ()}, "classes"),
        ({"classes": (request_class(), request_class())}, "classes"),
        ({"classes": tuple(request_class(f"c{number}") for number in range(21))}, "classes"),
        ({"classes": (request_class(share=0),)}, "classes"),
        (_of(name="B b"), "classes[1].name"),
        (_of(share=-1), "classes[1].share"),
        (_of(share=math.nan), "classes[1].share"),
        (_of(priority=1000), "classes[1].priority"),
        (_of(streaming_share=1.1), "classes[1].streaming_share"),
        (_of(cancelled_share=-0.1), "classes[1].cancelled_share"),
        (_of(tenant="x" * 101), "classes[1].tenant"),
        (_of(prompt_tokens=Fixed(0)), "classes[1].prompt_tokens.tokens"),
        (_of(prompt_tokens=Uniform(5, 4)), "classes[1].prompt_tokens.high"),
        (_of(prompt_tokens=LogNormal(10, -1)), "classes[1].prompt_tokens.sigma"),
        (_of(output_tokens=LogNormal(math.nan, 1)), "classes[1].output_tokens.median"),
        (_of(output_tokens=Histogram((1, 2), ())), "classes[1].output_tokens.counts"),
        (_of(output_tokens=Histogram((1, 2), (1, 1))), "classes[1].output_tokens.edges"),
        (_of(output_tokens=Histogram((1, 5, 5), (1, 1))), "classes[1].output_tokens.edges[2]"),
        (_of(output_tokens=Histogram((1, 5, 9), (1, -1))), "classes[1].output_tokens.counts[1]"),
        (_of(output_tokens=Histogram((1, 5), (0,))), "classes[1].output_tokens.counts"),
        (_of(prefixes=SharedPrefixes(2, 10)), "classes[1].prefixes.share"),
        (_of(prefixes=SharedPrefixes(1, 0)), "classes[1].prefixes.tokens"),
        (_of(prefixes=SharedPrefixes(1, 1, 0)), "classes[1].prefixes.count"),
        (_of(slo=Slo(itl_ms=0)), "classes[1].slo.itl_ms"),
    ],
)
def test_names_the_field_that_cannot_be(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_workload(workload(**changes))
    assert caught.value.field == field
    assert caught.value.bounds


@pytest.mark.parametrize("name", READY)
def test_ready_ones_can_be_played_and_name_their_source(name: str) -> None:
    check_workload(READY[name])
    assert READY[name].name == name
    assert READY[name].source


@pytest.mark.parametrize("name", READY)
def test_a_workload_comes_back_from_json_as_it_was(name: str) -> None:
    assert decode_workload(workload_to_json(READY[name])) == READY[name]
    assert decode_workload(workload_to_dict(READY[name])) == READY[name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"name": "a"}',
        msgspec.json.encode({**workload_to_dict(workload()), "colour": "red"}),
        msgspec.json.encode({**workload_to_dict(workload()), "arrivals": {"kind": "never"}}),
        msgspec.json.encode({**workload_to_dict(workload()), "schema_version": 9}),
        b" " * (LARGEST_BYTES + 1),
    ],
    ids=("empty", "cut off", "a list", "no text", "deep", "too little", "unknown", "kind", "version", "large"),
)
def test_refuses_json_that_is_no_workload(content: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode_workload(content)


def test_a_trace_is_exported_so_short_that_the_longest_can_be_imported_again() -> None:
    count = MAX_TRACE_REQUESTS // 10
    requests = tuple(TraceRequest(number + 0.123456, 1234, 567, "a-tenants-name") for number in range(count))
    traced = workload(arrivals=Trace(requests), classes=(request_class("a-tenants-name"),), duration_seconds=None)
    exported = workload_to_json(traced)
    assert 10 * len(exported) < LARGEST_BYTES
    assert decode_workload(exported) == traced
