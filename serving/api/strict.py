"""What all bodies of requests have in common: declared types and no others, and bounds said in words.

`x-bounds` says in words what a field admits: documentation and error messages use the same words.
"""

from __future__ import annotations

import itertools
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_INT = 2**31 - 1
"""The largest number of tokens, and the largest token id, that a body may name."""

_MOST_FIELDS = 200
"""More than any body has that is right."""


def admitting(bounds: str, *, about: str = "", default: Any = None, **constraints: Any) -> Any:
    """A field with its bounds in words; `constraints` are pydantic's."""
    description = f"{about}: {bounds}." if about else f"{bounds[0].upper()}{bounds[1:]}."
    return Field(default, description=description, json_schema_extra={"x-bounds": bounds}, **constraints)


class StrictModel(BaseModel):
    """Values of the declared types and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _read_no_more_fields_than_there_are(cls, values: Any) -> Any:
        """Among so many are some that are not known, and to list hundreds of thousands would take a second."""
        if not isinstance(values, dict) or len(values) <= _MOST_FIELDS:
            return values
        return dict(itertools.islice(values.items(), _MOST_FIELDS))
