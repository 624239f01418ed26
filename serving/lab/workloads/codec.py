"""Workloads as JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.workload import Workload

LARGEST_BYTES: Final = 16 * 2**20
_LONGEST_INDENTED: Final = 2**16


def decode_workload(content: bytes | str | dict[str, Any]) -> Workload:
    """A workload from JSON, or from what JSON holds; raises `InvalidValue` for what is none, or cannot be played."""
    try:
        if isinstance(content, dict):
            workload = msgspec.convert(content, type=Workload)
        else:
            raw = content.encode() if isinstance(content, str) else content
            if len(raw) > LARGEST_BYTES:
                raise InvalidValue("workload", f"{len(raw)} bytes", f"at most {LARGEST_BYTES} bytes of JSON")
            workload = msgspec.json.decode(raw, type=Workload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidValue("workload", "…", f"a workload in JSON: {error}") from None
    check_workload(workload)
    return workload


def workload_to_dict(workload: Workload) -> dict[str, Any]:
    """What JSON holds of it, with lists for tuples."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(workload))
    return content


def workload_to_json(workload: Workload) -> bytes:
    """For people and files: indented, but for what is long, which would not fit an import otherwise."""
    content = msgspec.json.encode(workload)
    return content if len(content) > _LONGEST_INDENTED else msgspec.json.format(content, indent=2)
