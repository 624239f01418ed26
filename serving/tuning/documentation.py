"""The tunables as a table for the README, from their one definition."""

from __future__ import annotations

from serving.contracts.tunables import TunableSpec, describe


def tunables_table() -> str:
    """A Markdown table: name, default with unit, bounds, when a change takes effect, meaning."""
    head = ["| tunable | default | bounds | acts | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_row, describe())])


def _row(spec: TunableSpec) -> str:
    default = f"{spec.default:g}" if spec.kind == "number" else str(spec.default) or "empty"
    cells = (f"`{spec.name}`", f"{default} {spec.unit}".strip(), spec.bounds, spec.effect, spec.help)
    return f"| {' | '.join(cells)} |"
