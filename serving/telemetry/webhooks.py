"""Posting JSON to addresses that operators named: only to hosts that the machine's own settings allow."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Collection, Mapping
from typing import Never
from urllib.parse import urlsplit

from serving.contracts.errors import InvalidValue

LONGEST_URL = 500
_SECONDS, _LONGEST_SECONDS = 3.0, 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class WebhookFailed(Exception):
    """It was not delivered; the message says why, in a line."""


def check_url(url: str, *, allowed_hosts: Collection[str]) -> None:
    """Raise `InvalidValue` for an address that may not be posted to.

    `allowed_hosts` are `host` (any port) or `host:port`. Plain HTTP goes to this machine alone.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        _refuse(url, "an address such as https://alerts.example/hook")
    host = _host_of(parts.netloc, port)
    if len(url) > LONGEST_URL or parts.scheme not in ("http", "https") or not host or any(map(_is_odd, url)):
        _refuse(url, f"an https address of at most {LONGEST_URL} characters")
    if parts.username is not None or parts.password is not None:
        _refuse("…", "an address without a name or password in it")
    if parts.scheme == "http" and host not in _LOOPBACK:
        _refuse(url, "an https address; plain http goes to this machine alone")
    if not allowed_hosts:
        _refuse(url, "empty, as FOOTPLATE_WEBHOOK_HOSTS allows no host")
    effective = port or (443 if parts.scheme == "https" else 80)
    if not {host, f"{host}:{effective}"} & {allowed.lower() for allowed in allowed_hosts}:
        _refuse(url, "at one of the hosts of FOOTPLATE_WEBHOOK_HOSTS: " + ", ".join(sorted(allowed_hosts)))


def post_json(url: str, body: bytes, *, headers: Mapping[str, str], allowed_hosts: Collection[str]) -> None:
    """Post `body`, which is JSON, with these headers beside the usual ones. Blocking, 3 s at most a step and 10 s for
    the answer. Follows no redirection, which could lead anywhere, and uses no proxy.

    Raises `WebhookFailed` where it is not taken with a 2xx.
    """
    try:
        check_url(url, allowed_hosts=allowed_hosts)
    except InvalidValue as error:
        # Who reads why may be nobody who may see the address: it often is a secret by itself.
        raise WebhookFailed(f"its address must be {error.bounds}"[:300]) from None
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_SECONDS)
    # An answer that comes byte by byte is in time at every step: this ends it.
    patience = threading.Timer(_LONGEST_SECONDS, _break_off, (connection,))
    patience.start()
    try:
        usual = {"content-type": "application/json", "user-agent": "footplate"}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, {**usual, **headers})
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise WebhookFailed(f"it cannot be reached: {_in_words(error)}"[:300]) from None
    finally:
        patience.cancel()
        connection.close()
    if not 200 <= status < 300:
        raise WebhookFailed(f"it answered {status}")


def _in_words(error: Exception) -> str:
    """What an operating system or a library says of it; its kind, where that says nothing."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _break_off(connection: http.client.HTTPConnection) -> None:
    # It may just have come to its end, or not have begun.
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _host_of(netloc: str, port: int | None) -> str:
    host = netloc.rpartition("@")[2].lower()
    return host.removesuffix(f":{port}") if port is not None else host.rstrip(":")


def _is_odd(character: str) -> bool:
    return not "!" <= character <= "~"


def _refuse(url: str, bounds: str) -> Never:
    raise InvalidValue("webhook_url", url, bounds)
