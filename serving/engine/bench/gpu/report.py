"""A run's figures as a short table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_WORTH_EXPLAINING = 0.7
"""Fractions of a limit below this are marked."""


def table(figures: dict[str, Any]) -> str:
    """The figures that matter, a line each; what was left out, last."""
    return "\n".join([*_head(figures), *_models(figures), *_fused(figures), *_skipped(figures)])


def has_succeeded(figures: dict[str, Any]) -> bool:
    """Whether all kernels were checked and agree, and at least one model could be measured."""
    checks = figures.get("kernels", ())
    agrees = bool(checks) and all(check["passed"] for check in checks)
    return agrees and any(found.get("decoding") for found in figures["models"].values())


def _head(figures: dict[str, Any]) -> Iterator[str]:
    yield f"{figures['device']['name']}; {figures['seconds']:.0f} s in all"
    limits = figures.get("limits")
    if limits:
        yield (
            f"limits: {limits['read_gb_per_second']:.0f} GB/s read, {limits['copy_gb_per_second']:.0f} GB/s copied, "
            f"{limits['matmul_gflops'] / 1e3:.1f} TFLOP/s bf16"
        )
        yield f"< marks what is below {_WORTH_EXPLAINING:.0%} of its limit"
    checks = figures.get("kernels", [])
    wrong = [check for check in checks if not check["passed"]]
    if checks:
        yield f"kernels: {len(checks) - len(wrong)} of {len(checks)} agree with their references"
    for check in wrong:
        why = check["problem"] or f"off by {check['error']:.2e}, at most {check['largest_error']:.0e} is rounding"
        yield f"  DIFFERS: {check['kernel']} in {check['dtype']}: {why}"


def _models(figures: dict[str, Any]) -> Iterator[str]:
    for name, found in figures["models"].items():
        others = {each["batch"]: each["tokens_per_second"] for each in found.get("transformers", ())}
        for each in found.get("decoding", ()):
            line = (
                f"{name:>9} decode  batch {each['batch']:>3}, context {each['context_tokens']:>4}: "
                f"{each['tokens_per_second']:>9.1f} tokens/s, {each['step_ms']:>8.3f} ms, "
                f"{_share(each['limit_ratio'])} of bandwidth"
            )
            rate = others.get(each["batch"])
            same_context = each["context_tokens"] == found["decoding"][0]["context_tokens"]
            yield f"{line}; {each['tokens_per_second'] / rate:.1f} x Transformers" if rate and same_context else line
        for each in found.get("prefill", ()):
            yield (
                f"{name:>9} prefill {each['prompt_tokens']:>5} tokens: {each['tokens_per_second']:>9.1f} tokens/s, "
                f"{each['first_token_ms']:>8.2f} ms, {_share(each['limit_ratio'])} of matrix products"
            )
        for each in found.get("host", ()):
            yield _host_line(name, each)
        for each in found.get("speculation", ()):
            yield (
                f"{name:>9} drafts  batch {each['batch']:>3}: {each['ratio']:.2f} x the tokens/s without, "
                f"{each['accepted_tokens']} of {each['drafted_tokens']} kept"
            )


def _host_line(name: str, each: dict[str, Any]) -> str:
    line = f"{name:>9} step    batch {each['batch']:>3}: {each['step_ms']:.3f} ms, "
    line += f"{each['step_ms_without_look_ahead']:.3f} ms without look-ahead"
    if "parts_us" not in each:
        return line
    parts = ", ".join(f"{part} {time:.0f}" for part, time in each["parts_us"].items() if time >= 1)
    gap, other = each["host_gap_us"], each["host_gap_us_without_look_ahead"]
    return f"{line}; the device waits {gap:.0f} us ({other:.0f} without); us: {parts}"


def _fused(figures: dict[str, Any]) -> Iterator[str]:
    for each in figures.get("fused", ()):
        compiled = "" if each["compiled"] is None else f", torch.compile {each['compiled']:.1f}"
        yield (
            f"{each['work']:>13} of {each['num_rows']:>4} rows, us: Triton {each['triton']:.1f}, "
            f"plain {each['plain']:.1f}{compiled}, at least {each['least']:.1f}"
        )


def _skipped(figures: dict[str, Any]) -> Iterator[str]:
    for each in figures["skipped"]:
        yield f"NOT MEASURED: {each['part']}: {each['reason']}"


def _share(ratio: float) -> str:
    return f"{ratio:>6.1%}{'<' if ratio < _WORTH_EXPLAINING else ' '}"
