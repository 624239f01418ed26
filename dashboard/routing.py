"""Addresses of websockets."""

from typing import Any
from urllib.parse import quote

from django.urls import path, re_path

from dashboard.consumers import LiveConsumer
from dashboard.origin import refuse

# ASGI applications, though Django's types want views.
_live: Any = LiveConsumer()
_nothing: Any = refuse
_LIVE = "console/live/"

websocket_urlpatterns = [
    path(f"{_LIVE}<str:pool>", _live, name="live"),
    re_path("", _nothing),
]


def live_path(pool: str) -> str:
    """Where a pool's Live page connects to."""
    return f"/{_LIVE}{quote(pool, safe='')}"
