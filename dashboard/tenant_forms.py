"""What forms about tenants say: texts as they were typed, and the values that they stand for. Pure functions.

A text that is no number stays a text: the services refuse it, and say of each field what it may be. What a form is
filled with again holds no API key, which somebody may have pasted by mistake.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from serving.admission.auditing import check_reason
from serving.admission.tenants import check_attribute
from serving.contracts.errors import DomainError, InvalidValue
from serving.contracts.quotas import Quotas, quota_names
from serving.contracts.texts import without_secrets

RANK = "rank."
"""What the names of the fields begin with that say in which place a pool is tried."""

_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}([ ,_]\d{3})+", re.ASCII)
_LONGEST_SEEN = 20_000


class Posted(Protocol):
    """A posted form."""

    def get(self, key: str, default: str, /) -> str: ...

    def getlist(self, key: str, /) -> list[str]: ...

    def __contains__(self, key: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...


class StoredTenant(Protocol):
    """A tenant as the database has it."""

    name: str
    weight: float
    most_urgent: int
    pools: Any
    enabled: bool
    keeps_text: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A tenant's attributes as a form shows them; `ranks` are the places of the pools that it may use, by name."""

    name: str = ""
    weight: str = "1"
    most_urgent: str = "0"
    enabled: bool = True
    keeps_text: bool = False
    all_pools: bool = True
    ranks: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """What it stands for, by attribute."""
        ranked = sorted(self.ranks, key=lambda name: (self.ranks[name], name))
        return {
            "name": self.name,
            "weight": _number(self.weight, _NUMBER, float),
            "most_urgent": _number(self.most_urgent, _INTEGER, int),
            "enabled": self.enabled,
            "keeps_text": self.keeps_text,
            "pools": None if self.all_pools else ranked,
        }


def draft_of(tenant: StoredTenant) -> Draft:
    """A tenant as the form shows it first."""
    return draft_of_values(attributes_of(tenant))


def draft_of_values(values: Mapping[str, Any]) -> Draft:
    """Attributes as the form shows them."""
    pools = values["pools"]
    return Draft(
        name=values["name"],
        weight=f"{values['weight']:.15g}",
        most_urgent=str(values["most_urgent"]),
        enabled=values["enabled"],
        keeps_text=values["keeps_text"],
        all_pools=pools is None,
        ranks={name: rank for rank, name in enumerate(pools or (), start=1)},
    )


def attributes_of(tenant: StoredTenant) -> dict[str, Any]:
    """A tenant's attributes by name."""
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "most_urgent": tenant.most_urgent,
        "enabled": tenant.enabled,
        "keeps_text": tenant.keeps_text,
        "pools": tenant.pools,
    }


def read_draft(post: Posted) -> Draft:
    """What was typed."""
    ranks = {key.removeprefix(RANK): post.get(key, "") for key in post if key.startswith(RANK)}
    return Draft(
        name=post.get("name", "").strip(),
        weight=post.get("weight", "").strip(),
        most_urgent=post.get("most_urgent", "").strip(),
        enabled="enabled" in post,
        keeps_text="keeps_text" in post,
        all_pools=post.get("pools", "all") == "all",
        ranks={name: int(rank) for name, rank in ranks.items() if rank.isascii() and rank.isdigit() and len(rank) < 4},
    )


def without_keys(draft: Draft) -> Draft:
    """The draft as a form may show it again."""
    return dataclasses.replace(
        draft,
        name=without_secrets(draft.name),
        weight=without_secrets(draft.weight),
        most_urgent=without_secrets(draft.most_urgent),
        ranks={without_secrets(name): rank for name, rank in draft.ranks.items()},
    )


def write_seen(tenant: StoredTenant) -> str:
    """What a form remembers of the tenant that it was filled from."""
    return json.dumps(attributes_of(tenant))


def read_seen(post: Posted, tenant: StoredTenant) -> dict[str, Any]:
    """What the form was filled from. Raises `InvalidValue` where it does not say."""
    text = post.get("seen", "")
    try:
        seen = json.loads(text) if len(text) <= _LONGEST_SEEN else None
    except (ValueError, RecursionError):
        seen = None
    if not isinstance(seen, dict) or seen.keys() != attributes_of(tenant).keys():
        raise InvalidValue("seen", "what it says", "what the form was filled with: reload the page and try again")
    return seen


def attribute_errors(values: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with each of these attributes, by name."""
    errors = _errors({field: _checking_attribute(field, value) for field, value in values.items()})
    if values.get("pools") == []:
        errors["pools"] = InvalidValue("pools", [], "one pool at least, or all of them").message
    return errors


def reason_errors(reason: str) -> dict[str, str]:
    """What is wrong with a reason, if anything is."""
    return _errors({"reason": lambda: check_reason(reason)})


def read_quotas(post: Posted) -> dict[str, str]:
    """What was typed for each quota; a quota that the form lacks is left out."""
    return {name: post.get(name, "").strip() for name in quota_names() if name in post}


def quota_values(typed: Mapping[str, str]) -> dict[str, Any]:
    """What is typed for quotas stands for: None for no bound. Thousands may be kept apart by commas or spaces."""
    return {name: _bound(text) for name, text in typed.items()}


def quota_errors(values: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with each of these quotas, by name."""
    errors = _errors({name: _checking_quota(name, value) for name, value in values.items()})
    # What is null to the API is an empty field here.
    return {name: message.replace("must be null", "must be empty", 1) for name, message in errors.items()}


def typed_quotas(quotas: Quotas) -> dict[str, str]:
    """Quotas as the form shows them."""
    return {name: "" if value is None else str(value) for name, value in quotas.as_dict().items()}


def _checking_attribute(field: str, value: Any) -> Callable[[], None]:
    return lambda: check_attribute(field, value)


def _checking_quota(name: str, value: Any) -> Callable[[], object]:
    return lambda: Quotas().changed({name: value})


def _errors(checks: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    errors = {}
    for field, check in checks.items():
        try:
            check()
        except DomainError as error:
            errors[field] = error.message
    return errors


def _number(text: str, pattern: re.Pattern[str], make: Callable[[str], float]) -> float | str:
    return make(text) if pattern.fullmatch(text) else text


def _bound(text: str) -> int | str | None:
    if not text:
        return None
    digits = re.sub("[ ,_]", "", text) if _GROUPED.fullmatch(text) else text
    return int(digits) if _INTEGER.fullmatch(digits) else text
