"""Server-sent events: one request's text as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from django.http import StreamingHttpResponse

from serving.api.context import Stream
from serving.api.errors import problem_of
from serving.api.responses import Shape
from serving.api.tool_streams import CallingDelta
from serving.gateway.generation import ChoiceDelta

WAITING_COMMENT_SECONDS = 5.0
"""How often a client whose request waits is told that the connection lives."""

_HEADERS = {
    "Cache-Control": "no-cache",
    # Proxies that collect a response (nginx by default) would hold tokens back. Nothing here compresses it either.
    "X-Accel-Buffering": "no",
}
_DONE = b"data: [DONE]\n\n"


async def open_event_stream(
    stream: Stream,
    shape: Shape,
    *,
    num_choices: int,
    include_usage: bool,
    hold_seconds: float,
    cleanup: contextlib.AsyncExitStack,
) -> StreamingHttpResponse:
    """The response of a streamed request, `cleanup` being the request's own: it closes `stream` whatever happens.

    Waits until the request is first scheduled, at most `hold_seconds`: what fails until then is raised and gets its
    HTTP status. Whatever fails later is an `error` event, after which the stream ends without `[DONE]`.
    """
    started = asyncio.ensure_future(stream.started())
    cleanup.callback(started.cancel)
    await asyncio.wait({started}, timeout=hold_seconds)
    if started.done():
        started.result()
    events = _events(stream, shape, started=started, num_choices=num_choices, include_usage=include_usage)
    return StreamingHttpResponse(events, content_type="text/event-stream", headers=_HEADERS)


async def _events(
    stream: Stream, shape: Shape, *, started: asyncio.Future[None], num_choices: int, include_usage: bool
) -> AsyncIterator[bytes]:
    try:
        while not started.done():
            yield _waiting(stream.num_ahead)
            await asyncio.wait({started}, timeout=WAITING_COMMENT_SECONDS)
        started.result()
        for opening in shape.openings(num_choices):
            yield _event(opening)
        async for delta in stream:
            if _tells_anything(delta):
                yield _event(await _encode(shape, delta))
        if include_usage:
            yield _event(shape.usage_chunk(stream.usage))
        yield _DONE
    except Exception as error:
        yield _event(problem_of(error).body)
    finally:
        await stream.aclose()


async def _encode(shape: Shape, delta: ChoiceDelta) -> bytes:
    if delta.prompt is None:
        return shape.chunk(delta)
    return await asyncio.to_thread(shape.chunk, delta)


def _tells_anything(delta: ChoiceDelta) -> bool:
    has_calls = isinstance(delta, CallingDelta) and bool(delta.calls)
    return bool(delta.text) or has_calls or delta.finish_reason is not None or delta.prompt is not None


def _waiting(num_ahead: int | None) -> bytes:
    """A comment, which clients ignore and people may read. Under the order `fair` as many are ahead at most."""
    return b": waiting\n\n" if num_ahead is None else b": waiting, %d ahead\n\n" % num_ahead


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"
