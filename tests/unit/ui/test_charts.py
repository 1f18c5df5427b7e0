"""Pictures of any numbers are finite, inside their frame, and have round labels."""

from __future__ import annotations

import math
import re

from hypothesis import example, given
from tests.unit.ui.runs import POINTS

from tfgpujob.ui.charts import SIDE, line_chart, number_text, stacked


@given(POINTS, POINTS)
@example([(0, 1.7976931348623157e308)], [(1, -1.7976931348623157e308)])
@example([(0, 5e-324)], [(1, 0.0)])
@example([(5, 3.0)], [(5, 3.0)])
@example([(1, 1.0000000001e300)], [(2, 1e300)])
def test_every_point_is_inside(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> None:
    chart = line_chart("loss", {"train": one, "validation": other})
    assert chart is not None
    for curve in chart.curves:
        numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", curve.path)]
        assert "nan" not in curve.path
        assert "inf" not in curve.path
        assert all(-0.1 <= number <= SIDE + 0.1 for number in numbers), curve.path
    assert all(math.isfinite(top) and -0.1 <= top <= 100.1 for top, _ in chart.grid)
    assert 2 <= len(chart.grid) <= 7


def test_labels_are_round() -> None:
    chart = line_chart("loss", {"train": [(0, 0.13), (1000, 2.41)]})
    assert chart is not None
    assert [label for _, label in chart.grid] == ["0", "1", "2", "3"]
    assert chart.steps == ("0", "500", "1,000")
    assert chart.curves[0].path == "M0.0 956.7 L1000.0 196.7"


def test_numbers_have_the_digits_that_matter() -> None:
    told = {0.0: "0", 0.00012345: "0.0001234", 0.31256: "0.3126", 12.5: "12.5", 26279.9: "26,280", 1.2e-5: "1.2e-05"}
    assert {value: number_text(value) for value in told} == told
    assert number_text(-3.5e8) == "-3.5e+08"


def test_one_point_is_a_dot_and_none_is_no_picture() -> None:
    chart = line_chart("loss", {"train": [(7, 2.0)], "validation": []})
    assert chart is not None
    assert chart.curves[0].path == "M0.0 500.0 L0.0 500.0"
    assert [curve.name for curve in chart.curves] == ["train"]
    assert line_chart("loss", {"train": []}) is None


def test_a_bar_is_as_long_as_its_parts() -> None:
    bars = stacked([(0.25, "lost", "a"), (0.75, "useful", "b")])
    assert [(bar.left, bar.width) for bar in bars] == [(0.0, 25.0), (25.0, 75.0)]
