"""What `manage.py loadtest` is told: what is played, against whom, and what is kept of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from serving.config.pools import PoolSettings
from serving.contracts.errors import InvalidValue
from serving.lab.playing.target import Target
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.distributions import Fixed, Uniform
from serving.lab.workloads.workload import RequestClass, Workload
from serving.management.lab_terms import workload_of

MOST_REPEATS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is to be played against whom. `pools` are those of this server that may serve it, empty for another
    server."""

    workload: Workload
    target: Target
    repeats: int
    pools: tuple[str, ...]


def add_arguments(parser: CommandParser) -> None:
    """All that the command is told, but for what it does with the result."""
    parser.add_argument("--workload", metavar="NAME|FILE", help="a saved or ready one, or a JSON file")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="in place of the workload's")
    parser.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="times as much traffic")
    parser.add_argument("--seed", type=int, help="in place of the workload's")
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="runs one after another, each with the next seed"
    )
    parser.add_argument("--url", default=f"http://{settings.HOST}:{settings.PORT}")
    parser.add_argument("--key", help="API key; for this server the first start's, where it wrote one")
    parser.add_argument(
        "--key-of", action="append", default=[], metavar="TENANT=KEY", help="with which a class's tenant sends"
    )
    parser.add_argument("--pool", help="that is to serve; by default the server chooses")
    parser.add_argument("--model", help="by default the pool's, or that of the first")
    parser.add_argument(
        "--prompts",
        choices=("tokens", "text", "chat"),
        default="tokens",
        help="text or chat: for servers that take no token ids, or no ignore_eos",
    )
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="of a request")
    quick = parser.add_argument_group("a workload in a few words, in place of --workload")
    quick.add_argument("--requests", type=int, help="how many; 64 by default")
    quick.add_argument("--concurrency", type=int, default=32, help="clients of a closed loop")
    quick.add_argument("--rate", type=float, help="Poisson arrivals a second instead of a closed loop")
    quick.add_argument("--prompt-tokens", type=int, nargs=2, default=(32, 256), metavar=("LOW", "HIGH"))
    quick.add_argument("--output-tokens", type=int, default=128)


def read_terms(options: dict[str, Any]) -> Terms:
    """What the options say. Raises `InvalidValue`, and `CommandError` where there is no key."""
    repeats = options["repeats"]
    if not 1 <= repeats <= MOST_REPEATS:
        raise InvalidValue("repeats", repeats, f"a number from 1 to {MOST_REPEATS}")
    workload = workload_of(options) if options["workload"] else _quick_workload(options)
    target = _target(options)
    target.check()
    return Terms(workload=workload, target=target, repeats=repeats, pools=_pools_of(target))


def _quick_workload(options: dict[str, Any]) -> Workload:
    low, high = options["prompt_tokens"]
    rate, duration = options["rate"], options["duration"]
    count = options["requests"] or (None if duration else 64)
    workload = Workload(
        name="quick",
        arrivals=ClosedLoop(options["concurrency"]) if rate is None else Poisson(rate),
        classes=(
            RequestClass(name="all", prompt_tokens=Uniform(low, high), output_tokens=Fixed(options["output_tokens"])),
        ),
        num_requests=count,
        duration_seconds=duration,
        seed=1 if options["seed"] is None else options["seed"],
    )
    check_workload(workload)
    return workload


def _target(options: dict[str, Any]) -> Target:
    keys = {}
    for text in options["key_of"]:
        tenant, sign, key = text.partition("=")
        if not sign:
            raise InvalidValue("key-of", tenant[:40], "of the form TENANT=KEY")
        keys[tenant] = key
    prompts, url = options["prompts"], options["url"].rstrip("/")
    is_own = _is_own(url)
    return Target(
        url=url,
        # No other server is told this one's.
        key=options["key"] or (_own_key() if is_own else ""),
        keys=keys,
        model=options["model"] or _model_of(options["pool"]),
        pool=options["pool"] or "",
        prompts=prompts,
        ignore_eos=prompts == "tokens",
        timeout_seconds=options["timeout"],
        is_footplate=is_own,
    )


def _pools_of(target: Target) -> tuple[str, ...]:
    if not target.is_footplate:
        return ()
    pools: dict[str, PoolSettings] = settings.FOOTPLATE_POOLS
    if target.pool:
        return (target.pool,) if target.pool in pools else ()
    return tuple(name for name, pool in pools.items() if pool.model.name == target.model)


def _is_own(url: str) -> bool:
    """Whether an address is this server's, on this machine or where the settings say."""
    own = {str(settings.FOOTPLATE_LAB_URL or "").rstrip("/"), f"http://{settings.HOST}:{settings.PORT}"}
    if url in own:
        return True
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1") and port == settings.PORT


def _model_of(pool: str | None) -> str:
    pools: dict[str, PoolSettings] = settings.FOOTPLATE_POOLS
    return (pools.get(pool or "") or next(iter(pools.values()))).model.name


def _own_key() -> str:
    file = settings.FOOTPLATE_HOME / "first-run.json"
    try:
        return str(json.loads(Path(file).read_text())["api_key"])
    except (OSError, ValueError, KeyError):
        raise CommandError(f"no --key given, and there is none in {file}; see FOOTPLATE_HOME") from None
