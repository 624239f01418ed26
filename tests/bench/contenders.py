"""Who is measured: Footplate, and what a user would run instead."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.bench.places import DRIVERS, MAX_RUNNING, Command, Places

OURS = "footplate"
"""Footplate as it is; its variants' names begin with it."""
HTTP_WORKLOADS = ("w2", "w3", "w4", "w5")
KV_CACHE_MB = 2048

Offline = Callable[[Places], Command]
Serving = Callable[[Places, int], Command]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One engine: how to run it in a process that takes jobs, and how to serve it on a port. Either may be missing.

    `needs` are the files without which it is not installed. Ours has `settings` and no `server`: the whole Footplate is
    started with them (servers.py).
    """

    name: str
    needs: Callable[[Places], list[Path]]
    offline: Offline | None = None
    server: Serving | None = None
    http_workloads: tuple[str, ...] = ()
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def missing(self, places: Places) -> list[Path]:
        """What it needs and is not there."""
        return [path for path in self.needs(places) if not path.exists()]


def _driver(python: Path | str, name: str, *arguments: object, **environment: str) -> Command:
    return Command(arguments=[str(python), str(DRIVERS / name), *map(str, arguments)], environment=environment)


def _footplate(name: str, *http_workloads: str, **settings: str) -> Contender:
    def offline(places: Places) -> Command:
        environment = {
            "FOOTPLATE_HOME": str(places.home),
            "FOOTPLATE_MODEL": str(places.model),
            "FOOTPLATE_KV_CACHE_MB": str(KV_CACHE_MB),
        }
        return _driver(sys.executable, "footplate.py", MAX_RUNNING, **environment, **settings)

    return Contender(
        name=name,
        needs=lambda places: [places.model],
        offline=offline,
        http_workloads=http_workloads,
        settings=settings,
    )


def _vllm_environment(places: Places) -> dict[str, str]:
    preloaded = [*Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"), places.peers / "vllm" / "lib" / "libiomp5.so"]
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_MB // 1024),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{places.num_threads - 1}",
        "LD_PRELOAD": ":".join(str(path) for path in preloaded if path.exists()),
    }


def _vllm(places: Places) -> Command:
    return _driver(places.vllm_python, "vllm_offline.py", places.model, MAX_RUNNING, **_vllm_environment(places))


def _vllm_server(places: Places, port: int) -> Command:
    options = {
        "--model": places.model,
        "--served-model-name": places.model.name,
        "--dtype": "bfloat16",
        "--max-num-seqs": MAX_RUNNING,
        "--max-model-len": 4096,
        "--host": "127.0.0.1",
        "--port": port,
    }
    arguments = [str(places.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--no-enable-prefix-caching"]
    for name, value in options.items():
        arguments += [name, str(value)]
    return Command(arguments=arguments, environment=_vllm_environment(places))


def _llama_server(places: Places, port: int) -> Command:
    options = {
        "-m": places.q4_1,
        "-a": places.model.name,
        "-np": MAX_RUNNING,
        "-c": 65_536,
        "-t": places.num_threads,
        "-tb": places.num_threads,
        "--cache-ram": 0,
        "-fa": "off",
        "--host": "127.0.0.1",
        "--port": port,
    }
    arguments = [str(places.llama_server), "-cb"]
    for name, value in options.items():
        arguments += [name, str(value)]
    return Command(arguments=arguments)


def _openvino(gguf: Callable[[Places], Path]) -> Offline:
    return lambda places: _driver(
        places.openvino_python, "openvino_offline.py", gguf(places), MAX_RUNNING, places.num_threads
    )


CONTENDERS: tuple[Contender, ...] = (
    _footplate(OURS, *HTTP_WORKLOADS),
    _footplate(f"{OURS}-int8", "w2", FOOTPLATE_WEIGHTS="int8"),
    _footplate(f"{OURS}-int4", "w2", FOOTPLATE_WEIGHTS="int4"),
    _footplate(f"{OURS}-w8a8", "w3", FOOTPLATE_WEIGHTS="w8a8"),
    _footplate(f"{OURS}-torch", FOOTPLATE_BACKEND="torch"),
    Contender(
        name="vllm",
        offline=_vllm,
        server=_vllm_server,
        http_workloads=HTTP_WORKLOADS,
        needs=lambda places: [places.model, places.vllm_python],
    ),
    Contender(
        name="openvino-f16",
        offline=_openvino(lambda places: places.f16),
        needs=lambda places: [places.openvino_python, places.f16],
    ),
    Contender(
        name="openvino-q4_1",
        offline=_openvino(lambda places: places.q4_1),
        needs=lambda places: [places.openvino_python, places.q4_1],
    ),
    Contender(
        name="llama.cpp-q4_1",
        server=_llama_server,
        http_workloads=HTTP_WORKLOADS,
        needs=lambda places: [places.llama_server, places.q4_1],
    ),
    Contender(
        name="transformers",
        offline=lambda places: _driver(sys.executable, "transformers_offline.py", places.model, MAX_RUNNING),
        needs=lambda places: [places.model],
    ),
)
"""Footplate and its variants first: with fewer bits a weight, and as it computes where no kernel can be built."""


def chosen(names: Iterable[str] | None) -> tuple[Contender, ...]:
    """Footplate and the peers of these names, or all. Raises ValueError for a name that is none."""
    if names is None:
        return CONTENDERS
    wanted = set(names)
    unknown = wanted - {contender.name for contender in CONTENDERS}
    if unknown:
        known = ", ".join(contender.name for contender in CONTENDERS if contender.name != OURS)
        raise ValueError(f"there is no peer {', '.join(sorted(unknown))}; there are: {known}")
    return tuple(contender for contender in CONTENDERS if contender.name in wanted | {OURS})
