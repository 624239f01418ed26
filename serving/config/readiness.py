"""Whether everything that `serve` started is up, as the web process tells."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

_PATIENCE_SECONDS = 60.0
"""After this long without being ready, say what is missing."""
_LONGEST_ANSWER_BYTES = 100_000


class Readiness:
    """Asks the web process at `url` whether every pool is served; owns when to complain next. On the supervisor's
    thread.

    `complain` is told once a minute, in words, what is missing.
    """

    def __init__(
        self, url: str, *, complain: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = urlsplit(url)
        self._complain = complain
        self._clock = clock
        self._complain_at = clock() + _PATIENCE_SECONDS

    def __call__(self) -> bool:
        """Ask once, for at most two seconds."""
        problem = self._ask()
        if problem is not None and self._clock() >= self._complain_at:
            self._complain_at = self._clock() + _PATIENCE_SECONDS
            self._complain(problem)
        return problem is None

    def _ask(self) -> str | None:
        assert self._address.hostname is not None, "the address is our own"
        connection = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            answer = response.read(_LONGEST_ANSWER_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return "the web process does not answer"
        finally:
            connection.close()
        return _missing(answer)


def _missing(answer: str) -> str | None:
    """What the web process gives as reasons: even of one that is ready, since one pool with an engine makes it so."""
    try:
        reasons = [str(reason) for reason in json.loads(answer)["reasons"]]
    except (ValueError, KeyError, TypeError):
        return f"the web process answers {answer[:200]!r}"
    return "; ".join(reasons) or None
