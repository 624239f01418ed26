"""The board in docker/ asks for what is really told, and adds up what may be added up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables, encode
from serving.contracts.tunables import Tunables
from serving.telemetry.exposition import Exposition
from serving.telemetry.request_metrics import RequestMetrics
from tests.telemetry.actions import beat
from tests.telemetry.conftest import POOL, snapshot

DOCKER = Path(__file__).resolve().parents[2] / "docker"
BOARD: dict[str, Any] = json.loads((DOCKER / "grafana" / "boards" / "footplate.json").read_text())
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]

_NAME = re.compile(r"\b((?:footplate|process)_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
_LABEL = re.compile(r"([a-z]+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\bby\s*\(([^)]*)\)")
_FROM_PROMETHEUS = {"job", "instance"}


def expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in BOARD["annotations"]["list"] if "expr" in each)


EXPRESSIONS = sorted(set(expressions()))


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression asks for."""
    return {name for name, _ in _NAME.findall(expression)}


async def told(redis: Redis) -> dict[str, tuple[Metric, set[str]]]:
    """Each sample's name: its family, and the labels that it may have."""
    device = {"accelerator_ratio": 0.5, "accelerator_memory_bytes": 1, "accelerator_power_watts": 1.0}
    device |= {"accelerator_power_limit_watts": 1.0, "accelerator_celsius": 1, "accelerator_clock_mhz": 1}
    await beat(redis, snapshot("a", **device))
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, Tunables())))
    requests = RequestMetrics({POOL: "tiny"})
    requests.rejected("not_found")
    families = await Exposition(redis, requests=requests, models={PoolName(POOL): "tiny"}).collect(vllm_names=False)
    found: dict[str, tuple[Metric, set[str]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, (family, set()))[1].update(sample.labels)
    return found


async def test_every_expression_asks_for_metrics_and_labels_that_there_are(redis: Redis) -> None:
    found = await told(redis)
    asked = set()
    for expression in EXPRESSIONS:
        labels: set[str] = set()
        for name, matchers in _NAME.findall(expression):
            assert name in found, f"{name} in {expression}"
            asked.add(name)
            labels |= found[name][1]
            assert {*_LABEL.findall(matchers)} <= found[name][1] | _FROM_PROMETHEUS, expression
        assert _NAME.search(expression), f"nothing is asked for in {expression}"
        grouped = {label.strip() for group in _BY.findall(expression) for label in group.split(",")}
        assert grouped <= labels | _FROM_PROMETHEUS, expression
    assert len(asked) > 25


async def test_the_board_leaves_out_nothing_that_the_live_page_tells(redis: Redis) -> None:
    asked = {name for expression in EXPRESSIONS for name in names_in(expression)}
    intervals = {f"footplate_request_{name}_seconds_bucket" for name in ("queue", "ttft", "itl", "e2e")}
    pools = {f"footplate_pool_{name}" for name in ("waiting_sequences", "running_sequences", "kv_blocks", "engines")}
    tokens = {f"footplate_engine_{name}_tokens_total" for name in ("prompt", "generated", "prefix_hit", "accepted")}
    ends = {"footplate_requests_ended_total", "footplate_rejections_total", "footplate_engine_preemptions_total"}
    assert intervals | pools | tokens | ends <= asked


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_every_web_process_tells_alike_is_never_added_up_over_them(expression: str) -> None:
    for found in re.finditer(r"footplate_(pool|engine|monitor)_", expression):
        before = expression[: found.start()]
        wanted = {
            "pool": r"max by \(pool(, state)?\) \((changes\()?$",
            "engine": r"max by \(pool, engine\) \((rate\()?$",
            "monitor": r"max\($",
        }[found[1]]
        assert re.search(wanted, before), expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_totals_are_looked_at_by_their_rate_before_anything_is_added_up(expression: str) -> None:
    """Prometheus sees a restart in one series, and not in a sum."""
    for found in re.finditer(r"footplate_[a-z0-9_]+_(total|bucket)\b", expression):
        assert expression[: found.start()].endswith("rate("), expression
        assert expression[found.end() :].split("]")[0].endswith("[$__rate_interval"), expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_brackets_close(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)


def test_percentiles_are_taken_of_buckets_added_up_over_all_processes() -> None:
    """Never percentiles of percentiles."""
    quantiles = [expression for expression in EXPRESSIONS if "_bucket" in expression]
    assert len(quantiles) == 16
    for expression in quantiles:
        assert re.fullmatch(
            r"histogram_quantile\(0\.\d+, sum by \(le\) \(rate\(footplate_request_[a-z0-9]+_seconds_bucket"
            r'\{pool=~"\$pool"\}\[\$__rate_interval\]\)\)\)',
            expression,
        )


def test_panels_lie_side_by_side_and_have_a_name_and_an_explanation() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_every_data_source_is_the_one_that_is_provisioned() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [panel["datasource"] for panel in PANELS]
    asked += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    asked += [each["datasource"] for each in BOARD["annotations"]["list"] if "expr" in each]
    asked.append(VARIABLES["pool"]["datasource"])
    assert all(each == source for each in asked)
    provisioned = (DOCKER / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    uid = re.search(r"^    uid: (\S+)$", provisioned, re.M)
    url = re.search(r"^    url: http://([a-z]+):9090$", provisioned, re.M)
    assert uid is not None
    assert url is not None
    assert VARIABLES["datasource"]["current"]["value"] == uid[1]
    compose = (DOCKER / "compose.yml").read_text()
    assert f"\n  {url[1]}:\n    profiles: [metrics]\n" in compose


def test_variables_are_those_that_expressions_use() -> None:
    used = {name for expression in EXPRESSIONS for name in re.findall(r"\$([a-z]+)\b", expression)}
    assert used | {"datasource"} == set(VARIABLES)
    assert VARIABLES["pool"]["query"]["query"] == "label_values(footplate_pool_engines, pool)"


def test_compose_mounts_what_grafana_and_prometheus_are_told_to_read() -> None:
    compose = (DOCKER / "compose.yml").read_text()
    for source, target in re.findall(r"- (\./\S+?):(/\S+?):ro", compose):
        assert (DOCKER / source).exists(), target
    boards = (DOCKER / "grafana" / "provisioning" / "dashboards" / "boards.yml").read_text()
    folder = re.search(r"path: (\S+)", boards)
    assert folder is not None
    assert f"- ./grafana/boards:{folder[1]}:ro" in compose
    assert f"HOME_DASHBOARD_PATH: {folder[1]}/footplate.json" in compose
    key = re.search(r"credentials_file: /run/secrets/(\S+)", (DOCKER / "prometheus.yml").read_text())
    assert key is not None
    assert f"secrets: [{key[1]}]" in compose
    assert f"\nsecrets:\n  {key[1]}:\n" in compose
    ignored = (DOCKER.parent / ".gitignore").read_text().split()
    assert f"/docker/{key[1]}" in ignored
