"""Workloads by name: those that are saved, and those that are there from the start. Blocking: async code calls these
through `serving.threads.in_thread`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from django.db import IntegrityError, transaction
from django.utils import timezone

from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import DomainError, InvalidValue, NameTaken, NothingChanges, StaleVersion
from serving.lab.models import SavedWorkload
from serving.lab.workloads.checking import NAME, NAME_IN_WORDS, check_workload
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.evidence import Evidence
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import Workload

Origin = Literal["written", "measured", "imported"]
MOST_SAVED = 500


class WorkloadNotFound(DomainError):
    """There is no workload of this name."""

    code = "workload_not_found"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, and what is known of it. A ready one has the origin `ready`, and no revision."""

    workload: Workload
    origin: str
    evidence: Evidence | None = None
    revision: int | None = None
    author: str = ""
    changed_at: Any = None

    @property
    def is_ready(self) -> bool:
        """Whether it is there from the start, and cannot be changed."""
        return self.revision is None


def find_workload(name: str) -> Workload:
    """The saved or ready workload of that name. Raises `WorkloadNotFound`."""
    return find_known(name).workload


def find_known(name: str) -> Known:
    """The saved or ready workload of that name, and what is known of it. Raises `WorkloadNotFound`."""
    if name in READY:
        return Known(workload=READY[name], origin="ready")
    saved = SavedWorkload.objects.filter(name=name).first() if NAME.fullmatch(name) else None
    if saved is None:
        raise WorkloadNotFound(f"there is no workload {name[:80]!r}", param="workload")
    return _known(saved)


def saved_workloads() -> list[Known]:
    """All that are saved, by name."""
    return [_known(saved) for saved in SavedWorkload.objects.all()]


def ready_workloads() -> list[Known]:
    """Those that are there from the start."""
    return [Known(workload=workload, origin="ready") for workload in READY.values()]


def workload_names() -> list[str]:
    """The names of all that can be played: the saved ones, then the ready ones."""
    return [*SavedWorkload.objects.values_list("name", flat=True), *READY]


def save_workload(
    workload: Workload,
    *,
    author: Author,
    origin: Origin = "written",
    evidence: Evidence | None = None,
    reason: str = "",
) -> Known:
    """Store a new workload. Raises `InvalidValue`, and `NameTaken`, also for the name of a ready one."""
    check_workload(workload)
    _check_free(workload.name)
    with transaction.atomic():
        if SavedWorkload.objects.count() >= MOST_SAVED:
            raise InvalidValue("name", workload.name, f"that of a saved one: there may be {MOST_SAVED} workloads")
        try:
            with transaction.atomic():
                saved = SavedWorkload.objects.create(
                    name=workload.name,
                    content=workload_to_dict(workload),
                    origin=origin,
                    evidence={} if evidence is None else msgspec.to_builtins(evidence),
                    author=name_of(author),
                )
        except IntegrityError:
            raise _taken(workload.name) from None
        _write_down("workload saved", workload.name, author, {"origin": [None, origin]}, reason)
    return _known(saved)


def change_workload(
    name: str, workload: Workload, *, author: Author, based_on: int | None = None, reason: str = ""
) -> Known:
    """Store other content under the name, or under another one, which renames it. A measured one that is changed stays
    beside its evidence.

    Raises `WorkloadNotFound`, `InvalidValue`, `NothingChanges`, `NameTaken`, and `StaleVersion` where `based_on` is
    given and no longer its revision; what is ready cannot be changed, but saved under another name.
    """
    check_workload(workload)
    _check_changeable(name)
    if workload.name != name:
        _check_free(workload.name)
    with transaction.atomic():
        saved = _locked(name, based_on)
        before, after = saved.content, workload_to_dict(workload)
        if before == after:
            raise NothingChanges("nothing would change: the workload is as it was")
        saved.name, saved.content = workload.name, after
        saved.revision += 1
        saved.author, saved.changed_at = name_of(author), timezone.now()
        try:
            with transaction.atomic():
                saved.save()
        except IntegrityError:
            raise _taken(workload.name) from None
        _write_down("workload changed", workload.name, author, _differences(before, after), reason)
    return _known(saved)


def delete_workload(name: str, *, author: Author, based_on: int | None = None, reason: str = "") -> None:
    """Delete a saved workload; runs keep what they played. Raises as `change_workload` does."""
    _check_changeable(name)
    with transaction.atomic():
        saved = _locked(name, based_on)
        saved.delete()
        _write_down("workload deleted", name, author, {}, reason)


def _locked(name: str, based_on: int | None) -> SavedWorkload:
    saved = SavedWorkload.objects.select_for_update().filter(name=name).first()
    if saved is None:
        raise WorkloadNotFound(f"there is no workload {name[:80]!r}", param="workload")
    if based_on is not None and saved.revision != based_on:
        raise StaleVersion(f"the workload is at revision {saved.revision}, not {based_on}: look at it and try again")
    return saved


def _check_changeable(name: str) -> None:
    if name in READY:
        raise InvalidValue("name", name, "that of a saved workload: a ready one can be copied, and not changed")


def _check_free(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise InvalidValue("name", name[:80], NAME_IN_WORDS)
    if name in READY:
        raise _taken(name)


def _taken(name: str) -> NameTaken:
    return NameTaken(f"there is a workload {name} already", param="name")


def _known(saved: SavedWorkload) -> Known:
    return Known(
        # It was checked when it was stored, which takes long for a trace.
        workload=msgspec.convert(saved.content, type=Workload),
        origin=saved.origin,
        evidence=msgspec.convert(saved.evidence, type=Evidence) if saved.evidence else None,
        revision=saved.revision,
        author=saved.author,
        changed_at=saved.changed_at,
    )


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    """What changed, for the audit: the classes and a trace by their number alone, which may be long."""
    changed = {field: [before.get(field), after.get(field)] for field in after if before.get(field) != after.get(field)}
    return {field: [_short(old), _short(new)] for field, (old, new) in changed.items()}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return f"{len(value)} classes"
    if isinstance(value, dict):
        return {name: f"{len(part)} entries" if isinstance(part, list) else part for name, part in value.items()}
    return value


def _write_down(action: Action, name: str, author: Author, changes: dict[str, Any], reason: str) -> None:
    record(action, actor=author, subject_kind="workload", subject=name, changes=changes, reason=reason)
