"""Pictures of result pages show each value of their rows, and are found when they are outdated."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from studies.harness import pages, pictures

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    {"name": "a", "ranks": 4, "factor": 1.0, "read": 1.0, "skew": 3.0},
    {"name": "a", "ranks": 64, "factor": 20.0, "paper": 40.0, "read": 2.0, "skew": 0.0},
    {"name": "b<", "ranks": 4, "factor": 2.0, "read": 0.5, "skew": None},
    {"name": "b<", "ranks": 64, "factor": None, "paper": 80.0, "read": 1.0, "skew": 1.0},
]
LINES = {
    "title": "Factors",
    "lines": {
        "by": "{name}", "x": "ranks", "y": "factor", "published": "paper", "log": ["x", "y"],
        "x_title": "ranks", "y_title": "times as fast", "dashed": ["b<"],
    },
}  # fmt: skip
STACKS = {
    "title": "Parts",
    "stacks": {
        "label": "{name}", "group": "{ranks} ranks", "parts": {"read": "read", "skew": "skew"},
        "x_title": "s", "published": "paper", "shares": False,
    },
}  # fmt: skip


def shapes(text: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{SVG}{tag}"))


def tips(text: str, tag: str) -> list[str]:
    return [tip for one in shapes(text, tag) if (tip := one.findtext(f"{SVG}title"))]


def test_lines_have_a_point_for_each_value_and_a_diamond_for_each_published_one():
    text = pictures.draw(LINES, ROWS)
    assert tips(text, "rect") == ["a, 4: 1", "a, 64: 20"], "dashed lines have no points"
    assert tips(text, "path") == ["a", "a, 64, published: 40", "b<", "b<, 64, published: 80"]
    (line,) = (one for one in shapes(text, "path") if one.findtext(f"{SVG}title") == "a")
    (x, y), (other_x, other_y) = (map(float, place.split()) for place in line.get("d")[1:].split(" L"))
    assert x < other_x, "more ranks lie to the right"
    assert y > other_y, "a higher factor lies above"
    assert {"a", "b<", "published", "ranks", "times as fast"} <= {one.text for one in shapes(text, "text")}


def test_bars_are_as_long_as_their_parts_and_one_without_a_part_is_a_dash():
    text = pictures.draw(STACKS, ROWS)
    bars = {
        one.findtext(f"{SVG}title"): one
        for one in shapes(text, "rect")
        if one.find(f"{SVG}title") is not None
    }
    assert list(bars) == ["a: read 1", "a: skew 3", "a: read 2", "a: skew 0", "b<: read 1", "b<: skew 1"]
    wide = {tip: float(one.get("width")) for tip, one in bars.items()}
    assert wide["a: skew 3"] == pytest.approx(3 * wide["a: read 1"], abs=0.02)
    assert float(bars["a: skew 3"].get("x")) == pytest.approx(
        float(bars["a: read 1"].get("x")) + wide["a: read 1"], abs=0.02
    )
    assert [one.text for one in shapes(text, "text")].count("–") == 1
    shares = pictures.draw(
        {**STACKS, "stacks": {**STACKS["stacks"], "shares": True, "published": None}}, ROWS
    )
    assert "a: skew 75 %" in tips(shares, "rect")


@pytest.mark.parametrize("layout", [LINES, STACKS], ids=["lines", "stacks"])
def test_equal_rows_give_equal_bytes(layout):
    assert pictures.draw(layout, ROWS) == pictures.draw(json.loads(json.dumps(layout)), list(ROWS))
    assert pictures.draw(layout, ROWS) != pictures.draw(layout, ROWS[:2])


def test_a_value_that_has_no_place_on_its_axis_is_an_error():
    with pytest.raises(ValueError, match=r"'Factors'.*found 0"):
        pictures.draw(LINES, [{"name": "a", "ranks": 4, "factor": 0}])
    for layout in (LINES, STACKS):
        with pytest.raises(ValueError, match="found none"):
            pictures.draw(layout, [])


def test_an_unknown_picture_is_an_error():
    with pytest.raises(KeyError, match=r"no layout of picture nowhere in p\.json"):
        pages.picture("p", {"figures": {}, "tables": {}}, "nowhere")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a table and a picture that are not measured yet."""
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "DATA", tmp_path)
    table = {"figures": "f", "columns": {"row": "{name}"}}
    stored = {"figures": {}, "tables": {"t": table}, "pictures": {"factors": {"figures": "f", **LINES}}}
    (tmp_path / "p.json").write_text(json.dumps(stored))
    (tmp_path / "claims.json").write_text("[]")
    for name, blocks in (("p", ("table: t", "picture: factors")), ("README", ("table: claims",))):
        text = "".join(f"<!-- {block} -->\n<!-- end -->\n" for block in blocks)
        (tmp_path / f"{name}.md").write_text(text)
    assert pages.main(["p", "README"]) == 0
    return tmp_path / "p.md"


def test_a_saved_picture_is_a_file_that_the_page_shows(page: Path):
    assert page.read_text().count("Not measured yet.") == 2
    assert pages.drawn("p") == {}
    pages.save("p", "f", {"command": "c", "runs": [], "rows": ROWS})
    link = "<!-- picture: factors -->\n\n![Factors](pictures/p/factors.svg)\n\n<!-- end -->\n"
    assert link in page.read_text()
    assert (page.parent / "pictures/p/factors.svg").read_text() == pictures.draw(LINES, ROWS)
    assert pages.main(["--check", "p"]) == 0


def test_a_picture_that_is_no_longer_that_of_its_rows_is_found_and_written(page: Path, capsys):
    pages.save("p", "f", {"command": "c", "runs": [], "rows": ROWS})
    picture = page.parent / "pictures/p/factors.svg"
    picture.write_text(picture.read_text().replace("a, 64: 20", "a, 64: 21"))
    assert pages.main(["--check", "p"]) == 1
    assert f"{picture}: outdated" in capsys.readouterr().out
    picture.unlink()
    assert pages.main(["--check", "p"]) == 1
    assert pages.main(["p"]) == 0
    assert picture.read_text() == pictures.draw(LINES, ROWS)
