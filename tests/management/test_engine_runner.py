"""What an engine's command makes of its pool's settings."""

from __future__ import annotations

import pytest

from serving.management import engine_runner


@pytest.mark.parametrize(
    ("num_cores", "allowed_threads", "num_engines", "num_threads"),
    [(8, 8, 1, 8), (8, 8, 2, 4), (8, 8, 3, 2), (2, 2, 2, 1), (1, 1, 3, 1), (8, 4, 1, 4), (8, 4, 2, 2)],
)
def test_engines_beside_each_other_divide_the_cores(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, allowed_threads: int, num_engines: int, num_threads: int
) -> None:
    monkeypatch.setattr(engine_runner, "usable_cores", lambda: num_cores)
    monkeypatch.setattr(engine_runner.torch, "get_num_threads", lambda: allowed_threads)  # as OMP_NUM_THREADS says
    assert engine_runner.part_of_cores(num_engines) == num_threads
