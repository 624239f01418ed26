"""The Lab's process: whatever plays, something else can begin."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from serving.config.jobs import lab_threads
from serving.lab.models import Run, State
from serving.lab.runs.taking import take_next
from serving.tuning.services import ensure_pool


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("num_pools", [1, 2, 4])
def test_all_that_may_play_at_once_leaves_a_thread_free(num_pools: int) -> None:
    pools = ["", *(f"pool-{number}" for number in range(num_pools))]
    for pool in pools:
        if pool:
            ensure_pool(pool, "a-model")
        for _ in range(2):
            values: dict[str, Any] = {"title": "", "workload": {}, "target": {}, "author": "ann"}
            Run.objects.create(pool=pool, created_at=timezone.now(), **values)
    num_taken = 0
    while take_next() is not None:
        num_taken += 1
    assert num_taken == len(pools) == lab_threads(num_pools) - 1
    assert Run.objects.filter(state=State.WAITING).count() == len(pools)
