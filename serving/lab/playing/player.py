"""Plays a workload against a server, as its clients would, and records what they see.

Open-loop arrivals never wait for answers, and latency counts from the time when a request was due, so that a slow
server cannot hide its queue by slowing its load down (coordinated omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import aiohttp

from serving.lab.gaps import percentiles_of
from serving.lab.playing.asking import Answer, ask, client_session, wait_until
from serving.lab.playing.prompts import PromptMaker
from serving.lab.playing.target import Target
from serving.lab.playing.token_gaps import Gap, gap_before, shared_out
from serving.lab.recording import Gauges, Recorder, measured_until
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import PlannedRequest, Workload

_LATE_SECONDS = 0.1
_GAUGE_SECONDS = 0.5
_GRACE_SECONDS = 5.0
MOST_IN_FLIGHT = 20_000
"""Open arrivals beyond this are not sent but counted as failed: a process has only so many connections."""


class GaugeSource(Protocol):
    """What a server tells of itself while it is loaded."""

    async def read(self) -> Gauges | None:
        """Its state now; None where it does not answer."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: seconds since its beginning, requests that were due, are in flight, and have ended."""

    seconds: float
    num_due: int
    num_in_flight: int
    num_ended: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run amounts to beside what was recorded. `wall_seconds` is how long it counts: to its last answer, or to
    the end of its duration where that is later. `is_whole` is False where it was stopped before its end."""

    wall_seconds: float
    is_whole: bool
    notes: tuple[str, ...]


class Player:
    """Owns one run: its requests in flight and its clock; on the event loop that plays it."""

    def __init__(
        self,
        workload: Workload,
        target: Target,
        *,
        recorder: Recorder,
        gauges: GaugeSource | None = None,
        tell: Callable[[Progress], None] = lambda _progress: None,
    ) -> None:
        """`tell` hears of the progress about twice a second."""
        target.check()
        self._workload = workload
        self._target = target
        self._recorder = recorder
        self._gauges = gauges
        self._tell = tell
        self._prompts = PromptMaker(seed=workload.seed, prompts=target.prompts, salt=secrets.token_hex(8))
        self._stopping = asyncio.Event()
        self._began_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: list[float] = []
        self._num_due = 0
        self._num_ended = 0
        self._num_not_sent = 0

    def stop(self) -> None:
        """Send nothing more, and break off what is in flight. From the loop's thread."""
        self._stopping.set()

    async def play(self) -> Played:
        """Play the workload to the end of its last request, or until `stop`."""
        self._began_at = time.monotonic()
        async with client_session() as session:
            watching = asyncio.create_task(self._watch())
            try:
                await self._send_all(session)
                await self._settle()
            finally:
                watching.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(watching, *self._tasks, return_exceptions=True)
                self._tell(self._progress())
        wall_seconds, is_whole = time.monotonic() - self._began_at, not self._stopping.is_set()
        if is_whole:
            wall_seconds = measured_until(self._workload, ended_at=wall_seconds, num_requests=self._num_due)
        return Played(
            wall_seconds=wall_seconds,
            is_whole=is_whole,
            notes=tuple(self._notes()),
        )

    # --- sending ---------------------------------------------------------------------------------------------------

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        requests = plan_requests(self._workload)
        arrivals = self._workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            for _ in range(arrivals.clients):
                self._start(self._be_client(session, requests, arrivals.think_seconds))
            return
        for planned in requests:
            assert planned.due_seconds is not None, "requests of an open loop are due at some time"
            due = self._began_at + planned.due_seconds
            if not await self._wait_for(due):
                return
            self._num_due += 1
            if len(self._tasks) >= MOST_IN_FLIGHT:
                self._give_up(planned, due)
            else:
                self._start(self._serve(session, planned, due))

    async def _be_client(
        self, session: aiohttp.ClientSession, requests: Iterator[PlannedRequest], think_seconds: float
    ) -> None:
        end = self._workload.duration_seconds
        while not self._stopping.is_set():
            if end is not None and time.monotonic() - self._began_at >= end:
                return
            planned = next(requests, None)
            if planned is None:
                return
            self._num_due += 1
            await self._serve(session, planned, time.monotonic())
            if think_seconds and not await self._wait_for(time.monotonic() + think_seconds):
                return

    async def _serve(self, session: aiohttp.ClientSession, planned: PlannedRequest, due: float) -> None:
        """Send one request, and record what becomes of it."""
        answer = Answer()
        is_warm_up = due - self._began_at < self._workload.warm_up_seconds
        prompt = self._prompts.prompt(planned)
        self._recorder.note_arrival(at_seconds=due - self._began_at)

        def hear(now: float) -> None:
            told = answer.told[-1]
            of_prompt = planned.num_prompt_tokens if len(answer.arrivals) == 1 else 0
            self._recorder.note_tokens(at_seconds=now - self._began_at, count=told or 1, prompt_tokens=of_prompt)
            if len(answer.arrivals) > 1 and told is not None:
                note_gap(gap_before(answer.arrivals, len(answer.arrivals) - 1, num_tokens=told))

        def note_gap(gap: Gap) -> None:
            self._recorder.note_gap(
                planned.request_class,
                seconds=gap.seconds,
                at_seconds=gap.at - self._began_at,
                count=gap.count,
                is_warm_up=is_warm_up,
            )

        try:
            await ask(session, self._target, planned, prompt, into=answer, on_text=hear)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            # What a stop breaks off is no figure of the server's.
            return
        late = answer.sent_at - due
        self._late.append(late)
        self._num_ended += 1
        if answer.ending == "failed":
            self._recorder.note_failure(f"{answer.code}: {answer.words}")
        at_seconds = answer.end_at - self._began_at
        more = answer.num_output_tokens - answer.num_told_tokens
        self._recorder.note_tokens(at_seconds=at_seconds, count=max(0, more))
        for gap in _untold_gaps(answer):
            note_gap(gap)
        self._recorder.end(self._outcome(planned, answer, due, is_warm_up=is_warm_up))

    def _outcome(self, planned: PlannedRequest, answer: Answer, due: float, *, is_warm_up: bool) -> Outcome:
        arrivals = answer.arrivals
        gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
        num_tokens = answer.num_output_tokens
        is_known = bool(arrivals) and planned.is_streamed
        # Those that came with the first have no gap.
        num_gaps = num_tokens - (answer.told[0] or 1) if len(arrivals) > 1 else 0
        spread = arrivals[-1] - arrivals[0] if is_known and num_gaps > 0 else None
        return Outcome(
            index=planned.index,
            request_class=planned.request_class,
            tenant=planned.tenant,
            due_seconds=due - self._began_at,
            end_seconds=answer.end_at - self._began_at,
            ending=answer.ending,
            num_prompt_tokens=answer.num_prompt_tokens or planned.num_prompt_tokens,
            num_output_tokens=num_tokens,
            is_streamed=planned.is_streamed,
            is_warm_up=is_warm_up,
            sent_late_seconds=answer.sent_at - due,
            queue_seconds=answer.queue_seconds,
            ttft_seconds=arrivals[0] - due if is_known else None,
            tpot_seconds=None if spread is None else spread / num_gaps,
            longest_gap_seconds=max(gaps, default=None) if is_known else None,
            e2e_seconds=answer.end_at - due,
            code=answer.code,
            retry_after_seconds=answer.retry_after_seconds,
        )

    def _give_up(self, planned: PlannedRequest, due: float) -> None:
        """Count a request that cannot be sent, since too many are in flight."""
        self._num_not_sent += 1
        self._num_ended += 1
        answer = Answer(sent_at=due, end_at=due, ending="failed", code="not_sent")
        is_warm_up = due - self._began_at < self._workload.warm_up_seconds
        self._recorder.note_arrival(at_seconds=due - self._began_at)
        self._recorder.end(self._outcome(planned, answer, due, is_warm_up=is_warm_up))

    # --- time ------------------------------------------------------------------------------------------------------

    def _start(self, work: object) -> None:
        assert asyncio.iscoroutine(work), "what is started is a coroutine"
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for(self, moment: float) -> bool:
        """Wait until a moment; False where the run is stopped before it."""
        seconds = moment - time.monotonic()
        if seconds <= 0:
            # Others have their turn, however late the run is.
            await asyncio.sleep(0)
            return not self._stopping.is_set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return not self._stopping.is_set()

    async def _settle(self) -> None:
        """Wait for the last answers; a stop breaks them off."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while self._tasks and not self._stopping.is_set():
                await asyncio.wait([*self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _watch(self) -> None:
        """Look at the server's gauges, and tell of the progress."""
        number = 0
        while True:
            number += 1
            await wait_until(self._began_at + number * _GAUGE_SECONDS)
            self._tell(self._progress())
            if self._gauges is None:
                continue
            with contextlib.suppress(TimeoutError):
                gauges = await asyncio.wait_for(self._gauges.read(), _GRACE_SECONDS)
                if gauges is not None:
                    self._recorder.note_gauges(time.monotonic() - self._began_at, gauges)
            number = max(number, int((time.monotonic() - self._began_at) / _GAUGE_SECONDS))

    def _progress(self) -> Progress:
        return Progress(
            seconds=time.monotonic() - self._began_at,
            num_due=self._num_due,
            num_in_flight=self._num_due - self._num_ended,
            num_ended=self._num_ended,
        )

    def _notes(self) -> Iterator[str]:
        if self._stopping.is_set():
            yield "The run was stopped before its end: figures are of what had ended by then."
        late = percentiles_of(self._late)
        if late is not None and not isinstance(self._workload.arrivals, ClosedLoop):
            begins = "The load generator could not keep up: one" if late.p99 > _LATE_SECONDS * 1e3 else "One"
            yield (
                f"{begins} request of a hundred was sent {late.p99:,.1f} ms after it was due, or later (the last "
                f"{late.max:,.1f} ms). That wait counts as the server's."
            )
        if self._num_not_sent:
            yield f"{self._num_not_sent} requests were not sent, but count as failed: {MOST_IN_FLIGHT} were in flight."
        if self._target.prompts != "tokens":
            yield "Prompts were sent as text: their lengths are near the workload's, and were counted by the server."


def _untold_gaps(answer: Answer) -> Iterator[Gap]:
    """The gaps that could not be told as the text came, since nobody said of how many tokens it was."""
    counts = shared_out(answer.told, num_tokens=answer.num_output_tokens)
    for place in range(1, len(counts)):
        if answer.told[place] is None:
            yield gap_before(answer.arrivals, place, num_tokens=counts[place])
