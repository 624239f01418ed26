"""Steps that are kept to fit from: the latest of every kind, within bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.lab.costs.fitting import Sample
from serving.lab.costs.stock import (
    LEAST_OF_A_KIND,
    MOST_OF_A_KIND,
    MOST_SAMPLES,
    Stock,
    add_samples,
    kind_of,
    pack_stock,
    unpack_stock,
)


def decode(seconds: float, num_decoding: int = 1, context: int = 100) -> Sample:
    return Sample(seconds, 0, 0, num_decoding, context * num_decoding)


def test_of_each_kind_the_latest_stay() -> None:
    often = add_samples(Stock(), [decode(float(number)) for number in range(500)])
    assert [sample.seconds for sample in often.samples] == list(range(500 - MOST_OF_A_KIND, 500))
    both = add_samples(often, [decode(0.5, num_decoding=30)])
    again = add_samples(both, [decode(float(number)) for number in range(500, 2000)])
    assert [sample.seconds for sample in again.samples if sample.num_decoding == 30] == [0.5]


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 8192), st.integers(0, 1024), st.integers(1, 8192)).filter(lambda step: any(step[:2])),
        max_size=200,
    )
)
def test_whatever_comes_bounds_hold_and_no_kind_is_lost(steps: list[tuple[int, int, int]]) -> None:
    samples = [Sample(1.0, tokens, tokens * reach, rows, rows * reach) for tokens, rows, reach in steps]
    stock = Stock()
    for begin in range(0, len(samples), 50):
        stock = add_samples(stock, samples[begin : begin + 50])
    assert {kind_of(sample) for sample in stock.samples} == {kind_of(sample) for sample in samples}
    assert len(stock.samples) <= MOST_SAMPLES
    assert unpack_stock(pack_stock(stock)) == stock


def test_a_kind_counts_once_it_was_seen_a_few_times() -> None:
    few = add_samples(Stock(), [decode(1.0)] * (LEAST_OF_A_KIND - 1))
    assert few.num_kinds == 0
    assert add_samples(few, [decode(1.0)]).num_kinds == 1
