"""The audit takes every act and keeps it as it was."""

from __future__ import annotations

import datetime

import pytest
from django.db import DatabaseError, connection, transaction

from serving.admission.keys import make_key
from serving.audit.models import AppendOnly, AuditEvent
from serving.audit.selectors import Filter, Place, all_events, events, events_newer
from serving.audit.services import record
from serving.contracts.actors import COMMAND_LINE, Actor
from tests.audit.triggers import triggers

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
STATEMENTS = {
    "sqlite": (
        "UPDATE audit_auditevent SET actor = 'nobody'",
        "DELETE FROM audit_auditevent",
        "INSERT OR REPLACE INTO audit_auditevent SELECT * FROM audit_auditevent",
    ),
    "postgresql": (
        "UPDATE audit_auditevent SET actor = 'nobody'",
        "DELETE FROM audit_auditevent",
        "TRUNCATE audit_auditevent",
    ),
}


def happened(minute: int, **values: str) -> AuditEvent:
    """An event so many minutes after noon."""
    known = {"actor": "ann", "actor_kind": "user", "action": "tunables changed", "subject_kind": "pool", **values}
    return AuditEvent.objects.create(at=NOON + datetime.timedelta(minutes=minute), **known)


def found(**wanted: object) -> list[str]:
    return [event.subject for event in events(Filter(**wanted), limit=10)]  # type: ignore[arg-type]


def test_an_act_is_kept_with_who_what_and_why() -> None:
    record(
        "key made",
        actor=Actor("acme, key 0123456789ab", "key", request_id="req-1", address="10.0.0.1"),
        subject_kind="key",
        subject="ba9876543210",
        tenant="acme",
        tenant_id=7,
        changes={"scopes": [None, ["generate"]]},
        reason="a test",
    )
    event = AuditEvent.objects.get()
    assert (event.actor, event.actor_kind, event.request_id) == ("acme, key 0123456789ab", "key", "req-1")
    assert (event.subject_kind, event.subject, event.tenant, event.tenant_id_then) == ("key", "ba9876543210", "acme", 7)
    assert (event.changes, event.reason, event.address) == ({"scopes": [None, ["generate"]]}, "a test", "10.0.0.1")


def test_a_name_alone_is_a_users_and_the_command_line_is_its_own_kind() -> None:
    for actor in ("ann", COMMAND_LINE):
        record("pool made", actor=actor, subject_kind="pool", subject="default")
    assert [(event.actor, event.actor_kind) for event in events(Filter(), limit=9)] == [
        ("command line", "command"),
        ("ann", "user"),
    ]


def test_no_secret_and_nothing_that_a_database_refuses_gets_in() -> None:
    key = make_key()
    hostile = f"{key.text}\0\ud800" + "x" * 600
    record(
        "request aborted",
        actor=Actor(hostile, "key", request_id=hostile, address=hostile),
        subject_kind="request",
        subject=hostile,
        pool=hostile,
        tenant=hostile,
        changes={hostile: [None, {"deep": [hostile]}]},
        reason=hostile,
    )
    event = AuditEvent.objects.get()
    kept = repr(vars(event))
    assert key.text.split("-", 2)[2] not in kept
    assert "\\x00" not in kept
    assert key.prefix in event.reason
    assert (len(event.reason), len(event.actor), len(event.address)) == (500, 200, 45)


def test_what_is_rolled_back_never_happened() -> None:
    with transaction.atomic():
        record("pool made", actor="ann", subject_kind="pool")
        transaction.set_rollback(True)
    assert not AuditEvent.objects.exists()


def test_no_event_is_changed_or_deleted_by_this_code() -> None:
    record("pool made", actor="ann", subject_kind="pool")
    event = AuditEvent.objects.get()
    event.actor = "nobody"
    attempts = (event.save, event.delete, AuditEvent.objects.all().delete, lambda: AuditEvent.objects.update(actor="x"))
    for attempt in attempts:
        with pytest.raises(AppendOnly):
            attempt()
    assert AuditEvent.objects.get().actor == "ann"


@pytest.mark.parametrize("statement", STATEMENTS[connection.vendor])
def test_the_database_refuses_to_change_or_delete_an_event(statement: str) -> None:
    with triggers():
        record("pool made", actor="ann", subject_kind="pool")
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
        assert AuditEvent.objects.get().actor == "ann"


def test_filters_hold_together() -> None:
    happened(0, subject="a", pool="chat", reason="Quieter nights")
    happened(1, subject="b", pool="bulk", tenant="acme", actor="zoe, key 0123456789ab", actor_kind="key")
    happened(2, subject="c", pool="chat", action="tunables rolled back", request_id="req-1")
    assert found() == ["c", "b", "a"]
    assert found(since=NOON + datetime.timedelta(minutes=1), until=NOON + datetime.timedelta(minutes=2)) == ["b"]
    assert found(pool="chat") == ["c", "a"]
    assert found(pool="chat", action="tunables changed") == ["a"]
    assert found(actor="0123456789AB") == ["b"]
    assert found(actor_kind="key") == ["b"]
    assert found(tenant="acme") == ["b"]
    assert found(reason="quiet") == ["a"]
    assert found(request_id="req-1") == ["c"]
    assert found(subject="b", pool="chat") == []


def test_pages_follow_one_another_both_ways_though_moments_are_equal() -> None:
    for subject in "abcdef":
        happened(0 if subject < "d" else 1, subject=subject)
    shown, place, pages = ["x"], None, []
    while shown:
        page = events(Filter(), older_than=place, limit=2)
        shown = [event.subject for event in page]
        pages.append("".join(shown))
        place = Place(at=page[-1].at, pk=page[-1].pk) if page else place
    assert pages == ["fe", "dc", "ba", ""]
    oldest = AuditEvent.objects.get(subject="a")
    newer = events_newer(Filter(), newer_than=Place(at=oldest.at, pk=oldest.pk), limit=3)
    assert [event.subject for event in newer] == ["d", "c", "b"]
    assert [event.subject for event in all_events(Filter(), limit=4)] == ["f", "e", "d", "c"]
