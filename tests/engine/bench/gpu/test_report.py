"""The short table at a run's end."""

from __future__ import annotations

from typing import Any

from serving.engine.bench.gpu.report import has_succeeded, table

FIGURES: dict[str, Any] = {
    "device": {"name": "a GPU"},
    "seconds": 321.4,
    "limits": {"read_gb_per_second": 4100.0, "copy_gb_per_second": 4300.0, "matmul_gflops": 780_000.0},
    "kernels": [
        {"kernel": "norms", "dtype": "bfloat16", "error": 1e-3, "largest_error": 1e-2, "problem": "", "passed": True},
        {"kernel": "gates", "dtype": "float16", "error": 0.5, "largest_error": 2e-3, "problem": "", "passed": False},
    ],
    "models": {
        "8b": {
            "decoding": [
                {"batch": 1, "context_tokens": 512, "tokens_per_second": 200.0, "step_ms": 5.0, "limit_ratio": 0.75},
                {"batch": 1, "context_tokens": 4096, "tokens_per_second": 150.0, "step_ms": 6.7, "limit_ratio": 0.65},
            ],
            "transformers": [{"batch": 1, "context_tokens": 512, "tokens_per_second": 40.0}],
            "host": [
                {
                    "batch": 1,
                    "step_ms": 5.0,
                    "step_ms_without_look_ahead": 6.0,
                    "host_gap_us": 30.0,
                    "host_gap_us_without_look_ahead": 1030.0,
                    "parts_us": {"products": 4500.0, "norms": 100.0, "gates": 0.2},
                }
            ],
        }
    },
    "skipped": [{"part": "1b: start", "reason": "needs about 40 s, and 12 s are left"}],
}


def _line(*words: str) -> str:
    lines = [line for line in table(FIGURES).splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, lines
    return lines[0]


def test_figures_far_below_their_limit_are_marked() -> None:
    assert "65.0%<" in _line("decode", "4096")
    assert "75.0% " in _line("decode", "context  512")


def test_a_kernel_that_differs_is_named() -> None:
    assert "1 of 2 agree" in table(FIGURES)
    assert "5.00e-01" in _line("DIFFERS: gates in float16")


def test_the_engine_is_told_as_a_multiple_of_transformers_where_both_did_the_same() -> None:
    assert "5.0 x Transformers" in _line("decode", "context  512")
    assert "Transformers" not in _line("decode", "4096")


def test_the_hosts_gap_and_the_parts_of_a_step_are_told() -> None:
    line = _line("step ", "the device waits 30 us (1030 without)")
    assert line.endswith("products 4500, norms 100")


def test_what_was_not_measured_is_told_last() -> None:
    assert table(FIGURES).splitlines()[-1] == "NOT MEASURED: 1b: start: needs about 40 s, and 12 s are left"


def test_a_run_succeeds_where_all_kernels_agree_and_a_model_was_measured() -> None:
    right = {"passed": True}
    measured = {"8b": FIGURES["models"]["8b"], "1b": {}}
    assert has_succeeded({"kernels": [right], "models": measured})
    assert not has_succeeded({"kernels": [right, {"passed": False}], "models": measured})
    assert not has_succeeded({"kernels": [right], "models": {"8b": {"decoding": []}, "1b": {}}})
    assert not has_succeeded({"kernels": [], "models": measured})
    assert not has_succeeded({"models": measured})
