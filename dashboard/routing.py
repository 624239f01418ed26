"""Addresses of websockets."""

from typing import Any
from urllib.parse import quote

from django.urls import path, re_path

from dashboard.consumers import LiveConsumer
from dashboard.origin import refuse
from dashboard.rechecks import Rechecks
from dashboard.steps_consumer import StepsConsumer

# ASGI applications, though Django's types want views.
_rechecks = Rechecks()
_live: Any = LiveConsumer(rechecks=_rechecks)
_steps: Any = StepsConsumer(rechecks=_rechecks)
_nothing: Any = refuse
_LIVE = "console/live/"
_STEPS = "console/steps/"

websocket_urlpatterns = [
    path(f"{_LIVE}<str:pool>", _live, name="live"),
    path(f"{_STEPS}<str:pool>", _steps, name="steps"),
    re_path("", _nothing),
]


def live_path(pool: str) -> str:
    """Where a pool's Live page connects to."""
    return f"/{_LIVE}{quote(pool, safe='')}"


def steps_path(pool: str) -> str:
    """Where a pool's Steps page connects to."""
    return f"/{_STEPS}{quote(pool, safe='')}"
