"""The web process: services, application and server put together."""

from __future__ import annotations

from django.conf import settings
from redis.exceptions import RedisError

from serving.config.asgi import build_application
from serving.config.http_bounds import HttpBounds
from serving.config.presence import presence
from serving.config.services import build_services
from serving.config.web_server import Lifecycle, WebServer, open_listener, server_loop
from serving.gateway.text.folder import ModelTextProblem
from serving.telemetry.traces import TracesUnavailable


class WebCannotStart(Exception):
    """The web process cannot start; the message is one line."""


def run_web() -> None:
    """Serve HTTP until SIGTERM or SIGINT has been obeyed.

    Raises `AddressInUse` where nobody can listen, `WebCannotStart` where Redis does not answer, the model's folder
    cannot be used or traces cannot be made.
    """
    listener = open_listener(settings.HOST, settings.PORT)
    loop = server_loop()
    try:
        services = loop.run_until_complete(build_services(settings))
        loop.run_until_complete(services.start())
    except (ModelTextProblem, TracesUnavailable) as problem:
        raise WebCannotStart(str(problem)) from None
    except (RedisError, OSError) as error:
        raise WebCannotStart(f"Redis does not answer ({error})") from None
    lifecycle = Lifecycle(
        begin_drain=services.drain.begin,
        end_requests=services.end_requests,
        close=services.close,
        drain_seconds=settings.FOOTPLATE_DRAIN_SECONDS,
        note_refusal=services.observer.rejected,
    )
    bounds = HttpBounds(max_body_bytes=settings.FOOTPLATE_MAX_BODY_BYTES)
    # First: it sets up logging anew, and would take away the handler that keeps the last lines.
    application = build_application(services)
    with presence("web", doing=lambda: _requests_in_words(services.gateway.num_in_flight)):
        WebServer(application, listener=listener, bounds=bounds, lifecycle=lifecycle).run()


def _requests_in_words(count: int) -> str:
    return "1 request in flight" if count == 1 else f"{count} requests in flight"
