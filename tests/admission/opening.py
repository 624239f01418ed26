"""What a key opens, asked of the database itself in the steps that a web process takes."""

from __future__ import annotations

from serving.admission.principals import Principal, presented_key, principal_if_it_opens, read_known_key


def open_with(authorization: str | None, *, epoch: str | None = None) -> Principal:
    """Whose key an `Authorization` header bears; raises `InvalidKey`. Blocking."""
    presented = presented_key(authorization)
    return principal_if_it_opens(presented, read_known_key(presented.prefix, epoch=epoch))
