"""Addresses of websockets."""

from typing import Any

from django.urls import path, re_path

from dashboard.consumers import LiveConsumer
from dashboard.origin import refuse

# ASGI applications, though Django's types want views.
_live: Any = LiveConsumer()
_nothing: Any = refuse

websocket_urlpatterns = [
    path("console/live/<str:pool>", _live, name="live"),
    re_path("", _nothing),
]
