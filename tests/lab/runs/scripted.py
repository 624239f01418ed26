"""A server that answers every completion at once, and a short workload for it."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from serving.contracts.ids import PoolName
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Workload

POOL = PoolName("default")
WORKLOAD = Workload(
    name="w",
    arrivals=ClosedLoop(clients=2),
    classes=(RequestClass(name="a", prompt_tokens=Fixed(4), output_tokens=Fixed(2)),),
    num_requests=5,
)


class Handler(BaseHTTPRequestHandler):
    """Answers every completion at once, and notes with which key it was asked."""

    seen: ClassVar[list[str]] = []
    status = 200
    held: threading.Event | None = None

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.seen.append(self.headers["Authorization"])
        if self.held is not None:
            self.held.wait(20)
        usage = {"prompt_tokens": 4, "completion_tokens": body["max_tokens"]}
        events = [{"choices": [{"text": "a"}]}] * body["max_tokens"] + [{"choices": [], "usage": usage}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        content = text.encode() if self.status == 200 else b'{"error": {"code": "broken", "message": "no"}}'
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing."""
