"""What the console costs: `make bench-console`. Prints figures; asserts nothing, since machines differ and are shared.

- milliseconds of the browser's main thread a second, the Live page being open while eight clients are served: in a
  window of a desktop's size, and in one so high that all charts are in sight and drawn;
- megabytes of the page's heap before and after an hour's worth of points, both after collecting garbage;
- processor time of the web process a console and second, twenty of them being connected;
- milliseconds from a step of the engine to the pixel: from the first token that a client gets to the frame in which the
  page has drawn that something runs. The token comes after the step, so a little is missing at that end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import openai
from playwright.sync_api import Browser, CDPSession, Page, WebSocketRoute

from serving.engine.models.importer import import_model
from tests.e2e.browsing import open_console, running_browser
from tests.e2e.console import signed_in, watching
from tests.e2e.load import load
from tests.e2e.stack import REPOSITORY, Stack

_NUM_ROUNDS = 3
_ROUND_SECONDS = 20.0
_NUM_CONSOLES = 20
_NUM_DELAYS = 25
_DESKTOP = (1440, 900)
_ALL_IN_SIGHT = (1440, 2800)
_AN_HOUR_OF_FRAMES = 7200
_FRAMES_AT_ONCE = 200


def main() -> None:
    """Start a stack, measure, print."""
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        stack = Stack.over(Path(name), model).start()
        try:
            with running_browser() as browser:
                page = open_console(browser, stack, size=_DESKTOP).page
                page.wait_for_selector("#badge[data-state=live]")
                delays = [_measure_delay(stack, page) for _ in range(_NUM_DELAYS)]
                low, middle, high = min(delays), statistics.median(delays), max(delays)
                _say(f"step to pixel: median {middle:.0f} ms, from {low:.0f} to {high:.0f}")
                _say(f"browser, idle engine: {_listed(_measure_main_thread(page))} ms of the main thread a second")
                with load(stack, num_clients=8):
                    time.sleep(5)
                    _say(f"browser, under load: {_listed(_measure_main_thread(page))} ms of the main thread a second")
                    page.set_viewport_size({"width": _ALL_IN_SIGHT[0], "height": _ALL_IN_SIGHT[1]})
                    time.sleep(2)
                    _say(f"browser, all charts in sight: {_listed(_measure_main_thread(page))} ms a second")
                page.close()
                before, after = _measure_heap(browser, stack)
                _say(f"browser, heap: {before:.1f} MB, {after:.1f} MB after an hour's worth of points")
            per_console = asyncio.run(_measure_web_cost(stack))
            _say(f"web process, a console: {_listed(per_console)} ms of processor time a second")
        finally:
            stack.stop()


def _measure_main_thread(page: Page) -> list[float]:
    session = page.context.new_cdp_session(page)
    # The thread's own time: what else runs on the machine is not the page's.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    rounds = []
    for _ in range(_NUM_ROUNDS):
        before, began = busy_seconds(), time.monotonic()
        time.sleep(_ROUND_SECONDS)
        rounds.append((busy_seconds() - before) / (time.monotonic() - began) * 1000)
    return rounds


def _measure_heap(browser: Browser, stack: Stack) -> tuple[float, float]:
    """Megabytes before and after; the points are the newest one again and again, each half a second later."""
    console = open_console(browser, stack, size=_ALL_IN_SIGHT)
    page = console.page
    sockets: list[WebSocketRoute] = []
    frames: list[dict[str, Any]] = []

    def watch(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        sockets.append(socket)

        def pass_on(message: str | bytes) -> None:
            decoded = json.loads(message)
            if decoded["type"] == "frame":
                frames.append(decoded)
            socket.send(message)

        server.on_message(pass_on)

    page.route_web_socket("**/console/live/**", watch)
    page.reload()
    page.wait_for_selector("#badge[data-state=live]")
    page.wait_for_timeout(3000)
    session = page.context.new_cdp_session(page)
    before = _heap_megabytes(session)
    frame = frames[-1]
    for place in range(1, _AN_HOUR_OF_FRAMES + 1):
        later = [frame["point"][0] + place / 2, *frame["point"][1:]]
        sockets[-1].send(json.dumps({**frame, "sequence": frame["sequence"] + place, "point": later}))
        if place % _FRAMES_AT_ONCE == 0:
            page.wait_for_timeout(100)
    page.wait_for_timeout(3000)
    after = _heap_megabytes(session)
    page.close()
    return before, after


def _heap_megabytes(session: CDPSession) -> float:
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


async def _measure_web_cost(stack: Stack) -> list[float]:
    """Alternately without and with consoles, so that what else the machine does falls on both."""
    pid = stack.pid_of("runweb")
    rounds = []
    for _ in range(_NUM_ROUNDS):
        alone = await _processor_ms_a_second(pid)
        async with contextlib.AsyncExitStack() as stack_of_sockets:
            client = await stack_of_sockets.enter_async_context(signed_in(stack))
            readers = []
            for _ in range(_NUM_CONSOLES):
                socket = await stack_of_sockets.enter_async_context(watching(client))
                readers.append(asyncio.create_task(socket.wait_for(lambda _: False, seconds=3600)))
            await asyncio.sleep(1)
            watched = await _processor_ms_a_second(pid)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        rounds.append((watched - alone) / _NUM_CONSOLES)
    return rounds


async def _processor_ms_a_second(pid: int) -> float:
    before, began = _processor_seconds(pid), time.monotonic()
    await asyncio.sleep(_ROUND_SECONDS)
    return (_processor_seconds(pid) - before) / (time.monotonic() - began) * 1000


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure_delay(stack: Stack, page: Page) -> float:
    stack.wait_until_idle()
    page.wait_for_function("() => document.querySelector('[data-tile=running] .tile-value').textContent === '0'")
    # Asked in every frame that is drawn; the answer is the clock's time in the frame after the change.
    page.evaluate(
        """() => {
            globalThis.seenAt = null;
            const look = () => {
                const shown = document.querySelector("[data-tile=running] .tile-value").textContent;
                if (shown !== "0") requestAnimationFrame(() => { globalThis.seenAt = Date.now(); });
                else requestAnimationFrame(look);
            };
            look();
        }"""
    )
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0)
    extra: dict[str, Any] = {"ignore_eos": True}
    with client:
        chunks = client.completions.create(
            model=client.models.list().data[0].id, prompt="On and on", max_tokens=400, stream=True, extra_body=extra
        )
        next(iter(chunks))
        stepped_at = time.time()
        page.wait_for_function("() => globalThis.seenAt !== null")
        chunks.close()
    return float(page.evaluate("globalThis.seenAt")) - stepped_at * 1000


def _listed(figures: list[float]) -> str:
    return f"median {statistics.median(figures):.2f}, rounds {', '.join(f'{figure:.2f}' for figure in figures)}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
