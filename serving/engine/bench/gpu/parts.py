"""What a run measures, part by part, each within what is left of the time."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from serving.engine.bench.gpu.breakdown import Watch, break_down
from serving.engine.bench.gpu.budget import Budget
from serving.engine.bench.gpu.checks import check_kernels
from serving.engine.bench.gpu.fusing import measure_fusing, measure_products
from serving.engine.bench.gpu.limits import as_limits, measure_limits
from serving.engine.bench.gpu.scale import DTYPES, Scale
from serving.engine.bench.gpu.shapes import MadeUpWeights, WeightKind, write_shape
from serving.engine.bench.limits import Limits
from serving.engine.models.config import read_config

if TYPE_CHECKING:
    from serving.engine.bench.floors import DecoderCost
    from serving.engine.model_runner import ModelRunner

_log = logging.getLogger(__name__)
_MEMORY_RATIO = 0.85
_PROFILED_STEPS = 10


class Bench:
    """Owns the figures of one run and the model that is being measured; on the thread that measures."""

    def __init__(
        self,
        scale: Scale,
        *,
        device: torch.device,
        budget: Budget,
        folder: Path,
        keep: Callable[[dict[str, Any]], object] = lambda figures: None,
    ) -> None:
        """`folder` is for models' configurations. `keep` is handed the figures before each part and at the end: a run
        that is broken off, or that a broken kernel takes with it, leaves what it knows."""
        self._scale = scale
        self._device = device
        self._budget = budget
        self._folder = folder
        self._keep = keep
        self._limits: Limits | None = None
        self.figures: dict[str, Any] = {"device": _describe(device), "models": {}}
        """What is known so far; every part adds its own."""

    def run(self) -> None:
        """Measure what the budget allows, what matters most first."""
        self._spend("limits", 10, self._measure_limits)
        self._spend("kernels", 75, self._check_kernels)
        for name in self._scale.models:
            self._measure_model(name)
        for kind in ("int4", "fp8"):
            self._measure_quantised(kind)
        for name in self._scale.models:
            self._spend(f"{name}: Transformers", 30, partial(self._measure_transformers, name))
        self._spend("fused kernels", 40, self._measure_fusing)
        self._tell()

    def _tell(self) -> None:
        self.figures["skipped"] = [dataclasses.asdict(each) for each in self._budget.skipped]
        self.figures["seconds"] = round(self._budget.spent_seconds, 1)
        self._keep(self.figures)

    def _spend(self, part: str, seconds: float, work: Callable[[], Any]) -> Any:
        self._tell()
        _log.info("%.0f s: %s", self._budget.spent_seconds, part)
        return self._budget.spend(part, seconds, work)

    def _measure_limits(self) -> None:
        scale = self._scale
        figures = measure_limits(self._device, read_bytes=scale.read_bytes, matmul_size=scale.matmul_size)
        self.figures["limits"] = figures
        self._limits = as_limits(figures)

    def _check_kernels(self) -> None:
        config = read_config(write_shape(self._scale.models[0], self._folder))
        self.figures["kernels"] = [
            dataclasses.asdict(check) | {"passed": check.passed}
            for check in check_kernels(config, self._device, self._scale.check_dtypes)
        ]

    def _measure_model(self, name: str) -> None:
        self.figures["models"][name] = {}
        runner = self._spend(f"{name}: start", 40, partial(self._start, name, "plain"))
        if runner is not None:
            self._measure_steps(runner, name)
        del runner
        self._free()

    def _measure_quantised(self, kind: WeightKind) -> None:
        name = f"{self._scale.quantised_model} {kind}"
        self.figures["models"][name] = {}
        runner = self._spend(f"{name}: start", 40, partial(self._start, self._scale.quantised_model, kind))
        if runner is not None:
            self._measure_decoding(runner, name, self._scale.few_batches, self._scale.contexts[:1])
        del runner
        self._free()

    def _measure_steps(self, runner: ModelRunner, name: str) -> None:
        self.figures["models"][name]["num_blocks"] = runner.num_blocks
        self._measure_decoding(runner, name, self._scale.batches, self._scale.contexts)
        self._measure_prompts(runner, name)
        self._measure_gaps(runner, name)
        if name == self._scale.quantised_model:
            self._spend(f"{name}: speculation", 15, partial(self._measure_speculation, runner, name))

    def _start(self, name: str, kind: WeightKind) -> ModelRunner:
        from serving.engine.model_runner import ModelRunner  # what it needs is more than kernels need

        scale = self._scale
        return ModelRunner(
            write_shape(name, self._folder),
            device=str(self._device),
            dtype=scale.dtype,
            backend="triton",
            kv_cache_bytes=scale.kv_cache_bytes,
            gpu_memory_ratio=_MEMORY_RATIO,
            max_graph_rows=scale.max_graph_rows,
            looks_ahead=True,
            load=MadeUpWeights(kind),
        )

    def _measure_decoding(
        self, runner: ModelRunner, name: str, batches: tuple[int, ...], contexts: tuple[int, ...]
    ) -> None:
        found = self.figures["models"][name]["decoding"] = []
        for context in contexts:
            for batch in batches:
                measured = self._spend(
                    f"{name}: decoding, batch {batch}, context {context}",
                    3 + batch * context / self._scale.prompt_tokens_per_second,
                    partial(self._decode, runner, batch, context, num_steps=self._scale.num_steps),
                )
                if measured is not None:
                    found.append(dataclasses.asdict(measured))

    def _measure_prompts(self, runner: ModelRunner, name: str) -> None:
        from serving.engine.bench.gpu.steps import measure_prefill

        found = self.figures["models"][name]["prefill"] = []
        for size in self._scale.prompts:
            measured = self._spend(
                f"{name}: a prompt of {size}",
                2 + 4 * size / self._scale.prompt_tokens_per_second,
                partial(measure_prefill, runner, self._cost(runner), self._known_limits, prompt_tokens=size),
            )
            if measured is not None:
                found.append(dataclasses.asdict(measured))

    def _measure_gaps(self, runner: ModelRunner, name: str) -> None:
        found = self.figures["models"][name]["host"] = []
        context = self._scale.contexts[0]
        for batch in self._scale.few_batches:
            measured = self._spend(
                f"{name}: where a step's time goes, batch {batch}",
                8 + 3 * batch * context / self._scale.prompt_tokens_per_second,
                partial(self._host_gap, runner, batch, context),
            )
            if measured is not None:
                found.append(measured)

    def _decode(self, runner: ModelRunner, batch: int, context: int, **changes: Any) -> Any:
        from serving.engine.bench.gpu.steps import measure_decoding

        return measure_decoding(
            runner, self._cost(runner), self._known_limits, batch=batch, context_tokens=context, **changes
        )

    def _host_gap(self, runner: ModelRunner, batch: int, context: int) -> dict[str, Any]:
        """A step with look-ahead and without, and what the device does in one. The host's gap is what of a step the
        device does nothing: the step unwatched, less the work that was seen in a watched one."""
        num_steps = self._scale.num_steps
        ahead = self._decode(runner, batch, context, num_steps=num_steps)
        behind = self._decode(runner, batch, context, num_steps=num_steps, looks_ahead=False)
        about: dict[str, Any] = {"batch": batch, "context_tokens": context}
        about |= {"step_ms": ahead.step_ms, "step_ms_without_look_ahead": behind.step_ms}
        if self._device.type != "cuda":
            return about
        watch = Watch()
        self._decode(runner, batch, context, num_steps=_PROFILED_STEPS, during=watch)
        seen = break_down(watch.work, num_steps=_PROFILED_STEPS)
        return about | {
            "device_busy_us": seen.busy,
            "host_gap_us": round(ahead.step_ms * 1e3 - seen.busy, 1),
            "host_gap_us_without_look_ahead": round(behind.step_ms * 1e3 - seen.busy, 1),
            "parts_us": seen.parts,
        }

    def _measure_speculation(self, runner: ModelRunner, name: str) -> None:
        from serving.engine.bench.gpu.steps import measure_speculation

        scale = self._scale
        self.figures["models"][name]["speculation"] = [
            measure_speculation(
                runner, batch=batch, context_tokens=scale.contexts[0], output_tokens=scale.speculation_tokens
            )
            for batch in scale.few_batches[:2]
        ]

    def _measure_transformers(self, name: str) -> None:
        from serving.engine.bench.gpu.transformers_loop import GenerateLoop

        scale = self._scale
        loop = GenerateLoop(name, device=self._device, dtype=DTYPES[scale.dtype])
        context = scale.contexts[0]
        self.figures["models"][name]["transformers"] = [
            {
                "batch": batch,
                "context_tokens": context,
                "tokens_per_second": round(loop.tokens_per_second(batch=batch, context_tokens=context), 1),
            }
            for batch in (scale.few_batches[0], scale.few_batches[-1])
        ]
        del loop
        self._free()

    def _measure_fusing(self) -> None:
        config = read_config(write_shape(self._scale.quantised_model, self._folder))
        bandwidth = self._known_limits.bandwidth_gb_per_second * 1e9
        dtype = self._scale.check_dtypes[0]
        found = []
        for num_rows in (self._scale.few_batches[0], self._scale.prompts[-1]):
            found += measure_fusing(config, self._device, dtype, num_rows=num_rows, bandwidth=bandwidth)
        for num_rows in self._scale.batches:
            found += measure_products(config, self._device, dtype, num_rows=num_rows, bandwidth=bandwidth)
        self.figures["fused"] = [dataclasses.asdict(each) for each in found]

    @property
    def _known_limits(self) -> Limits:
        if self._limits is None:
            raise RuntimeError("the device's limits were not measured")
        return self._limits

    def _cost(self, runner: ModelRunner) -> DecoderCost:
        from serving.engine.bench.floors import decoder_cost

        kv_bytes = DTYPES[self._scale.dtype].itemsize
        return decoder_cost(runner.config, weight_bytes=runner.weight_bytes, kv_bytes=kv_bytes)

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            # After an illegal access all that asks the device fails; the next part says so.
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


def _describe(device: torch.device) -> dict[str, Any]:
    told: dict[str, Any] = {"name": "CPU, by Triton's interpreter", "torch": torch.__version__}
    if device.type != "cuda":
        return told
    properties = torch.cuda.get_device_properties(device)
    return told | {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "processors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
