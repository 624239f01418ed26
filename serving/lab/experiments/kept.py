"""What every kind of experiment is kept with."""

from __future__ import annotations

from typing import Any

from serving.lab.models import Experiment


def common_fields(row: Experiment) -> dict[str, Any]:
    """The fields that each kind's view of its row has, by their names."""
    return {
        "id": row.pk,
        "pool": row.pool,
        "title": row.title,
        "state": row.state,
        "author": row.author,
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "error": row.error,
        "is_stop_asked": row.stop_asked,
        "fingerprint": row.fingerprint,
    }
