"""What a tenant or a key may use: one definition from which every form, check, audit and document derives."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from serving.contracts.errors import InvalidValue, UnknownField

_MOST = 10**15
"""Sums of tokens stay exact in Redis, whose Lua counts in doubles."""

Bound = Annotated[int | None, Meta(ge=1, le=_MOST)]


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one tenant or key; None is no bound. Immutable; make another with `changed`.

    Minutes slide: they are the last 60 seconds. Days and months are those of UTC. Tokens are those of prompt and answer
    together: what a request may use at most is reserved when it comes, and what it did not use is given back.
    """

    requests_per_minute: Annotated[Bound, Meta(description="Requests in any 60 seconds, a prompt each")] = None
    tokens_per_minute: Annotated[Bound, Meta(description="Tokens of the requests of any 60 seconds")] = None
    tokens_per_day: Annotated[Bound, Meta(description="Tokens of a day of UTC")] = None
    tokens_per_month: Annotated[Bound, Meta(description="Tokens of a month of UTC")] = None
    max_concurrent_requests: Annotated[Bound, Meta(description="Requests that wait or run at once")] = None
    max_prompt_tokens: Annotated[Bound, Meta(description="Longest prompt, in tokens")] = None
    max_output_tokens: Annotated[Bound, Meta(description="Longest answer, in tokens, a choice")] = None

    def changed(self, changes: Mapping[str, Any]) -> Quotas:
        """A copy with `changes` applied.

        Raises `UnknownField` for a name that is no quota and `InvalidValue` for a value that is neither null nor an
        integer within the bounds.
        """
        known = quota_names()
        for name, value in changes.items():
            if name not in known:
                raise UnknownField(f"{name!r} is not a quota; there are: {', '.join(known)}", param=name)
            if value is not None and not _is_bound(value):
                raise InvalidValue(name, value, f"null, for no bound, or an integer from 1 to {_MOST}")
        return msgspec.structs.replace(self, **changes)

    def as_dict(self) -> dict[str, int | None]:
        """Values by name, in the order of definition."""
        return msgspec.structs.asdict(self)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is bounded."""
        return all(value is None for value in self.as_dict().values())


def quota_names() -> tuple[str, ...]:
    """Every quota's name, in the order of definition."""
    return tuple(field.name for field in msgspec.structs.fields(Quotas))


def quota_meanings() -> dict[str, str]:
    """What each quota bounds, by name, in words."""
    hints = typing.get_type_hints(Quotas, include_extras=True)
    return {name: next(m.description for m in hints[name].__metadata__ if m.description) for name in quota_names()}


def _is_bound(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
