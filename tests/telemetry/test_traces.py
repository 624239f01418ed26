"""Requests as OpenTelemetry traces, as a collector gets them."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serving.contracts.ids import PoolName, RequestId
from serving.contracts.messages import Span
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Origin
from serving.gateway.observer import Ended
from serving.telemetry.traces import RequestTraces, TracesUnavailable, collector_provider

POOL = PoolName("chat")
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what it is sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        server: Any = self.server
        server.taken.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.taken = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ended(**changes: Any) -> Ended:
    values = {
        "request_id": RequestId("req_1"),
        "pool": POOL,
        "outcome": "finished:stop",
        "was_scheduled": True,
        "e2e_seconds": 2.0,
        "prompt_tokens": 40,
        "completion_tokens": 9,
        "cached_tokens": 16,
        "queue_seconds": 0.5,
        "ttft_seconds": 0.75,
        "itl_seconds": 0.1,
        "num_preemptions": 1,
        "num_attempts": 1,
        "engine": "engine-1",
        "origin": Origin(endpoint="chat", tenant_name="acme", key_prefix="0123456789ab"),
        "params": SamplingParams(max_tokens=64, seed=1, temperature=0.7),
        "spans": (Span("prefill", 500.0, 250.0, 24, 3), Span("decode", 750.0, 1000.0, 8, 4)),
    }
    return Ended(**{**values, **changes})


def sent(collector: Any, *requests: Ended) -> tuple[dict[str, str], list[Any]]:
    """The resource's attributes and all spans that the collector has after these requests."""
    provider = collector_provider(f"http://127.0.0.1:{collector.server_address[1]}/v1/traces", owner="web-1")
    traces = RequestTraces(provider, models={POOL: "smol"}, wall_clock=lambda: 1000.0)
    for request in requests:
        traces.ended(request)
    traces.close()
    resources = [resource for message in collector.taken for resource in message.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    return attributes_of(resources[0].resource) if resources else {}, spans


def attributes_of(thing: Any) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [value_of(each) for each in found.values] if kind == "array_value" else found

    return {each.key: value_of(each.value) for each in thing.attributes}


def test_a_request_is_a_span_with_what_it_did_below_it(collector: Any) -> None:
    resource, spans = sent(collector, ended())
    assert resource["service.name"] == "footplate"
    by_name = {span.name: span for span in spans}
    assert sorted(by_name) == ["chat smol", "decode", "prefill", "queue"]
    request = by_name.pop("chat smol")
    assert {span.parent_span_id for span in by_name.values()} == {request.span_id}
    assert {span.trace_id for span in spans} == {request.trace_id}
    seconds = {name: (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for name, span in by_name.items()}
    assert (request.start_time_unix_nano, request.end_time_unix_nano) == (998 * 10**9, 1000 * 10**9)
    assert seconds == {"queue": (998.0, 998.5), "prefill": (998.5, 998.75), "decode": (998.75, 999.75)}
    assert attributes_of(by_name["decode"]) == {"footplate.num_tokens": 8, "footplate.batch_size": 4}
    assert [(event.name, event.time_unix_nano) for event in request.events] == [("first token", 998_750_000_000)]


def test_it_bears_the_attributes_of_generative_ai_and_no_text(collector: Any) -> None:
    _, spans = sent(collector, ended())
    attributes = attributes_of(next(span for span in spans if span.name == "chat smol"))
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "smol"
    assert attributes["gen_ai.response.id"] == "req_1"
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.input_tokens"] == 40
    assert attributes["gen_ai.usage.output_tokens"] == 9
    assert attributes["gen_ai.request.max_tokens"] == 64
    assert attributes["gen_ai.request.temperature"] == 0.7
    assert attributes["gen_ai.server.time_to_first_token"] == 0.75
    assert attributes["footplate.tenant"] == "acme"
    assert attributes["footplate.num_preemptions"] == 1


def test_it_belongs_to_its_callers_trace(collector: Any) -> None:
    _, spans = sent(collector, ended(origin=Origin(endpoint="chat", traceparent=f"00-{TRACE_ID}-00f067aa0ba902b7-01")))
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert next(span for span in spans if span.name == "chat smol").parent_span_id.hex() == "00f067aa0ba902b7"


def test_what_the_caller_did_not_sample_is_left_out(collector: Any) -> None:
    _, spans = sent(collector, ended(origin=Origin(traceparent=f"00-{TRACE_ID}-00f067aa0ba902b7-00")))
    assert spans == []


@pytest.mark.parametrize("traceparent", ["nonsense", "00-zz-1-01", "é" * 60])
def test_a_trace_that_is_none_is_no_trace(collector: Any, traceparent: str) -> None:
    _, spans = sent(collector, ended(origin=Origin(traceparent=traceparent)))
    assert len(spans) == 4


@pytest.mark.parametrize("outcome", ["refused:queue_full", "failed:engine_error"])
def test_a_request_that_failed_says_so(collector: Any, outcome: str) -> None:
    bare = {"queue_seconds": None, "ttft_seconds": None, "itl_seconds": None, "params": None, "spans": ()}
    _, (span,) = sent(collector, ended(outcome=outcome, was_scheduled=False, **bare))
    assert span.status.code == 2
    assert attributes_of(span)["error.type"] == outcome.partition(":")[2]
    assert not span.events


def test_a_client_that_left_is_no_error(collector: Any) -> None:
    _, spans = sent(collector, ended(outcome="aborted"))
    assert {span.status.code for span in spans} == {0}


def test_without_the_packages_the_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracesUnavailable, match="extra 'traces'"):
        collector_provider("http://127.0.0.1:9/v1/traces", owner="web-1")
