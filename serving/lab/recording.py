"""What a run measures while it goes on, be it played or simulated."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from serving.lab.gaps import DurationCounts, percentiles_of
from serving.lab.summaries import Figures, Moment, Outcome, RunSummary
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.workload import Slo, Workload

_MOST_MOMENTS = 300
_DELAYED_SECONDS = 1.0
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)

COORDINATED_OMISSION = (
    "Arrivals never waited for answers, and latency counts from when a request was due: a server that falls behind "
    "cannot hide it."
)
CLOSED_LOOP = (
    "Clients waited for their answers: a slow server was asked less, and latency shows less than open arrivals do."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What a server told of itself at one moment: sequences, shares of 1, bytes; None is what it did not tell.
    `preemptions`, `padded_tokens` and `idle_slot_steps` count since it started. `permits_requests` and
    `permits_tokens` are what its door counts as waiting, which the bounds of the queue bound."""

    num_running: float | None = None
    num_waiting: float | None = None
    kv_used_ratio: float | None = None
    busy_ratio: float | None = None
    accelerator_ratio: float | None = None
    host_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    preemptions: int | None = None
    padded_tokens: int | None = None
    idle_slot_steps: int | None = None
    permits_requests: int | None = None
    permits_tokens: int | None = None


def measured_until(workload: Workload, *, ended_at: float, num_requests: int) -> float:
    """When a run is over, in seconds since its beginning: with its last answer, at `ended_at`, or with its duration
    where that is later, since nobody may have asked at its end; not where its number of requests ended it."""
    is_by_count = workload.num_requests is not None and num_requests >= workload.num_requests
    if workload.duration_seconds is None or is_by_count:
        return ended_at
    return max(ended_at, workload.duration_seconds)


@dataclasses.dataclass(slots=True)
class _Second:
    """One second of a run."""

    num_arrived: int = 0
    prompt_tokens: float = 0
    output_tokens: float = 0
    gaps: DurationCounts | None = None
    gauges: list[Gauges] = dataclasses.field(default_factory=list)


class Recorder:
    """Owns all that a run has measured so far; for one thread.

    Requests are kept, each a value; the gaps between their tokens are counted and not kept. Times are seconds since the
    run's beginning.
    """

    def __init__(self, workload: Workload, *, is_simulated: bool = False) -> None:
        self.workload = workload
        self.outcomes: list[Outcome] = []
        """The requests that ended, in that order."""
        self._is_simulated = is_simulated
        self._gaps = {each.name: DurationCounts() for each in workload.classes}
        self._seconds: dict[int, _Second] = {}
        self._first_failure = ""

    def note_arrival(self, *, at_seconds: float) -> None:
        """A request was sent, or came."""
        self._second(at_seconds).num_arrived += 1

    def note_tokens(self, *, at_seconds: float, count: float, prompt_tokens: float = 0) -> None:
        """Tokens came: `count` of answers, or `prompt_tokens` of a prompt were computed."""
        second = self._second(at_seconds)
        second.output_tokens += count
        second.prompt_tokens += prompt_tokens

    def note_gap(
        self, request_class: str, *, seconds: float, at_seconds: float, count: int = 1, is_warm_up: bool = False
    ) -> None:
        """The time between two tokens of a stream, so many times in a row, of which the last ended at `at_seconds`."""
        second = self._second(at_seconds)
        if second.gaps is None:
            second.gaps = DurationCounts()
        second.gaps.add(seconds, count=count)
        if not is_warm_up:
            self._gaps[request_class].add(seconds, count=count)

    def note_gauges(self, at_seconds: float, gauges: Gauges) -> None:
        """What the server told of itself."""
        self._second(at_seconds).gauges.append(gauges)

    def note_failure(self, words: str) -> None:
        """What a failed request was told; the first is kept."""
        self._first_failure = self._first_failure or words[:500]

    def end(self, outcome: Outcome) -> None:
        """A request ended."""
        self.outcomes.append(outcome)

    def set_queue_seconds(self, queue_seconds: Mapping[int, float]) -> None:
        """Put the server's own account of waits, by a request's index, in place of what is known."""
        self.outcomes = [
            msgspec.structs.replace(outcome, queue_seconds=queue_seconds[outcome.index])
            if outcome.index in queue_seconds
            else outcome
            for outcome in self.outcomes
        ]

    def merge(self, other: Recorder) -> None:
        """Take in what another has measured of a part of the same workload, at the same time elsewhere."""
        self.outcomes.extend(other.outcomes)
        self._first_failure = self._first_failure or other._first_failure
        for name, gaps in other._gaps.items():
            self._gaps[name].merge(gaps)
        for number, theirs in other._seconds.items():
            second = self._seconds.setdefault(number, _Second())
            second.num_arrived += theirs.num_arrived
            second.prompt_tokens += theirs.prompt_tokens
            second.output_tokens += theirs.output_tokens
            second.gauges.extend(theirs.gauges)
            if theirs.gaps is not None:
                second.gaps = second.gaps or DurationCounts()
                second.gaps.merge(theirs.gaps)

    def summary(self, *, wall_seconds: float, notes: Iterable[str] = ()) -> RunSummary:
        """What the run has come to so far. `wall_seconds` is from its beginning to now, or to its end."""
        warm_up = self.workload.warm_up_seconds
        measured_seconds = max(1e-9, wall_seconds - warm_up)
        counted = [outcome for outcome in self.outcomes if not outcome.is_warm_up]
        slos = {each.name: each.slo for each in self.workload.classes}
        is_open = not isinstance(self.workload.arrivals, ClosedLoop)
        classes = {
            each.name: self._figures(
                [outcome for outcome in counted if outcome.request_class == each.name],
                [each.name],
                slos,
                measured_seconds,
            )
            for each in self.workload.classes
        }
        gauges = [(number, each) for number, second in self._seconds.items() for each in second.gauges]
        measured = [each for number, each in gauges if number >= math.floor(warm_up)]
        return RunSummary(
            workload=self.workload.name,
            is_simulated=self._is_simulated,
            is_open_loop=is_open,
            warm_up_seconds=warm_up,
            measured_seconds=round(measured_seconds, 3),
            num_warm_up_requests=len(self.outcomes) - len(counted),
            total=self._figures(counted, list(classes), slos, measured_seconds),
            classes=classes,
            moments=self._moments(slos, wall_seconds),
            refused_by_code=_by_code(counted, "refused"),
            failed_by_code=_by_code(counted, "failed"),
            first_failure=self._first_failure,
            peak_host_memory_bytes=_largest([each.host_memory_bytes for each in measured]),
            peak_device_memory_bytes=_largest([each.device_memory_bytes for each in measured]),
            mean_busy_ratio=_mean([each.busy_ratio for each in measured]),
            mean_accelerator_ratio=_mean([each.accelerator_ratio for each in measured]),
            preemptions=_growth([each.preemptions for each in measured]),
            padded_tokens=_growth([each.padded_tokens for each in measured]),
            idle_slot_steps=_growth([each.idle_slot_steps for each in measured]),
            peak_permits_requests=_largest([each.permits_requests for _, each in gauges]),
            peak_permits_tokens=_largest([each.permits_tokens for _, each in gauges]),
            peak_kv_used_ratio=max(_known(each.kv_used_ratio for _, each in gauges), default=None),
            sent_late_p99_ms=_p99_ms(counted) if is_open and not self._is_simulated else None,
            notes=(COORDINATED_OMISSION if is_open else CLOSED_LOOP, *notes),
        )

    def _figures(
        self, outcomes: Sequence[Outcome], classes: Sequence[str], slos: Mapping[str, Slo], seconds: float
    ) -> Figures:
        endings = Counter(outcome.ending for outcome in outcomes)
        answered = [outcome for outcome in outcomes if outcome.ending in ("finished", "cancelled")]
        num_good = sum(is_good(outcome, slos[outcome.request_class]) for outcome in outcomes)
        num_judged = len(outcomes) - endings["cancelled"]
        gaps = DurationCounts()
        for name in classes:
            gaps.merge(self._gaps[name])
        return Figures(
            num_requests=len(outcomes),
            num_finished=endings["finished"],
            num_refused=endings["refused"],
            num_failed=endings["failed"],
            num_cancelled=endings["cancelled"],
            num_delayed=sum((outcome.queue_seconds or 0) > _DELAYED_SECONDS for outcome in answered),
            requests_per_second=round(endings["finished"] / seconds, 4),
            prompt_tokens_per_second=round(sum(outcome.num_prompt_tokens for outcome in answered) / seconds, 2),
            output_tokens_per_second=round(sum(outcome.num_output_tokens for outcome in answered) / seconds, 2),
            goodput_per_second=round(num_good / seconds, 4),
            slo_met_ratio=round(num_good / num_judged, 4) if num_judged else None,
            queue_ms=percentiles_of(_known(outcome.queue_seconds for outcome in answered)),
            ttft_ms=percentiles_of(_known(outcome.ttft_seconds for outcome in answered)),
            itl_ms=gaps.percentiles(),
            tpot_ms=percentiles_of(_known(outcome.tpot_seconds for outcome in answered)),
            e2e_ms=percentiles_of(_known(outcome.e2e_seconds for outcome in answered if outcome.ending == "finished")),
        )

    def _second(self, at_seconds: float) -> _Second:
        number = max(0, math.floor(at_seconds))
        second = self._seconds.get(number)
        if second is None:
            second = self._seconds[number] = _Second()
        return second

    def _moments(self, slos: Mapping[str, Slo], wall_seconds: float) -> tuple[Moment, ...]:
        last = max([wall_seconds, *self._seconds, *(outcome.end_seconds for outcome in self.outcomes)])
        width = next((each for each in _WIDTHS if last / each <= _MOST_MOMENTS), _WIDTHS[-1])
        num_moments = max(1, math.ceil(last / width))
        ended: list[list[Outcome]] = [[] for _ in range(num_moments)]
        for outcome in self.outcomes:
            ended[min(num_moments - 1, int(outcome.end_seconds // width))].append(outcome)
        seconds: list[list[_Second]] = [[] for _ in range(num_moments)]
        for number, second in self._seconds.items():
            seconds[min(num_moments - 1, number // width)].append(second)
        return tuple(
            _moment(index * width, min(width, max(1e-3, last - index * width)), seconds[index], ended[index], slos)
            for index in range(num_moments)
        )


def is_good(outcome: Outcome, slo: Slo) -> bool:
    """Whether a request ended by itself, within its objectives."""
    if outcome.ending != "finished":
        return False
    bounds = (
        (outcome.ttft_seconds, slo.ttft_ms),
        (outcome.tpot_seconds, slo.itl_ms),
        (outcome.e2e_seconds, slo.e2e_ms),
    )
    return all(bound is None or (seconds is None or seconds * 1e3 <= bound) for seconds, bound in bounds)


def _moment(
    at_seconds: float,
    width: float,
    seconds: Sequence[_Second],
    ended: Sequence[Outcome],
    slos: Mapping[str, Slo],
) -> Moment:
    endings = Counter(outcome.ending for outcome in ended)
    ttft = percentiles_of(_known(outcome.ttft_seconds for outcome in ended))
    gaps = DurationCounts()
    for second in seconds:
        if second.gaps is not None:
            gaps.merge(second.gaps)
    itl = gaps.percentiles()
    gauges = [each for second in seconds for each in second.gauges]
    return Moment(
        at_seconds=at_seconds,
        seconds=round(width, 3),
        num_arrived=sum(second.num_arrived for second in seconds),
        num_finished=endings["finished"],
        num_refused=endings["refused"],
        num_failed=endings["failed"],
        num_cancelled=endings["cancelled"],
        prompt_tokens_per_second=round(sum(second.prompt_tokens for second in seconds) / width, 2),
        output_tokens_per_second=round(sum(second.output_tokens for second in seconds) / width, 2),
        goodput_per_second=round(sum(is_good(each, slos[each.request_class]) for each in ended) / width, 4),
        ttft_p50_ms=None if ttft is None else ttft.p50,
        ttft_p95_ms=None if ttft is None else ttft.p95,
        itl_p50_ms=None if itl is None else itl.p50,
        itl_p95_ms=None if itl is None else itl.p95,
        num_running=_mean([each.num_running for each in gauges]),
        num_waiting=_mean([each.num_waiting for each in gauges]),
        kv_used_ratio=_mean([each.kv_used_ratio for each in gauges]),
        busy_ratio=_mean([each.busy_ratio for each in gauges]),
        accelerator_ratio=_mean([each.accelerator_ratio for each in gauges]),
    )


def _by_code(outcomes: Iterable[Outcome], ending: str) -> dict[str, int]:
    return dict(sorted(Counter(outcome.code for outcome in outcomes if outcome.ending == ending).items()))


def _p99_ms(outcomes: Sequence[Outcome]) -> float | None:
    late = percentiles_of([outcome.sent_late_seconds for outcome in outcomes])
    return None if late is None else late.p99


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return round(sum(known) / len(known), 4) if known else None


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _growth(values: Sequence[int | None]) -> int | None:
    """By how much a counter grew; one that began anew counts from there."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return sum(max(0, later - earlier) for earlier, later in itertools.pairwise(known))
