"""Forms of the console's pages, as a browser would send them."""

from __future__ import annotations

import html
import re
from typing import Any


def fields_of(page: str, *, action: str | None = None) -> dict[str, Any]:
    """What the posted form with that `action` (or the last one that posts) would send as it stands."""
    forms = re.findall(r'<form method="post"([^>]*)>(.*?)</form>', page, re.DOTALL)
    wanted = [body for head, body in forms if "logout" not in head and (action is None or f'action="{action}"' in head)]
    sent: dict[str, Any] = {}
    for tag in re.findall(r"<input[^>]*>", wanted[-1]):
        attributes = dict(re.findall(r'([a-z-]+)="([^"]*)"', tag))
        if attributes.get("type") in ("checkbox", "radio"):
            if re.search(r"\schecked", tag):
                sent.setdefault(attributes["name"], []).append(attributes.get("value", "on"))
            continue
        sent[attributes["name"]] = html.unescape(attributes.get("value", ""))
    for name, options in re.findall(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', wanted[-1], re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options)
        sent[html.unescape(name)] = chosen[1] if chosen else ""
    return sent
