"""Telling whose key a request bears. No message, log or exception here ever holds a key."""

from __future__ import annotations

import dataclasses
import datetime
import hmac

from django.utils import timezone

from serving.admission.accounts import Account, Charge
from serving.admission.keys import KeyText, read_bearer
from serving.admission.models import ApiKey
from serving.admission.selectors import key_with_quotas
from serving.contracts.errors import InvalidKey, PermissionDenied
from serving.contracts.quotas import Quotas

_NO_DIGEST = "0" * 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who makes a request, and on whose account."""

    tenant: str
    tenant_id: int
    key_prefix: str
    scopes: frozenset[str]
    account: Account

    def require(self, *scopes: str) -> None:
        """Raise `PermissionDenied` unless the key has one of `scopes`."""
        if self.scopes.isdisjoint(scopes):
            raise PermissionDenied(f"this needs a key with the scope {' or '.join(scopes)}")


@dataclasses.dataclass(frozen=True, slots=True)
class KnownKey:
    """A key that was valid when it was read from the database."""

    principal: Principal
    digest: str = dataclasses.field(repr=False)
    expires_at: datetime.datetime | None


def read_known_key(prefix: str, *, epoch: str | None) -> KnownKey | None:
    """The key with that public prefix, read under `epoch`; None where there is none that is valid now. Blocking."""
    found = key_with_quotas(prefix)
    if found is None:
        return None
    key, tenant_quotas, key_quotas = found
    if not key.is_valid_at(timezone.now()):
        return None
    account = _account_of(key, tenant_quotas=tenant_quotas, key_quotas=key_quotas, epoch=epoch)
    principal = Principal(
        tenant=key.tenant.name,
        tenant_id=key.tenant.pk,
        key_prefix=key.prefix,
        scopes=frozenset(key.scopes),
        account=account,
    )
    return KnownKey(principal, key.digest, key.expires_at)


def presented_key(authorization: str | None) -> KeyText:
    """The key in an `Authorization` header; raises `InvalidKey` where there is none that could be one."""
    presented = read_bearer(authorization)
    if presented is None:
        raise InvalidKey("an API key is needed: Authorization: Bearer fp-…")
    return presented


def principal_if_it_opens(presented: KeyText, known: KnownKey | None) -> Principal:
    """Whose key was presented, `known` being what is known of its prefix; raises `InvalidKey`.

    Digests are compared in constant time, and one is compared where nothing is known as well.
    """
    matches = hmac.compare_digest(presented.digest, _NO_DIGEST if known is None else known.digest)
    if known is None or not matches or is_over(known):
        raise InvalidKey("the API key is unknown, expired or revoked")
    return known.principal


def is_over(known: KnownKey) -> bool:
    """Whether the key has expired since it was read."""
    return known.expires_at is not None and known.expires_at <= timezone.now()


def _account_of(
    key: ApiKey, *, tenant_quotas: tuple[int, Quotas], key_quotas: tuple[int, Quotas], epoch: str | None
) -> Account:
    version, quotas = tenant_quotas
    charges = [Charge(f"tenant:{key.tenant.pk}", quotas, version)]
    version, quotas = key_quotas
    if not quotas.is_empty:
        charges.append(Charge(f"key:{key.prefix}", quotas, version))
    pools = key.tenant.pools
    return Account(
        charges=tuple(charges),
        epoch=epoch,
        weight=key.tenant.weight,
        most_urgent=key.tenant.most_urgent,
        tenant_id=key.tenant.pk,
        key_prefix=key.prefix,
        pools=None if pools is None else tuple(pools),
        tenant_name=key.tenant.name,
        keeps_text=key.tenant.keeps_text,
    )
