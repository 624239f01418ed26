"""From which pages a websocket may be opened: a browser sends the cookie with anyone's handshake."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.origin import is_own_origin
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import Page


def scope(*origins: str, host: str = "localhost:8000", **more: Any) -> dict[str, Any]:
    headers = [(b"host", host.encode()), *((b"origin", origin.encode()) for origin in origins)]
    forwarded = more.pop("forwarded", None)
    if forwarded is not None:
        headers.append((b"x-forwarded-proto", forwarded.encode()))
    return {"type": "websocket", "path": "/console/live/default", "query_string": b"\xff", "headers": headers, **more}


FOREIGN = [
    (),
    ("null",),
    ("",),
    ("https://evil.example",),
    ("https://localhost:8000",),
    ("http://localhost",),
    ("http://localhost:8001",),
    ("http://localhost:80000",),
    ("http://LOCALHOST:8000",),
    ("HTTP://localhost:8000",),
    ("http://localhost:8000/",),
    (" http://localhost:8000",),
    ("http://localhost:8000.evil.example",),
    ("http://evil.example/localhost:8000",),
    ("http://127.0.0.1:8000",),
    ("ws://localhost:8000",),
    ("http://[",),
    ("http://localhost:8000", "http://localhost:8000"),
    ("http://localhost:8000", "https://evil.example"),
    ("http://localhost:8000, http://localhost:8000",),
]


def test_exactly_our_own_origin_is_ours() -> None:
    assert is_own_origin(scope("http://localhost:8000"))
    assert is_own_origin(scope("http://[::1]:8000", host="[::1]:8000"))


@pytest.mark.parametrize("origins", FOREIGN)
def test_every_other_origin_is_foreign(origins: tuple[str, ...]) -> None:
    assert not is_own_origin(scope(*origins))


def test_a_host_that_is_not_ours_makes_no_origin_ours() -> None:
    assert not is_own_origin(scope("http://evil.example", host="evil.example"))
    assert not is_own_origin(scope("http://local host", host="local host"))


def test_behind_tls_the_scheme_is_the_proxys_word(settings: Any) -> None:
    assert not is_own_origin(scope("https://localhost:8000", forwarded="https"))
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert is_own_origin(scope("https://localhost:8000", forwarded="https"))
    assert not is_own_origin(scope("http://localhost:8000", forwarded="https"))
    assert is_own_origin(scope("http://localhost:8000", forwarded="http"))
    assert is_own_origin(scope("http://localhost:8000"))


def test_a_server_that_speaks_tls_itself_is_secure() -> None:
    assert is_own_origin(scope("https://localhost:8000", scheme="wss"))
    assert not is_own_origin(scope("http://localhost:8000", scheme="wss"))


def test_trusted_origins_are_djangos(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://console.example", "https://*.wild.example:8443"]
    assert is_own_origin(scope("https://console.example"))
    assert is_own_origin(scope("https://a.wild.example:8443"))
    for origin in (
        "http://console.example",
        "https://console.example:8443",
        "https://a.wild.example",
        "http://a.wild.example:8443",
        "https://evilwild.example:8443",
        "https://*.wild.example.evil:8443",
    ):
        assert not is_own_origin(scope(origin))


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://localhost:8001"])
async def test_a_foreign_pages_handshake_is_refused_in_spite_of_the_cookie(page: Page, origin: str | None) -> None:
    headers = [] if origin is None else [(b"origin", origin.encode())]
    assert not await page.connect(headers=headers)
    await page.ended()
    assert page.texts == []


@pytest.mark.parametrize(
    "path", ["/", "/console/", "/console/live", "/console/live/", "/console/live/a/b", "/v1/completions"]
)
async def test_there_are_no_other_websockets(
    make_page: OpenPage, operator: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = make_page(operator, path=path)
    assert not await page.connect()
    await page.ended()
    assert caplog.text == ""
