"""Signatures of what webhooks are posted, in the form of Standard Webhooks (https://www.standardwebhooks.com).

A secret is kept nowhere: it is derived from `SECRET_KEY` and a random salt, which is what the database has. So it can
be made again to sign with, whoever reads the database alone can sign nothing, and another salt is another secret. With
another `SECRET_KEY` every secret is another one.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import secrets

from django.utils.crypto import salted_hmac

_PURPOSE = "footplate.webhooks"
_PREFIX = "whsec_"


def new_salt() -> str:
    """What a new secret is derived from."""
    return secrets.token_hex(16)


def secret_of(salt: str) -> str:
    """The secret in the form in which receivers are given it: `whsec_` and 32 bytes in base64."""
    return _PREFIX + base64.b64encode(_key_of(salt)).decode()


def fingerprint_of(salt: str) -> str:
    """What tells a secret from another without telling anything of it."""
    return hashlib.sha256(secret_of(salt).encode()).hexdigest()[:8]


def signed_headers(delivery: str, body: bytes, *, salt: str, at: datetime.datetime) -> dict[str, str]:
    """The headers that say which delivery this is, when it is sent and that `body` is ours. The id is the same for each
    attempt at the `delivery`, so that a receiver can drop what it has had already; the time is the attempt's."""
    # No full stop may be in an id: it parts what is signed.
    message_id = "msg_" + hashlib.sha256(delivery.encode()).hexdigest()[:24]
    timestamp = str(int(at.timestamp()))
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    signature = base64.b64encode(hmac.digest(_key_of(salt), signed, "sha256")).decode()
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signature}"}


def _key_of(salt: str) -> bytes:
    key: bytes = salted_hmac(_PURPOSE, salt, algorithm="sha256").digest()
    return key
