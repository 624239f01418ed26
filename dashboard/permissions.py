"""Who may do what in the console."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

STEERING = "tuning.add_tunablesversion"
"""Making a version is what changing tunables and rolling back amount to."""

PROMPTING = "admission.add_usage"
"""Whoever asks a model adds to what is used, on the account of the console's tenant."""

ADMINISTERING = "admission.change_tenant"
"""Changing a tenant stands for all that is done to tenants, keys and quotas."""

ADMINISTERING_USERS = "auth.change_user"
"""Changing a user stands for making users, giving them roles and passwords, and ending their sessions."""

VIEWING_TENANTS = "admission.view_tenant"
"""Seeing a tenant stands for seeing its keys, its quotas and what it used."""

AUDITING = "audit.view_auditevent"

VIEWING_REQUESTS = "telemetry.view_requestrecord"
"""Seeing the log of requests, and what is in flight, names tenants and keys."""

VIEWING_TEXTS = "telemetry.view_request_text"
"""Reading prompts and answers, where a tenant lets them be kept."""

VIEWING_LAB = "lab.view_run"
"""Seeing a run stands for seeing all of the Lab: workloads, experiments, predictions, the autopilot."""

EXPERIMENTING = "lab.add_run"
"""Ordering a run stands for all that the Lab does: workloads, runs, experiments that change tunables for a while."""

User = AbstractBaseUser | AnonymousUser


def may_watch(user: User) -> bool:
    """Whether the user sees the console at all: an operator whose account is active."""
    return user.is_active and bool(getattr(user, "is_staff", False))


def may_steer(user: User) -> bool:
    """Whether the user may change tunables. Blocking: it may read the user's permissions."""
    return _may(user, STEERING)


def may_prompt(user: User) -> bool:
    """Whether the user may ask the models. Blocking, as `may_steer`."""
    return _may(user, PROMPTING)


def may_administer(user: User) -> bool:
    """Whether the user may change tenants, keys and quotas. Blocking, as `may_steer`."""
    return _may(user, ADMINISTERING)


def may_administer_users(user: User) -> bool:
    """Whether the user may make and change users of the console. Blocking, as `may_steer`."""
    return _may(user, ADMINISTERING_USERS)


def may_view_tenants(user: User) -> bool:
    """Whether the user may see tenants, keys, quotas and what was used. Blocking, as `may_steer`."""
    return _may(user, VIEWING_TENANTS)


def may_audit(user: User) -> bool:
    """Whether the user may read the audit. Blocking, as `may_steer`."""
    return _may(user, AUDITING)


def may_view_requests(user: User) -> bool:
    """Whether the user may see the log of requests and what is in flight. Blocking, as `may_steer`."""
    return _may(user, VIEWING_REQUESTS)


def may_view_texts(user: User) -> bool:
    """Whether the user may read the prompts and answers that are kept. Blocking, as `may_steer`."""
    return _may(user, VIEWING_TEXTS)


def may_abort(user: User) -> bool:
    """Whether the user may end a request in flight: who steers may lower `max_running`, too. Blocking."""
    return may_steer(user) and may_view_requests(user)


def may_view_lab(user: User) -> bool:
    """Whether the user may see what the Lab has. Blocking, as `may_steer`."""
    return _may(user, VIEWING_LAB)


def may_experiment(user: User) -> bool:
    """Whether the user may change workloads, and order and stop what the Lab does. Blocking, as `may_steer`."""
    return _may(user, EXPERIMENTING) and _may(user, VIEWING_LAB)


def _may(user: User, permission: str) -> bool:
    return may_watch(user) and bool(getattr(user, "has_perm", lambda _: False)(permission))
