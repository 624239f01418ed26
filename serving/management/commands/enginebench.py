"""`manage.py enginebench`: what the engine alone does on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from tokenizers import Tokenizer

from serving.config.pools import BACKENDS, DEVICES, DTYPES, PoolSettings
from serving.contracts.presets import PRESETS, preset_changes
from serving.engine.bench.loads import LOADS, QUICK_LOADS, EngineLoad
from serving.management.pools import configured_pool

if TYPE_CHECKING:
    from serving.engine.bench.quality import Quality

_MAX_QUALITY_TOKENS = 2048
_KV_BYTES = {"bfloat16": 2, "float32": 4}


class Command(BaseCommand):
    """Measures the engine without transport, beside the machine's limits, or checks a device's arithmetic."""

    help = "Measure the engine alone, or check that a device computes what the reference computes (--check)."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """What to measure, and on what."""
        parser.add_argument(
            "--workload",
            default="w1",
            choices=(*LOADS, "step"),
            help="w1: 64 requests, 32 at once; w2: one request; step: decode steps at batch 1, 8 and 32",
        )
        parser.add_argument("--repeats", type=int, default=3)
        parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that all works")
        parser.add_argument("--requests", type=int, help="instead of the workload's")
        parser.add_argument("--running", type=int, help="sequences in the batch, instead of the workload's")
        parser.add_argument("--prompt-tokens", type=int, nargs=2, metavar=("LOW", "HIGH"), help="… the workload's")
        parser.add_argument("--output-tokens", type=int, help="… the workload's")
        parser.add_argument("--preset", default="mixed", choices=tuple(PRESETS), help="tunables of w1 and w2")
        parser.add_argument(
            "--pool", default=settings.FOOTPLATE_POOL, help="whose model and settings: one of FOOTPLATE_POOLS"
        )
        parser.add_argument("--device", choices=DEVICES, help="in place of the pool's, as the next two")
        parser.add_argument("--dtype", choices=DTYPES)
        parser.add_argument("--backend", choices=BACKENDS)
        parser.add_argument(
            "--check", action="store_true", help="compare the device with fp32 on the CPU, measure nothing"
        )
        parser.add_argument(
            "--quality", type=Path, metavar="TEXT", help="how far each weight format is from fp32 on this text file"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure, then print."""
        pool = configured_pool(options["pool"])
        for name in ("device", "dtype", "backend"):
            options[name] = options[name] or getattr(pool, name)
        if options["check"]:
            self._check(options["device"], options["backend"], pool.model)
            return
        if options["quality"]:
            self._quality(options, pool.model)
            return
        if options["repeats"] < 1:
            raise CommandError(f"--repeats must be at least 1, not {options['repeats']}")
        load = None if options["workload"] == "step" else _load(options)
        with _only_result_on_stdout():
            figures = _measure(options, load, pool)
        self.stdout.write(json.dumps(figures) if options["json"] else _table(figures))

    def _check(self, device: str, backend: str, model: Path) -> None:
        from serving.engine.models.problem import ModelFolderProblem
        from serving.engine.selfcheck import check_device

        try:
            is_triton = backend == "triton" or (backend == "auto" and device.startswith("cuda"))
            checks = check_device(device, model, backend="triton" if is_triton else "torch")
        except (ModelFolderProblem, ValueError) as problem:
            raise CommandError(str(problem)) from None
        for check in checks:
            self.stdout.write(f"{'agrees ' if check.passed else 'DIFFERS'}  {check.name}: {check.detail}")
        if not all(check.passed for check in checks):
            raise CommandError(f"{device} does not compute what the reference computes")

    def _quality(self, options: dict[str, Any], model: Path) -> None:
        from serving.engine.bench.quality import measure_quality
        from serving.engine.kernels.quantised import WeightFormat
        from serving.engine.models.problem import ModelFolderProblem

        try:
            text = options["quality"].read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise CommandError(f"--quality: {options['quality']} cannot be read as text ({problem})") from None
        if not text:
            raise CommandError(f"--quality: {options['quality']} is empty")
        tokenizer_file = model / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise CommandError(f"--quality: the model has no {tokenizer_file}")
        formats = measure_quality(
            model,
            Tokenizer.from_file(str(tokenizer_file)).encode(text).ids[:_MAX_QUALITY_TOKENS],
            weight_formats=typing.get_args(WeightFormat),
            backend=options["backend"],
            kernels_folder=settings.FOOTPLATE_HOME / "kernels",
        )
        try:
            for quality in formats:
                told = json.dumps(dataclasses.asdict(quality)) if options["json"] else _quality_line(quality)
                self.stdout.write(told)
        except (ModelFolderProblem, ValueError) as problem:
            raise CommandError(str(problem)) from None


def _quality_line(quality: Quality) -> str:
    return (
        f"{quality.weights:>8}, {quality.backend}: the same most probable token at {quality.top1_agreement:.4f} of "
        f"{quality.num_tokens} positions, KL divergence {quality.kl_divergence:.6f} nats"
    )


def _load(options: dict[str, Any]) -> EngineLoad:
    """The workload with what the command line says otherwise."""
    load = (QUICK_LOADS if options["quick"] else LOADS)[options["workload"]]
    wanted = {
        "num_requests": options["requests"],
        "max_running": options["running"],
        "prompt_tokens": options["prompt_tokens"] and tuple(options["prompt_tokens"]),
        "output_tokens": options["output_tokens"],
    }
    load = dataclasses.replace(load, **{name: value for name, value in wanted.items() if value is not None})
    low, high = load.prompt_tokens
    if min(load.num_requests, load.max_running, load.output_tokens, low) < 1 or low > high:
        raise CommandError("each number must be at least 1, and --prompt-tokens LOW HIGH with LOW ≤ HIGH")
    return load


def _measure(options: dict[str, Any], load: EngineLoad | None, pool: PoolSettings) -> dict[str, Any]:
    import torch

    from serving.engine.bench.floors import decoder_cost
    from serving.engine.bench.limits import LimitsProbe
    from serving.engine.bench.running import NUM_STEPS, QUICK_NUM_STEPS, bench_load, bench_steps, warm_up
    from serving.management.engine_runner import build_runner, weights_of

    dtype = options["dtype"]
    runner = build_runner(pool, device=options["device"], dtype=dtype, backend=options["backend"])
    cost = decoder_cost(runner.config, weight_bytes=runner.weight_bytes, kv_bytes=_KV_BYTES[dtype])
    warm_up(runner)
    probe = LimitsProbe(options["device"])
    repeats = 1 if options["quick"] else options["repeats"]
    identity = {
        "workload": options["workload"],
        "model": pool.model.name,
        "device": options["device"],
        "dtype": dtype,
        "weights": weights_of(pool, runner.config, dtype=dtype),
        "backend": runner.backend,
        "threads": torch.get_num_threads(),
        "weight_bytes": cost.weight_bytes,
        "kv_bytes_per_token": cost.kv_bytes_per_token,
    }
    if load is None:
        num_steps = QUICK_NUM_STEPS if options["quick"] else NUM_STEPS
        return identity | bench_steps(runner, cost, probe.measure, repeats=repeats, num_steps=num_steps)
    changes = preset_changes(options["preset"])
    figures = bench_load(runner, load, cost, probe.measure, repeats=repeats, tunables=changes)
    return identity | {"preset": options["preset"], "load": dataclasses.asdict(load)} | figures


@contextlib.contextmanager
def _only_result_on_stdout() -> Iterator[None]:
    """Send to stderr what libraries, and compilers that they start, write to stdout meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _table(figures: dict[str, Any]) -> str:
    limits = f"{figures['bandwidth_gb_per_second']:.1f} GB/s, bf16 products {figures['matmul_gflops']:.0f} GFLOP/s"
    lines = [f"{figures['model']}, {figures['backend']}, {figures['threads']} threads; measured meanwhile: {limits}"]
    if "breakdown_ms" not in figures:
        lines += [
            f"{figures['output_tokens_per_second']:.1f} output tokens/s, {figures['ratio_to_limit']:.2f} of the limit",
            f"TTFT p50 {figures['ttft_ms']['p50']:.0f} ms, ITL p50 {figures['itl_ms']['p50']:.1f} ms, "
            f"p99 {figures['itl_ms']['p99']:.1f} ms, step p50 {figures['step_ms']['p50']:.1f} ms",
        ]
        return "\n".join(lines)
    phases = [name for name in next(iter(figures["breakdown_ms"].values())) if name != "step"]
    lines.append("  ".join(f"{name:>9}" for name in ("batch", "step ms", "floor ms", "ratio", *phases)))
    for batch, parts in figures["breakdown_ms"].items():
        step, floor = figures["step_ms"][batch], figures["floor_ms"][batch]
        numbers = (step, floor, figures["ratio_to_floor"][batch], *(parts[name] for name in phases))
        lines.append("  ".join([f"{batch:>9}", *(f"{number:>9.2f}" for number in numbers)]))
    return "\n".join(lines)
