"""Axes of pictures, and pictures as files of their own."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from forebay_lab.report.axes import Axis
from forebay_lab.report.svg import Plot


@pytest.mark.parametrize(
    ("values", "low", "high", "ticks"),
    [
        ([3, 40], 2, 50, [2, 5, 10, 20, 50]),
        ([1, 100], 1, 100, [1, 10, 100]),
        ([0.7, 81], 0.5, 100, [1, 10, 100]),
        ([4], 2, 5, None),
        ([5], 5, 50, [5, 10, 20, 50]),
        ([], 1, 10, [1, 2, 5, 10]),
    ],
)
def test_a_logarithmic_axis_goes_between_round_numbers(values, low, high, ticks):
    axis = Axis.over(values, log=True)
    assert (axis.low, axis.high) == (pytest.approx(low), pytest.approx(high))
    assert axis.ticks() == pytest.approx(ticks or [low, high])
    assert axis.share(axis.low) == 0
    assert axis.share(axis.high) == 1
    assert axis.share((axis.low * axis.high) ** 0.5) == pytest.approx(0.5)


def test_a_linear_axis_begins_at_zero():
    axis = Axis.over([2, 5])
    assert (axis.low, axis.high, axis.share(2.5)) == (0, 5, 0.5)
    assert axis.ticks()[0] == 0
    assert Axis.over([0]).high == 1


@pytest.mark.parametrize(("value", "log"), [(-1, False), (0, True), (-1, True), (float("nan"), False)])
def test_a_value_without_a_place_is_an_error(value, log):
    with pytest.raises(ValueError, match="expected a value"):
        Axis.over([1, value], log=log)


def test_a_file_of_one_picture_has_the_styles_that_it_uses():
    plot = Plot("A <picture>", width=100, height=50)
    plot.text(1, 2, "a & b", "tick")
    plot.bar(0, 0, 1, 1, "var(--node3)")
    text = plot.render_file()
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == "A <picture>"
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")] == ["a & b"]
    light, dark = (set(re.findall(r"(--[\w-]+):#", part)) for part in text.split("@media"))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= light & dark
