"""Whom a load test may be played against beside this server: whoever runs this machine says."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from serving.contracts.errors import InvalidValue
from serving.lab.playing.target import Target


def check_foreign(target: Target, *, allowed_hosts: Collection[str]) -> None:
    """Raise `InvalidValue` for a server that may not be loaded. `allowed_hosts` are hosts, with a port or for any."""
    target.check()
    parts = urlsplit(target.url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if host not in allowed_hosts and f"{host}:{port}" not in allowed_hosts:
        named = ", ".join(sorted(allowed_hosts)) or "none"
        raise InvalidValue("url", target.url[:100], f"on a host that FOOTPLATE_LOADTEST_HOSTS names: {named}")
