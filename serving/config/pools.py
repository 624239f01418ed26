"""The capacity pools of an installation: what the engines of each are started with."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from serving.config.env import Environment, EnvironmentProblem

DEVICES = ("cpu", "cuda")
DTYPES = ("bfloat16", "float32")
BACKENDS = ("auto", "torch", "cpu", "triton")
WEIGHTS = ("bfloat16", "int8", "int4", "w8a8")

_POOLS = "FOOTPLATE_POOLS"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What is fixed when an engine of the pool starts; what changes live is a tunable.

    `model` is the model's folder, whose name is the model's name in the API. `backend` is what computes: `cpu` the C++
    kernels on a CPU, `triton` Triton's kernels on a GPU, `torch` PyTorch alone, `auto` the first that can be had.
    `weights` says how they are kept: `bfloat16` as the folder has them, quantised or not; fewer bits are read faster,
    and are less exact. `kv_cache_mb` (MiB) bounds what all sequences of an engine together may hold; 0 is 1024 on a
    CPU, and on an accelerator all that is left. `threads` are those of the engine's arithmetic, 0 as many as it finds
    cores for. `gpu_memory_ratio` is the share of an accelerator's memory that an engine may use in all.
    `max_step_tokens` is the largest step for which memory is kept, and bounds the tunable `max_batch_tokens`; 0 is 8192
    on an accelerator, and no bound on a CPU. `max_graph_rows` is the most sequences of a decode step that Triton's
    backend records and replays; 0 records none.
    """

    name: str
    model: Path
    device: str = "cpu"
    dtype: str = "bfloat16"
    backend: str = "auto"
    weights: str = "bfloat16"
    kv_cache_mb: int = 0
    threads: int = 0
    gpu_memory_ratio: float = 0.9
    max_step_tokens: int = 0
    max_graph_rows: int = 256


_OPTIONS = tuple(field.name for field in dataclasses.fields(PoolSettings) if field.name != "name")


def read_pools(environment: Environment, *, default_model: Path) -> dict[str, PoolSettings]:
    """The pools by name, in the order of `FOOTPLATE_POOLS`; without that variable one, called `FOOTPLATE_POOL`.

    What a pool leaves open is as the variable of that name says: `FOOTPLATE_MODEL` for `model`, and so on. Raises
    `EnvironmentProblem` for what cannot be used.
    """
    built_in = PoolSettings(name="default", model=default_model)
    common = _read_options(environment, built_in, called=lambda option: f"FOOTPLATE_{option.upper()}")
    listed = environment.text(_POOLS, "")
    if not listed:
        name = environment.name("FOOTPLATE_POOL", common.name)
        return {name: dataclasses.replace(common, name=name)}
    pools: dict[str, PoolSettings] = {}
    for name, *words in _split(listed):
        pool = _read_pool(name, words, common)
        _check_beside(pool, pools)
        pools[pool.name] = pool
    if not pools:
        raise EnvironmentProblem(_POOLS, listed, "pools separated by ';', each a name and words OPTION=VALUE")
    return pools


def read_own_pool(environment: Environment, pools: dict[str, PoolSettings]) -> str:
    """The name of the pool that an engine of this process joins: `FOOTPLATE_POOL`, by default the first.

    Raises `EnvironmentProblem` where it is none of `pools`.
    """
    return environment.choice("FOOTPLATE_POOL", next(iter(pools)), tuple(pools))


def _split(listed: str) -> Iterator[list[str]]:
    """The words of each pool, as a shell splits them: quotes protect spaces and `;`."""
    lexer = shlex.shlex(listed, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.strip(";") or not word:
                words.append(word)
            elif words:
                yield words
                words = []
    except ValueError as error:
        raise EnvironmentProblem(_POOLS, listed, f"words as a shell splits them ({error})") from None
    if words:
        yield words


def _read_pool(name: str, words: list[str], common: PoolSettings) -> PoolSettings:
    called = f"{_POOLS}: the name of a pool (';' separates them)"
    name = Environment({called: name}).name(called, "")
    given: dict[str, str] = {}
    for word in words:
        option, sign, value = word.partition("=")
        if not sign or option not in _OPTIONS or _called(option, name) in given:
            wanted = f"OPTION=VALUE, each OPTION once and one of {', '.join(_OPTIONS)}"
            raise EnvironmentProblem(f"{_POOLS}: what follows the name of pool {name}", word, wanted)
        given[_called(option, name)] = value
    common = dataclasses.replace(common, name=name)
    return _read_options(Environment(given), common, called=lambda option: _called(option, name))


def _called(option: str, pool: str) -> str:
    return f"{_POOLS}: {option} of pool {pool}"


def _read_options(environment: Environment, defaults: PoolSettings, *, called: Callable[[str], str]) -> PoolSettings:
    """`defaults` with what `environment` says otherwise, where `called` gives the variable of each option."""
    return PoolSettings(
        name=defaults.name,
        model=environment.folder(called("model"), defaults.model),
        device=environment.choice(called("device"), defaults.device, DEVICES),
        dtype=environment.choice(called("dtype"), defaults.dtype, DTYPES),
        backend=environment.choice(called("backend"), defaults.backend, BACKENDS),
        weights=environment.choice(called("weights"), defaults.weights, WEIGHTS),
        kv_cache_mb=environment.integer(called("kv_cache_mb"), defaults.kv_cache_mb, low=0, high=10_000_000),
        threads=environment.integer(called("threads"), defaults.threads, low=0, high=1024),
        gpu_memory_ratio=environment.number(called("gpu_memory_ratio"), defaults.gpu_memory_ratio, low=0.05, high=0.99),
        max_graph_rows=environment.integer(called("max_graph_rows"), defaults.max_graph_rows, low=0, high=1024),
        max_step_tokens=_read_step_tokens(environment, called("max_step_tokens"), defaults.max_step_tokens),
    )


def _read_step_tokens(environment: Environment, name: str, default: int) -> int:
    """Nought, or as the tunable `max_batch_tokens` may be."""
    if environment.text(name, str(default)) == "0":
        return 0
    return environment.integer(name, default, low=16, high=65_536)


def _check_beside(pool: PoolSettings, others: dict[str, PoolSettings]) -> None:
    if pool.name in others:
        raise EnvironmentProblem(f"{_POOLS}: the name of a pool", pool.name, "one that no other pool has")
    for other in others.values():
        # A model is known by its name: clients ask for it, and what a pool's tokens mean goes by it.
        if other.model.name == pool.model.name and other.model.resolve() != pool.model.resolve():
            wanted = f"the folder of pool {other.name} ({other.model}), or one of another name"
            raise EnvironmentProblem(_called("model", pool.name), str(pool.model), wanted)
