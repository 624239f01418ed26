"""`GET /metrics`: what Prometheus scrapes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence

from django.http import HttpRequest, HttpResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from serving.api.context import services_of
from serving.contracts.errors import InvalidValue

NAMES_PARAMETER = {
    "name": "names",
    "in": "query",
    "required": False,
    "description": "`vllm` adds the same measurements under vLLM's names.",
    "schema": {"type": "string", "enum": ["vllm"]},
}


async def show_metrics(request: HttpRequest) -> HttpResponse:
    """This process's counters and histograms of requests, and the state of all pools and engines, for Prometheus.

    In the text format or OpenMetrics, as `Accept` asks. Without Redis what this process counted is told all the same.
    """
    names = request.GET.get("names")
    if names not in (None, "vllm"):
        raise InvalidValue("names", names, "vllm, or left out")
    families = await services_of(request).exposition.collect(vllm_names=names == "vllm")
    # Of many pools the text is long: it is written beside the event loop.
    body, headers = await asyncio.to_thread(
        _write,
        families,
        accept=request.headers.get("Accept", ""),
        accept_encoding=request.headers.get("Accept-Encoding", ""),
    )
    return HttpResponse(body, headers=headers)


class _Collected(Collector):
    """Owns nothing: hands on what was collected before."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return self._families


def _write(families: Sequence[Metric], *, accept: str, accept_encoding: str) -> tuple[bytes, Mapping[str, str]]:
    encode, content_type = _encoder_for(accept)
    # No name of ours needs to be escaped, and the library's escaping would spoil the colon in vLLM's.
    body = encode(_Collected(families), escaping=ALLOWUTF8)
    headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
    if gzip_accepted(accept_encoding):
        return gzip.compress(body, compresslevel=1), {**headers, "Content-Encoding": "gzip"}
    return body, headers


def _encoder_for(accept: str) -> tuple[Callable[..., bytes], str]:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # what the library makes of a version that is none
        return generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return encode, content_type.partition("; escaping=")[0]
