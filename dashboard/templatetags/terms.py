"""Terms in templates: `{% term "ttft" %}` is the word and a "?" that tells what it means; `{% explain "ttft" %}` is the
"?" alone, for where the word stands already (in a label, or beside a heading)."""

from __future__ import annotations

import itertools
from typing import Any

from django import template

from dashboard.glossary import meaning_of

register = template.Library()
_COUNTER = "footplate_terms"


@register.inclusion_tag("dashboard/_term.html", takes_context=True)
def term(context: Any, key: str, name: str | None = None) -> dict[str, Any]:
    """The word (or `name` in its place) and its explanation. Raises KeyError for a term that nobody explained."""
    return _explained(context, key) | {"shown": meaning_of(key).name if name is None else name}


@register.inclusion_tag("dashboard/_term.html", takes_context=True)
def explain(context: Any, key: str) -> dict[str, Any]:
    """The explanation without the word. Raises KeyError likewise."""
    return _explained(context, key)


def _explained(context: Any, key: str) -> dict[str, Any]:
    found = meaning_of(key)
    # The lowest dictionary is the rendering's own: included templates count on, the next page begins anew.
    counter = context.render_context.dicts[0].setdefault(_COUNTER, itertools.count(1))
    return {"id": f"term-{key}-{next(counter)}", "name": found.name, "meaning": found.meaning}
