"""Fields of OpenAI's API that have no effect here: accepted where they ask for none, refused by name where they do."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from serving.api.errors import UnsupportedField

LABELS = frozenset({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"})
"""Fields that may hold any text: they say something about the request, and ask for nothing."""

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"], []),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_options": ({},),
    "reasoning_effort": ("none",),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the answer, and the values (beside null) with which they do not; each counts where the
endpoint has no field of this name."""

_LONGEST_LABEL = 512


def drop_fields_without_effect(body: dict[str, Any], *, supported: Container[str]) -> dict[str, Any]:
    """`body` without the fields that have no effect; raises `UnsupportedField` for one that asks for an effect.

    Those that are `supported` have one.
    """
    return {name: value for name, value in body.items() if name in supported or not _has_no_effect(name, value)}


def _has_no_effect(name: str, value: Any) -> bool:
    if name in LABELS:
        if value is not None and not (isinstance(value, str) and len(value) <= _LONGEST_LABEL):
            raise UnsupportedField(f"{name} must be a text of up to {_LONGEST_LABEL} characters", param=name)
        return True
    if name == "metadata":
        if value is not None and not isinstance(value, dict):
            raise UnsupportedField("metadata must be an object", param=name)
        return True
    if name not in NEUTRAL_VALUES:
        return False
    if value is not None and not any(_same(value, neutral) for neutral in NEUTRAL_VALUES[name]):
        raise UnsupportedField(f"{name} is not supported yet: leave it out", param=name)
    return True


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and a number only where a number is meant: in Python, `False == 0`."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def describe_compatibility() -> str:
    """The lists above for the documentation."""
    labels = ", ".join(f"`{name}`" for name in sorted({*LABELS, "metadata"}))
    neutral = ", ".join(f"`{name}`" for name in NEUTRAL_VALUES)
    return (
        f"Accepted without effect: {labels}. Where the endpoint's own list does not have them, accepted only with the "
        f"value that changes nothing (or null), and refused by name otherwise: {neutral}. Any other field is refused."
    )
