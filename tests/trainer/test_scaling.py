"""How many workers pay: arithmetic of measured steps and of a ring's all-reduce. Needs no TensorFlow."""

from __future__ import annotations

import pytest

from tfgpujob_trainer.advise.scaling import (
    Network,
    doubt,
    rows_each,
    scale,
    worker_counts,
    workers_advice,
    workers_table,
)

SLOW, FAST = Network(1e9), Network(1e12)
HALVING = {1: 0.8, 2: 0.4, 4: 0.2, 8: 0.1}
CONSTANT = {1: 0.8, 2: 0.45, 4: 0.4, 8: 0.4}


def test_a_ring_sends_an_nth_part_of_the_bytes_2_n_1_times():
    network = Network(1e9, latency=0.001)
    assert network.all_reduce_seconds(10_000_000, 1) == 0
    assert network.all_reduce_seconds(10_000_000, 2) == pytest.approx(2 * (0.001 + 0.005))
    assert network.all_reduce_seconds(10_000_000, 5) == pytest.approx(8 * (0.001 + 0.002))


def test_a_measured_all_reduce_tells_the_network_that_it_is_computed_from():
    network = Network.of_all_reduce(10_000_000, 4, 0.015)
    assert network.bytes_per_second == pytest.approx(1e9)
    assert network.all_reduce_seconds(10_000_000, 4) == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_the_numbers_double_up_to_the_one_asked_for(most, counts):
    assert worker_counts(most) == counts


def test_a_worker_may_have_a_row_more_than_others():
    assert [rows_each(64, n) for n in (1, 3, 64)] == [64, 22, 1]


def test_a_perfect_job_is_as_many_times_as_fast():
    scaling = scale(640, HALVING, 0, SLOW)
    assert [scaling.efficiency(row) for row in scaling.rows] == pytest.approx([1, 1, 1, 1])
    assert [scaling.rate(row) for row in scaling.rows] == pytest.approx([800, 1600, 3200, 6400])
    assert workers_advice(scaling, 0.8, half=False) == "8 workers keep 100% efficiency, and more were not asked for"


def test_the_table_is_aligned():
    header, *rows = workers_table(scale(640, HALVING, 10_000_000, SLOW)).splitlines()
    assert header.split() == ["workers", "step", "ms", "of", "that", "all-reduce", "examples/s", "efficiency"]
    assert rows[1].split() == ["2", "410.00", "10.00", "1561", "98%"]
    assert {len(row) for row in rows} == {len(header)}


def test_the_all_reduce_limits_a_job_with_many_weights():
    scaling = scale(640, HALVING, 40_000_000, SLOW)  # 40, 60 and 70 ms
    assert scaling.most(0.8).workers == 2
    said = workers_advice(scaling, 0.8, half=False)
    assert said.startswith("2 workers keep 91% efficiency, 4 have 77%: the all-reduce takes 23% of a step there; ")
    assert said.endswith(
        "a larger globalBatchSize (accumulate keeps its memory) or allReduce: float16 or a faster network would help"
    )
    assert "float16" not in workers_advice(scaling, 0.8, half=True)


def test_too_few_rows_limit_a_small_batch():
    said = workers_advice(scale(640, CONSTANT, 40_000, FAST), 0.8, half=False)
    assert said == (
        "2 workers keep 89% efficiency, 4 have 50%: 160 rows take 50% of the time of 640, "
        "too few to keep a device busy; a larger globalBatchSize would help"
    )


def test_fewer_micro_batches_help_where_rows_are_too_few():
    said = workers_advice(scale(640, CONSTANT, 40_000, FAST), 0.8, half=False, accumulate=4)
    assert said.endswith("; a smaller accumulate or a larger globalBatchSize would help")


def test_one_worker_may_be_all_that_pays():
    said = workers_advice(scale(640, HALVING, 400_000_000, SLOW), 0.8, half=False)
    assert said.startswith("1 worker has 100% efficiency, 2 have 50%: the all-reduce takes 50%")


def test_a_number_that_is_efficient_by_chance_beyond_one_that_is_not_is_not_recommended():
    assert scale(640, {1: 0.8, 2: 0.6, 4: 0.2}, 0, SLOW).most(0.8).workers == 1


def test_more_than_as_many_times_as_fast_is_doubted():
    assert doubt(scale(640, {1: 0.8, 2: 0.38}, 0, SLOW)) == ""
    assert doubt(scale(640, {1: 0.8, 2: 0.25}, 0, SLOW)).startswith("2 workers at 160%: was the machine busier")
