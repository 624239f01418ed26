"""How an accelerator's memory is shared out: weights, what a step needs, and the rest for keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from serving.engine.kv_cache import MIN_BLOCKS, KVCacheProblem
from serving.engine.plan import StepPlan

DEFAULT_STEP_TOKENS = 8192
"""The largest step for which an accelerator keeps memory, where no setting says otherwise."""
DEFAULT_MEMORY_RATIO = 0.9

_MOST_GRAPHS_BYTES = 2**30
_LARGEST_GRAPHS_SHARE = 0.04
"""What recorded graphs may take beside a step's own memory, which they share: launches of a few thousand kernels, for a
few dozen sizes."""


class MemoryShortage(KVCacheProblem):
    """The accelerator's memory does not do for the model; the message has the numbers and says which settings help."""


class DeviceMemory(Protocol):
    """A device's memory, in bytes; asked by the engine's thread only."""

    @property
    def name(self) -> str:
        """The device, as an operator knows it."""
        ...

    @property
    def total_bytes(self) -> int:
        """What the device has."""
        ...

    def used_bytes(self) -> int:
        """What is in use now, by anyone: this process's tensors, what its libraries took, and others'."""
        ...

    def kept_bytes(self) -> int:
        """What this process keeps for its tensors now, whether they hold it or not."""
        ...

    def held_bytes(self) -> int:
        """What this process's tensors hold now."""
        ...

    def peak_bytes(self) -> int:
        """The most that they held at once since `start_peak`."""
        ...

    def start_peak(self) -> None:
        """Forget what they held before."""
        ...

    def release(self) -> None:
        """Give back what is kept and not held, as far as that can be."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """While it lasts, no other engine on this host takes its turn: what another took meanwhile would look like
        this one's own."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Where a device's memory goes before there is a KV cache, in bytes.

    `others_bytes` are other processes' and the driver's own. `step_bytes` is what the largest step, of `step_tokens`
    tokens, takes beside the weights; `runtime_bytes` is what else that step left in use: libraries, compiled kernels,
    and what is lost between tensors.
    """

    device: str
    total_bytes: int
    others_bytes: int
    weights_bytes: int
    step_bytes: int
    step_tokens: int
    runtime_bytes: int = 0

    @property
    def graphs_bytes(self) -> int:
        """What is kept for recorded graphs."""
        return min(_MOST_GRAPHS_BYTES, int(self.total_bytes * _LARGEST_GRAPHS_SHARE))

    def allowed_bytes(self, ratio: float) -> int:
        """What the engine may use in all: `ratio` of the device, and never what others have."""
        return min(int(self.total_bytes * ratio), self.total_bytes - self.others_bytes)

    def left_bytes(self, ratio: float) -> int:
        """What remains for the KV cache; negative where not even the rest fits."""
        own = self.weights_bytes + self.step_bytes + self.runtime_bytes + self.graphs_bytes
        return self.allowed_bytes(ratio) - own

    def in_words(self, ratio: float) -> str:
        """The account, on one line."""
        return (
            f"{self.device} has {_mib(self.total_bytes)} MiB, of which {_mib(self.others_bytes)} are in use by others; "
            f"gpu_memory_ratio {ratio:g} leaves this engine {_mib(self.allowed_bytes(ratio))}, of which weights take "
            f"{_mib(self.weights_bytes)}, a step of {self.step_tokens:,} tokens {_mib(self.step_bytes)}, libraries "
            f"{_mib(self.runtime_bytes)} and graphs {_mib(self.graphs_bytes)}"
        )


def num_blocks_within(use: MemoryUse, *, ratio: float, block_bytes: int, wanted_bytes: int | None) -> int:
    """Blocks of `block_bytes` for the KV cache: all that is left under `ratio`, or `wanted_bytes` of it.

    Raises `MemoryShortage` where less is left than `wanted_bytes`, or than `MIN_BLOCKS` blocks.
    """
    left_bytes = use.left_bytes(ratio)
    needed_bytes = max(MIN_BLOCKS * block_bytes, wanted_bytes or 0)
    if left_bytes < needed_bytes:
        least = f"kv_cache_mb asks for {_mib(needed_bytes)}"
        if wanted_bytes is None or wanted_bytes < needed_bytes:
            least = f"it needs {_mib(needed_bytes)} at least ({MIN_BLOCKS} blocks of {block_bytes} bytes)"
        raise MemoryShortage(
            f"{use.in_words(ratio)}: {_in_mib(left_bytes)} left for the KV cache, and {least}; {_HELP}"
        )
    return (left_bytes if wanted_bytes is None else wanted_bytes) // block_bytes


def measure_use(
    memory: DeviceMemory,
    *,
    cache_bytes: int,
    plans: Sequence[StepPlan],
    compute: Callable[[Sequence[StepPlan]], object],
) -> MemoryUse:
    """Where the memory goes, once the weights are there and a small KV cache of `cache_bytes`: `compute` is to compute
    `plans`, the largest steps that there may be, as steps will be computed, several in flight where that is how.

    Raises `MemoryShortage` where they do not fit.
    """
    memory.release()
    others_bytes = memory.used_bytes() - memory.kept_bytes()
    held_bytes = memory.held_bytes()
    memory.start_peak()
    step_tokens = max(plan.num_tokens for plan in plans)
    try:
        compute(plans)
    except Exception as error:
        if not is_shortage(error):
            raise
        raise MemoryShortage(
            f"a step of {step_tokens:,} tokens does not fit: {memory.name} has {_mib(memory.total_bytes)} MiB, of "
            f"which {_mib(others_bytes)} are in use by others, and weights take {_mib(held_bytes - cache_bytes)}; "
            f"{_HELP}"
        ) from None
    step_bytes = memory.peak_bytes() - held_bytes
    memory.release()
    return MemoryUse(
        device=memory.name,
        total_bytes=memory.total_bytes,
        others_bytes=others_bytes,
        weights_bytes=held_bytes - cache_bytes,
        step_bytes=step_bytes,
        step_tokens=step_tokens,
        runtime_bytes=max(0, memory.used_bytes() - others_bytes - memory.held_bytes()),
    )


def is_shortage(error: BaseException) -> bool:
    """Whether `error` says that memory is short, as far as its kind tells or its first line."""
    if isinstance(error, MemoryError | MemoryShortage | torch.OutOfMemoryError):
        return True
    first_line = str(error).strip().partition("\n")[0].lower()
    # NVIDIA's libraries say alloc_failed where there is no memory for their own work.
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "no memory for", "status_alloc_failed")
    return any(word in first_line for word in words)


_HELP = (
    "lower max_step_tokens, take weights of fewer bits, raise gpu_memory_ratio, or leave the device to fewer processes"
)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes >> 20:,}"


def _in_mib(num_bytes: int) -> str:
    return f"{_mib(num_bytes)} MiB are" if num_bytes >= 0 else f"{_mib(-num_bytes)} MiB too many are used, none is"
