"""Ordering a run again as it was: the same requests to the same server. Blocking."""

from __future__ import annotations

import msgspec

from serving.contracts.actors import Author
from serving.contracts.errors import InvalidValue
from serving.lab.models import Run
from serving.lab.playing.target import Target
from serving.lab.runs.services import order_run
from serving.lab.workloads.codec import decode_workload


def order_run_again(run_id: int, *, author: Author) -> Run:
    """Order the workload as that run played it, seed included, whatever has become of the one of that name; on the same
    pool under its tunables of now, or against the same foreign server.

    Raises as `order_run`, as where the pool or a tenant is gone, and `InvalidValue` where the run is not there, or was
    sent with a key: those are never kept.
    """
    old = Run.objects.defer("outcomes", "summary").filter(pk=run_id).first()
    if old is None:
        raise InvalidValue("run", run_id, "one that there is")
    target = msgspec.convert(old.target, type=Target)
    if not old.pool and target.is_keyed:
        raise InvalidValue("run", run_id, "one that was sent without a key: those of other servers are not kept")
    (run,) = order_run(
        decode_workload(old.workload),
        author=author,
        pool=old.pool,
        foreign=None if old.pool else target,
        title=old.title,
        reason=f"run {run_id} again",
    )
    return run
