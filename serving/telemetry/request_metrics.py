"""What one web process saw of its requests, as Prometheus counts: totals that only grow, and histograms.

Every process has its own: summed over processes they are the whole, and a percentile is `histogram_quantile` over that
sum, never one of percentiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric

from serving.contracts.ids import EngineId, PoolName
from serving.gateway.observer import Ended

QUEUE, TTFT = "footplate_request_queue_seconds", "footplate_request_ttft_seconds"
ITL, E2E = "footplate_request_itl_seconds", "footplate_request_e2e_seconds"
PROMPT_TOKENS, GENERATED_TOKENS = "footplate_request_prompt_tokens", "footplate_request_generated_tokens"
ENDED = "footplate_requests_ended"

_POOL = ("pool", "model")
_MAX_CODES = 64
"""Far more codes than there are: a fault that made one of each request would still make no series of each."""
_FROM_THE_START = (("finished", "stop"), ("finished", "length"), ("aborted", ""))
"""Ends that are told of before the first: a rate over an hour would else miss what came with the series itself."""

# The objectives' defaults (10 s, 200 ms) are bounds, so that the share that met them needs no interpolation.
_QUEUE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TTFT_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_ITL_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10),
)
_E2E_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800)


class RequestMetrics:
    """Owns the counters and histograms of this process's requests; told and read on the gateway's event loop.

    `models` are the models' names by pool. Labels are pools, models, outcomes and codes of our own: few, and none of a
    client's making. At every reading submitted = ended + in flight, of each pool.
    """

    def __init__(self, models: Mapping[PoolName, str]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        submitted = Counter(
            "footplate_requests_submitted",
            "Requests that came to a pool's door, refused ones included.",
            _POOL,
            registry=registry,
        )
        in_flight = Gauge(
            "footplate_requests_in_flight",
            "Requests of this process that have not ended, by state: waiting or running.",
            (*_POOL, "state"),
            registry=registry,
        )
        self._ended = Counter(
            ENDED,
            "Requests that ended, by outcome (finished, aborted, refused, failed) and code: why it finished, was "
            "refused or failed.",
            (*_POOL, "outcome", "code"),
            registry=registry,
        )
        self._rejections = Counter(
            "footplate_rejections",
            "Requests that were refused before any pool had them, by the API's code.",
            ("code",),
            registry=registry,
        )
        tokens = {
            name: Counter(name, f"{what} tokens of requests that ended.", _POOL, registry=registry)
            for name, what in ((PROMPT_TOKENS, "Prompt"), (GENERATED_TOKENS, "Generated"))
        }
        intervals = {
            name: Histogram(name, what, _POOL, buckets=bounds, registry=registry)
            for name, what, bounds in (
                (QUEUE, "From a request's arrival to its first scheduling.", _QUEUE_SECONDS),
                (TTFT, "From a request's arrival to its first token.", _TTFT_SECONDS),
                (ITL, "Between two tokens of one stream.", _ITL_SECONDS),
                (E2E, "From a request's arrival to its last token, of those that finished.", _E2E_SECONDS),
            )
        }
        self._labels = {pool: (pool, model) for pool, model in models.items()}
        self._submitted = {pool: submitted.labels(*labels) for pool, labels in self._labels.items()}
        self._waiting = {pool: in_flight.labels(*labels, "waiting") for pool, labels in self._labels.items()}
        self._running = {pool: in_flight.labels(*labels, "running") for pool, labels in self._labels.items()}
        self._tokens = {
            pool: (tokens[PROMPT_TOKENS].labels(*labels), tokens[GENERATED_TOKENS].labels(*labels))
            for pool, labels in self._labels.items()
        }
        self._intervals = {
            name: {pool: histogram.labels(*labels) for pool, labels in self._labels.items()}
            for name, histogram in intervals.items()
        }
        self._codes = {code for _, code in _FROM_THE_START}
        for labels in self._labels.values():
            for outcome, code in _FROM_THE_START:
                self._ended.labels(*labels, outcome, code)

    def collect(self) -> list[Metric]:
        """All of it as it is now, and this process's own memory, time and open files."""
        return list(self._registry.collect())

    def rejected(self, code: str) -> None:
        """A request was refused before any pool had it."""
        self._rejections.labels(self._bounded(code)).inc()

    def submitted(self, pool: PoolName) -> None:
        """A request was let in and now waits."""
        self._submitted[pool].inc()
        self._waiting[pool].inc()

    def scheduled(self, pool: PoolName, *, queue_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request was first scheduled."""
        self._waiting[pool].dec()
        self._running[pool].inc()
        self._intervals[QUEUE][pool].observe(queue_seconds)

    def first_token(self, pool: PoolName, *, ttft_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request's first token is on its way."""
        self._intervals[TTFT][pool].observe(ttft_seconds)

    def token_gap(self, pool: PoolName, *, itl_seconds: float, engine_id: EngineId | None = None) -> None:
        """A later token is on its way."""
        self._intervals[ITL][pool].observe(itl_seconds)

    def ended(self, ended: Ended) -> None:
        """A request ended; its whole time counts where it came to its own end."""
        pool = ended.pool
        kind, _, code = ended.outcome.partition(":")
        (self._running if ended.was_scheduled else self._waiting)[pool].dec()
        self._ended.labels(*self._labels[pool], kind, self._bounded(code)).inc()
        prompt, generated = self._tokens[pool]
        prompt.inc(ended.prompt_tokens)
        generated.inc(ended.completion_tokens)
        if ended.has_finished:
            self._intervals[E2E][pool].observe(ended.e2e_seconds)

    def _bounded(self, code: str) -> str:
        if code not in self._codes and len(self._codes) >= _MAX_CODES:
            return "other"
        self._codes.add(code)
        return code
