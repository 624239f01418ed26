"""Making keys and telling whose they are. No message, log or exception here ever holds a key."""

from __future__ import annotations

import dataclasses
import datetime
import hmac
from collections.abc import Iterable

from channels.db import database_sync_to_async
from django.db import IntegrityError, transaction
from django.utils import timezone

from serving.admission.keys import SCOPES, KeyText, make_key, read_bearer
from serving.admission.models import ApiKey, Tenant
from serving.contracts.errors import InvalidKey, InvalidValue, PermissionDenied

_NO_DIGEST = "0" * 64
_PREFIX_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request."""

    tenant: str
    key_prefix: str
    scopes: frozenset[str]

    def require(self, *scopes: str) -> None:
        """Raise `PermissionDenied` unless the key has one of `scopes`."""
        if self.scopes.isdisjoint(scopes):
            raise PermissionDenied(f"this needs a key with the scope {' or '.join(scopes)}")


def create_key(
    tenant: str, *, label: str = "", scopes: Iterable[str] = ("generate",), expires_at: datetime.datetime | None = None
) -> KeyText:
    """Make a key for the tenant of that name, who is made as well where there is none.

    Only its digest is stored: what this returns is the one chance to show it. Raises `InvalidValue` for an unknown
    scope, none at all, or an empty name.
    """
    wanted = tuple(dict.fromkeys(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise InvalidValue("scopes", list(wanted), "some of " + ", ".join(SCOPES))
    if not tenant.strip() or len(tenant) > 100:
        raise InvalidValue("tenant", tenant, "a name of 1 to 100 characters")
    owner, _ = Tenant.objects.get_or_create(name=tenant)
    for _ in range(_PREFIX_ATTEMPTS):
        key = make_key()
        try:
            with transaction.atomic():
                ApiKey.objects.create(
                    tenant=owner,
                    label=label,
                    prefix=key.prefix,
                    digest=key.digest,
                    scopes=list(wanted),
                    expires_at=expires_at,
                )
        except IntegrityError:
            continue  # the prefix was taken
        return key
    raise AssertionError("no free key prefix: the system's randomness is broken")


def revoke_key(prefix: str) -> bool:
    """End a key for good; False where there is no such key, or it was ended before."""
    return ApiKey.objects.filter(prefix=prefix, revoked_at=None).update(revoked_at=timezone.now()) == 1


def find_principal(authorization: str | None) -> Principal:
    """Whose key an `Authorization` header bears; raises `InvalidKey`. Reads the database.

    The key is looked up by its public part, and digests are compared in constant time.
    """
    presented = read_bearer(authorization)
    if presented is None:
        raise InvalidKey("an API key is needed: Authorization: Bearer fp-…")
    stored = ApiKey.objects.select_related("tenant").filter(prefix=presented.prefix).first()
    matches = hmac.compare_digest(presented.digest, stored.digest if stored is not None else _NO_DIGEST)
    if stored is None or not matches or not stored.is_valid_at(timezone.now()):
        raise InvalidKey("the API key is unknown, expired or revoked")
    return Principal(tenant=stored.tenant.name, key_prefix=stored.prefix, scopes=frozenset(stored.scopes))


async def authenticate(authorization: str | None) -> Principal:
    """`find_principal` on a thread, whose database connection is given back before this returns."""
    principal: Principal = await database_sync_to_async(find_principal, thread_sensitive=False)(authorization)
    return principal
