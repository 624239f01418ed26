"""What an overload test may be asked to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.contracts.errors import InvalidValue
from serving.lab.experiments.capacity import Capacity
from serving.lab.experiments.overload_plan import Criteria, OverloadPlan, decode_overload_plan
from serving.lab.workloads.arrivals import Steps
from serving.lab.workloads.ready import READY


def a_plan(**changes: Any) -> OverloadPlan:
    return OverloadPlan(workload=READY["chat"], **changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"multiples": ()}, "multiples"),
        ({"multiples": (2.0, 1.0)}, "multiples"),
        ({"multiples": (0.5, 1.0)}, "multiples"),
        ({"multiples": (2.0, 11.0)}, "multiples"),
        ({"multiples": tuple(1 + number / 10 for number in range(7))}, "multiples"),
        ({"stage_seconds": 0.0}, "stage_seconds"),
        ({"stage_seconds": 29.0}, "stage_seconds"),
        ({"capacity_seconds": float("nan")}, "capacity_seconds"),
        ({"criteria": Criteria(min_goodput_ratio=1.1)}, "min_goodput_ratio"),
        ({"criteria": Criteria(max_recovery_seconds=0)}, "max_recovery_seconds"),
        (
            {"capacity": Capacity(saturation_per_second=0, goodput_per_second=0, goodput_rate=None, probes=())},
            "capacity",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        a_plan(**changes).check()
    assert caught.value.param == field


def test_what_is_played_goes_from_calm_over_each_multiple_back_to_calm() -> None:
    plan = a_plan(multiples=(1.0, 1.5, 3.0), stage_seconds=40.0)
    played = plan.workload_at(4.0)
    assert played.arrivals == Steps((2.0, 4.0, 6.0, 12.0, 2.0))
    assert (played.duration_seconds, played.warm_up_seconds, played.num_requests) == (200.0, 0.0, None)


def test_a_plan_survives_json() -> None:
    plan = a_plan(multiples=(1.5, 2.5), criteria=Criteria(min_fairness=0.7))
    assert decode_overload_plan(msgspec.json.decode(msgspec.json.encode(plan))) == plan


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(InvalidValue, match="that of an overload test"):
        decode_overload_plan({"workload": "chat"})
