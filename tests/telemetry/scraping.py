"""Reading what a web process tells Prometheus, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Series = tuple[str, frozenset[tuple[str, str]]]
Scrape = Mapping[Series, float]


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def text_of(families: Iterable[Metric]) -> str:
    """The text format."""
    return generate_latest(_Collected(families)).decode()


def scraped(text: str) -> Scrape:
    """Every sample by name and labels; fails where a series comes twice."""
    samples: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in samples, f"{series} comes twice"
            samples[series] = sample.value
    return samples


def sum_of(scrape: Scrape, name: str, **labels: str) -> float:
    """The sum over all series of that name with those labels; 0 where there is none."""
    return sum(value for (found, own), value in scrape.items() if found == name and labels.items() <= dict(own).items())


def labels_of(scrape: Scrape, name: str) -> list[dict[str, str]]:
    """The labels of all series of that name."""
    return [dict(own) for found, own in scrape if found == name]
