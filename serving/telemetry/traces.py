"""Requests as OpenTelemetry traces, where somebody collects them: one span a request, and one for each thing it did.

Names and attributes are those of the semantic conventions for generative AI (OpenTelemetry, "Semantic conventions for
generative client spans", 1.3x), with what they have no word for under `footplate.`. No text is ever in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from serving.contracts.ids import EngineId, PoolName
from serving.gateway.observer import Ended

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_OPERATIONS = {"chat": "chat", "console": "chat", "completion": "text_completion", "embedding": "embeddings"}
_NANOSECONDS = 1e9


class TracesUnavailable(Exception):
    """Traces were asked for and cannot be sent; the message says what is missing."""


class _Part(NamedTuple):
    """What a request did for a while; seconds since its arrival."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Any]


def collector_provider(endpoint: str, *, owner: str) -> TracerProvider:
    """Sends to an OpenTelemetry collector over OTLP and HTTP, in the background: what it cannot take in time is dropped
    there. Raises `TracesUnavailable` where the packages for it are not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracesUnavailable(
            f"FOOTPLATE_OTLP_ENDPOINT needs the packages of the extra 'traces', which are not installed ({error.name})"
        ) from None
    resource = Resource.create({"service.name": "footplate", "service.instance.id": owner})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))
    return provider


class RequestTraces:
    """Owns the making of spans, all at a request's end; an observer, told on the gateway's event loop.

    A request that bore a `traceparent` (W3C Trace Context) belongs to that trace, and is left out where its caller did
    not sample it.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        models: Mapping[PoolName, str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("footplate")
        self._propagator = TraceContextTextMapPropagator()
        self._models = models
        self._wall_clock = wall_clock

    def rejected(self, code: str) -> None:
        """A request that no pool had did nothing that a trace could show."""

    def submitted(self, pool: PoolName) -> None:
        """All is told at the end."""

    def scheduled(self, pool: PoolName, *, queue_seconds: float, engine_id: EngineId | None = None) -> None:
        """All is told at the end."""

    def first_token(self, pool: PoolName, *, ttft_seconds: float, engine_id: EngineId | None = None) -> None:
        """All is told at the end."""

    def token_gap(self, pool: PoolName, *, itl_seconds: float, engine_id: EngineId | None = None) -> None:
        """All is told at the end."""

    def ended(self, ended: Ended) -> None:
        """Make the request's spans; they are sent by another thread."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        arrived_at = self._wall_clock() - ended.e2e_seconds
        model = self._models.get(ended.pool, "")
        span = self._tracer.start_span(
            f"{_OPERATIONS[ended.origin.endpoint]} {model}",
            context=self._propagator.extract({"traceparent": ended.origin.traceparent}),
            kind=SpanKind.SERVER,
            attributes=_attributes_of(ended, model),
            start_time=_nanoseconds(arrived_at),
        )
        outcome, _, code = ended.outcome.partition(":")
        if outcome in ("failed", "refused"):
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR, ended.outcome))
        context = set_span_in_context(span)
        for part in _parts_of(ended):
            begin, end = (_nanoseconds(arrived_at + seconds) for seconds in (part.begin, part.end))
            child = self._tracer.start_span(
                part.name, context=context, attributes=dict(part.attributes), start_time=begin
            )
            child.end(end)
        if ended.ttft_seconds is not None:
            span.add_event("first token", timestamp=_nanoseconds(arrived_at + ended.ttft_seconds))
        span.end(_nanoseconds(arrived_at + ended.e2e_seconds))

    def close(self) -> None:
        """Send what is left. Blocking, for some seconds at most."""
        self._provider.shutdown()


def _attributes_of(ended: Ended, model: str) -> dict[str, Any]:
    outcome, _, code = ended.outcome.partition(":")
    origin, params = ended.origin, ended.params
    known = {
        "gen_ai.operation.name": _OPERATIONS[origin.endpoint],
        "gen_ai.provider.name": "footplate",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": ended.request_id,
        "gen_ai.response.finish_reasons": [code] if outcome == "finished" else None,
        "gen_ai.usage.input_tokens": ended.prompt_tokens,
        "gen_ai.usage.output_tokens": ended.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": ended.cached_tokens,
        "gen_ai.request.choice.count": ended.num_choices if ended.num_choices != 1 else None,
        "gen_ai.request.max_tokens": None if params is None else params.max_tokens,
        "gen_ai.request.temperature": None if params is None else params.temperature,
        "gen_ai.request.top_p": None if params is None else params.top_p,
        "gen_ai.server.time_to_first_token": ended.ttft_seconds,
        "gen_ai.server.time_per_output_token": ended.itl_seconds,
        "footplate.queue_seconds": ended.queue_seconds,
        "footplate.pool": ended.pool,
        "footplate.tenant": origin.tenant_name or None,
        "footplate.key_prefix": origin.key_prefix or None,
        "footplate.engine": ended.engine or None,
        "footplate.outcome": ended.outcome,
        "footplate.num_preemptions": ended.num_preemptions,
        "footplate.num_attempts": ended.num_attempts,
        "footplate.tunables_version": ended.tunables_version,
    }
    return {name: value for name, value in known.items() if value is not None}


def _parts_of(ended: Ended) -> Iterator[_Part]:
    """The wait, and the engine's own account of the first choice."""
    if ended.queue_seconds is not None:
        yield _Part("queue", 0.0, min(ended.queue_seconds, ended.e2e_seconds), {})
    for span in ended.spans:
        begin = span.offset_ms / 1000
        attributes = {"footplate.num_tokens": span.num_tokens, "footplate.batch_size": span.batch_size}
        yield _Part(span.kind, begin, begin + span.duration_ms / 1000, attributes)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
