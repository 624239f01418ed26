"""`python -m serving.engine.bench.gpu`: check the kernels on this machine's GPU, then measure the engine beside the
GPU's own limits. A JSON file with all figures, which is written anew after each part, and a short table last.

Needs nothing but this checkout and what the engine needs: PyTorch, Triton, msgspec, NumPy, safetensors; beside
Transformers where that is installed. On a machine without a GPU, or with --dry-run, everything is done at a tiny size
on the CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_DEFAULT_SECONDS = 450.0
_DEFAULT_FILE = Path("var/bench-gpu.json")
_MODULE = "serving.engine.bench.gpu"
_NEEDED = ("torch", "triton", "msgspec", "numpy", "safetensors")


def main() -> None:
    """Measure; exit with 1 where a kernel is wrong or no model could be measured."""
    options = _options()
    import torch

    is_dry = options.dry_run or not torch.cuda.is_available()
    if is_dry and not _is_interpreted():
        # Triton reads it when it is imported, before anything here can tell it otherwise.
        os.execvp("env", ["env", "TRITON_INTERPRET=1", sys.executable, "-m", _MODULE, "--dry-run", *sys.argv[1:]])  # noqa: S606, S607
    from serving.engine.bench.gpu.budget import Budget
    from serving.engine.bench.gpu.parts import Bench
    from serving.engine.bench.gpu.report import has_succeeded, table
    from serving.engine.bench.gpu.scale import DRY, WHOLE

    def keep(figures: dict[str, Any]) -> None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            DRY if is_dry else WHOLE,
            device=torch.device("cpu" if is_dry else "cuda"),
            budget=Budget(options.seconds),
            folder=Path(folder),
            keep=keep,
        )
        bench.run()
    sys.stdout.write(f"{table(bench.figures)}\nall figures: {options.json}\n")
    if not has_succeeded(bench.figures):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description="Measure the engine on a GPU.")
    parser.add_argument("--json", type=Path, default=_DEFAULT_FILE, help=f"where all figures go ({_DEFAULT_FILE})")
    parser.add_argument(
        "--seconds", type=float, default=_DEFAULT_SECONDS, help="begin nothing that would end later than this"
    )
    parser.add_argument("--dry-run", action="store_true", help="at a tiny size on the CPU, to see that all works")
    return parser.parse_args()


def _is_interpreted() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)


if __name__ == "__main__":
    try:
        main()
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        sys.exit(f"{missing.name} is not installed; needed are {', '.join(_NEEDED)}")
