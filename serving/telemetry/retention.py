"""How long what was measured is kept."""

from __future__ import annotations

import datetime

from django.conf import settings


def kept_for(seconds: int) -> datetime.timedelta:
    """How long stretches of so many seconds are kept; events are as long as those of an hour."""
    kept: dict[int, datetime.timedelta] = settings.FOOTPLATE_ROLLUPS_KEPT
    return kept[seconds]
