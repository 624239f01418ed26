"""The ASGI application: which part of Footplate answers which connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, cast

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware
from django.core.asgi import get_asgi_application

from serving.api.context import ApiServices
from serving.api.entrance import Application, Entrance, Receive, Send


def build_application(services: ApiServices) -> Entrance:
    """The whole application around `services`; Django must have been set up."""
    from dashboard.origin import OwnOriginOnly
    from dashboard.routing import websocket_urlpatterns
    from serving.api.handler import ApiHandler
    from serving.config.static_server import StaticFiles

    parts: dict[str, Application] = {"/console": cast(Application, get_asgi_application()), "/static": StaticFiles()}
    http = SplitByPath(parts, others=cast(Application, ApiHandler()))
    # Who is signed in is the console's to ask, of each command anew; here the cookies are read.
    websocket = OwnOriginOnly(CookieMiddleware(URLRouter(websocket_urlpatterns)))
    return Entrance(ProtocolTypeRouter({"http": http, "websocket": websocket}), services)


class SplitByPath:
    """Owns nothing: what begins with a path of `parts` is theirs (Django's middleware is the console's alone), the rest
    goes to `others`."""

    def __init__(self, parts: Mapping[str, Application], *, others: Application) -> None:
        self._parts = parts
        self._others = others

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Pass one request on."""
        path = scope["path"]
        owners = (part for prefix, part in self._parts.items() if path == prefix or path.startswith(prefix + "/"))
        await next(owners, self._others)(scope, receive, send)


class LazyApplication:
    """Owns the application of a process that any ASGI server started; built by the first connection, on its loop."""

    def __init__(self) -> None:
        self._building: asyncio.Task[Entrance] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if self._building is None:
            self._building = asyncio.create_task(_start_application())
        await (await asyncio.shield(self._building))(scope, receive, send)


async def _start_application() -> Entrance:
    from django.conf import settings

    from serving.config.services import build_services
    from serving.prepared import check_prepared

    check_prepared(needs_secret=True)
    services = await build_services(settings)
    await services.start()
    return build_application(services)


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")
application = LazyApplication()
