"""Footplate's engine, as `manage.py runengine` builds it: footplate.py MAX_RUNNING. Its environment says the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from protocol import Generate, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def load() -> Generate:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")
    import django

    django.setup()
    from django.conf import settings

    from serving.engine.bench.loads import greedy_submits, play, tunables_for
    from serving.engine.engine import Engine
    from serving.management.engine_runner import build_runner

    runner = build_runner(settings.FOOTPLATE_POOLS[settings.FOOTPLATE_POOL])
    tunables = tunables_for(int(sys.argv[1]), {})

    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        figures = play(Engine(runner, tunables=tunables), greedy_submits(prompts, output_tokens=output_tokens))
        return {"output_tokens": figures.output_tokens, "ttft_ms": figures.ttft_ms, "itl_ms": figures.itl_ms}

    return generate


if __name__ == "__main__":
    serve(load)
