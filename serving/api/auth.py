"""Which key opens which path."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.security.base import AuthBase

from serving.api.context import scope_of, services_of


class KeyWithScope(AuthBase):
    """Owns the scopes, one of which a key needs. Raises `InvalidKey` and `PermissionDenied`.

    `at_the_door` is for paths whose requests all go on to the door, which checks the account's epoch itself.
    The documentation takes the scheme from the attributes; the header itself is read by `serving.admission` alone.
    """

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, *scopes: str, at_the_door: bool = False) -> None:
        super().__init__()
        self._scopes = scopes
        self._at_the_door = at_the_door
        self.is_async = True

    async def __call__(self, request: HttpRequest) -> Any:
        """Whose key the request bears."""
        principal = await services_of(request).authenticator.authenticate(
            request.headers.get("Authorization"), at_the_door=self._at_the_door
        )
        scope_of(request).rate_limits.account = principal.account
        principal.require(*self._scopes)
        return principal
