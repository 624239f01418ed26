"""Saved workloads, and the command that handles them."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, NameTaken, NothingChanges, StaleVersion
from serving.lab.workloads import store
from serving.lab.workloads.arrivals import Constant
from serving.lab.workloads.ready import READY
from serving.telemetry.models import RequestRecord
from serving.tuning.services import ensure_pool
from tests.lab.workloads.shapes import workload
from tests.telemetry.logged import POOL, stored

pytestmark = pytest.mark.django_db


def renamed(name: str, **changes: Any) -> Any:
    return msgspec.structs.replace(workload(), name=name, **changes)


def acts() -> list[tuple[str, str, str]]:
    found = AuditEvent.objects.order_by("pk").values_list("action", "subject", "reason")
    return [(action, subject, reason) for action, subject, reason in found]


def test_what_is_saved_is_found_beside_what_is_ready_and_written_down() -> None:
    store.save_workload(workload(), author="ann", reason="for Monday")
    assert store.find_workload("some") == workload()
    assert store.find_workload("chat") == READY["chat"]
    assert store.workload_names() == ["some", *READY]
    assert acts() == [("workload saved", "some", "for Monday")]


@pytest.mark.parametrize("name", ["nothing", "chat\0", "", "../x"])
def test_a_name_that_there_is_none_of_is_not_found(name: str) -> None:
    with pytest.raises(store.WorkloadNotFound):
        store.find_workload(name)


@pytest.mark.parametrize("name", ["some", "chat"])
def test_a_name_is_taken_once(name: str) -> None:
    store.save_workload(workload(), author="ann")
    with pytest.raises(NameTaken):
        store.save_workload(renamed(name), author="bob")


def test_a_change_is_refused_on_top_of_another_that_came_between() -> None:
    store.save_workload(workload(), author="ann")
    store.change_workload("some", renamed("some", seed=2), author="ann", based_on=1)
    with pytest.raises(StaleVersion):
        store.change_workload("some", renamed("some", seed=3), author="bob", based_on=1)
    with pytest.raises(StaleVersion):
        store.delete_workload("some", author="bob", based_on=1)
    found = store.find_known("some")
    assert (found.workload.seed, found.revision, found.author) == (2, 2, "ann")
    assert AuditEvent.objects.get(action="workload changed").changes == {"seed": [1, 2]}


def test_a_change_may_rename_but_not_to_a_name_that_is_taken() -> None:
    store.save_workload(workload(), author="ann")
    store.save_workload(renamed("other"), author="ann")
    with pytest.raises(NameTaken):
        store.change_workload("some", renamed("other", seed=5), author="ann")
    with pytest.raises(NameTaken):
        store.change_workload("some", renamed("chat"), author="ann")
    store.change_workload("some", renamed("new", seed=5), author="ann")
    assert store.workload_names()[:2] == ["new", "other"]


def test_what_changes_nothing_is_said_to() -> None:
    store.save_workload(workload(), author="ann")
    with pytest.raises(NothingChanges):
        store.change_workload("some", workload(), author="ann")


def test_a_ready_one_is_neither_changed_nor_deleted() -> None:
    with pytest.raises(InvalidValue):
        store.change_workload("chat", renamed("chat"), author="ann")
    with pytest.raises(InvalidValue):
        store.delete_workload("chat", author="ann")


def test_what_is_deleted_is_gone() -> None:
    store.save_workload(workload(), author="ann")
    store.delete_workload("some", author="ann")
    assert store.saved_workloads() == []
    assert acts()[-1] == ("workload deleted", "some", "")


def test_there_may_be_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_SAVED", 1)
    store.save_workload(workload(), author="ann")
    with pytest.raises(InvalidValue, match="there may be 1 workloads"):
        store.save_workload(renamed("other"), author="ann")


def command(*args: str) -> str:
    out = StringIO()
    call_command("workloads", *args, stdout=out)
    return out.getvalue()


def test_the_command_exports_what_it_imports_under_another_name(tmp_path: Path) -> None:
    file = tmp_path / "workload.json"
    command("export", "chat", "--file", str(file))
    assert command("import", str(file), "--name", "ours") == "workload ours is saved\n"
    assert json.loads(command("export", "ours")) == {**json.loads(file.read_bytes()), "name": "ours"}
    assert json.loads(command("show", "ours", "--json"))["name"] == "ours"


def test_the_command_lists_and_shows_shapes_in_words() -> None:
    store.save_workload(renamed("steady", arrivals=Constant(4)), author="ann")
    assert "steady                   written   4 a second, evenly" in command("list")
    assert [each["origin"] for each in json.loads(command("list", "--json"))] == ["written", *["ready"] * len(READY)]
    shown = command("show", "chat")
    assert "in bursts" in shown
    assert "Splitwise" in shown


def test_the_command_deletes() -> None:
    store.save_workload(workload(), author="ann")
    command("delete", "some", "--reason", "old")
    assert acts()[-1] == ("workload deleted", "some", "old")


def test_the_command_measures_what_is_logged() -> None:
    ensure_pool(POOL, "tiny")
    RequestRecord.objects.bulk_create(
        stored(f"req_{n}", float(n), prompt_tokens=10 + n, completion_tokens=5) for n in range(40)
    )
    told = command("measure", "--since", "2026-03-31T12:00", "--until", "2026-03-31T13:00", "--name", "ours")
    assert "prompts: 40 measured" in told
    found = store.find_known("ours")
    assert (found.origin, found.evidence and found.evidence.num_requests) == ("measured", 40)


@pytest.mark.parametrize(
    "args",
    [
        ("show", "nothing"),
        ("import", "/nowhere/at/all.json"),
        ("delete", "chat"),
        ("measure", "--since", "yesterday", "--name", "ours"),
        ("measure", "--since", "2026-13-31T12:00", "--name", "ours"),
    ],
)
def test_the_command_says_what_is_wrong(args: tuple[str, ...]) -> None:
    ensure_pool(POOL, "tiny")
    with pytest.raises(CommandError):
        command(*args)
