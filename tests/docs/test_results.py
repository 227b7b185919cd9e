"""Pages of results show what is stored, and their commands exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import click
import pytest

from forebay.cli.commands import cli
from studies.harness import pages, sections

STORED = sorted(path for path in pages.DATA.glob("*.json") if path.stem != "claims")
ROWS = [{"name": "a", "n": 1, "x": 0.5}, {"name": "b", "n": 1}, {"name": "b", "n": 2, "x": 2.0}]


@pytest.mark.parametrize("page", pages.pages())
def test_a_page_is_what_its_figures_make(page: str):
    found = (pages.RESULTS / f"{page}.md").read_text(encoding="utf-8")
    assert found == pages.text(page), "run `python lab/studies pages`, and read the page again"
    for path, new in pages.drawn(page).items():
        assert path.read_text(encoding="utf-8") == new, f"{path}: run `python lab/studies pages`"


def test_every_page_has_figures_and_every_table_and_picture_a_place():
    assert {path.stem for path in pages.RESULTS.glob("*.md")} == set(pages.pages())
    for path in STORED:
        text, stored = (pages.RESULTS / f"{path.stem}.md").read_text(), pages.load(path.stem)
        for kind, layouts in (("table", stored["tables"]), ("picture", stored.get("pictures", {}))):
            shown = re.findall(rf"<!-- {kind}: ([\w.-]+) -->", text)
            assert sorted(shown) == sorted(layouts), path
        in_tables = {layout["figures"] for layout in stored["tables"].values()}
        for name, layout in stored.get("pictures", {}).items():
            assert layout["figures"] in in_tables, f"{name}: expected a table that names its command"


def test_every_picture_file_belongs_to_a_page_and_is_small():
    drawn = {path: new for page in pages.pages() for path, new in pages.drawn(page).items()}
    assert set((pages.RESULTS / pages.PICTURES).rglob("*.*")) == set(drawn), (
        "remove pictures without a layout"
    )
    for path, new in drawn.items():
        assert len(new.encode()) < 30_000, f"{path}: draw fewer rows"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_figures_say_where_they_come_from(path: Path):
    stored = json.loads(path.read_text())
    assert pages.dumped(stored) == path.read_text()
    for name, one in stored["figures"].items():
        assert one["rows"], name
        assert one["command"], name
        assert one["origin"] in {"measured", "simulated", "transcribed"}, name
        assert (one["machine"] is None) == (one["origin"] == "simulated"), name


def commands(path: Path) -> list[str]:
    """All commands of a page: of its text, and of its pages."""
    text = (pages.RESULTS / f"{path.stem}.md").read_text()
    lines = re.findall(r"^ {4,}((?:forebay|python) .*)$", text, flags=re.MULTILINE)
    for one in json.loads(path.read_text())["figures"].values():
        lines += [one["command"], *one["runs"]]
    return sorted(set(lines))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_every_option_of_a_command_of_forebay_exists(path: Path):
    for line in commands(path):
        program, *words = shlex.split(line)
        if program != "forebay":
            continue
        command = cli.get_command(None, words.pop(0))
        while isinstance(command, click.Group):
            command = command.get_command(None, words.pop(0))
        assert command is not None, line
        options = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


@pytest.mark.parametrize("study", [name for name in sections.studies() if pages.has(name)])
def test_figures_are_sections_of_their_study(study: str):
    found = importlib.import_module(f"studies.{study.replace('-', '_')}.study").STUDY
    for name, one in pages.load(study)["figures"].items():
        program, script, *words = shlex.split(one["command"])
        assert (program, script) == ("python", "lab/studies"), name
        assert words[0] == study, name
        own = [name] if found.names_sections else []
        assert [word for word in words[1:2] if not word.startswith("-")] == own, one["command"]
        assert not own or name in found.sections


def test_every_study_says_what_it_measures_and_its_sections_what_they_do():
    for name in sections.studies():
        package = f"studies.{name.replace('-', '_')}"
        assert importlib.import_module(package).__doc__, name
        if importlib.util.find_spec("pyarrow") is None and name == "tables":
            continue
        study = importlib.import_module(f"{package}.study").STUDY
        assert all(sections.title(section) for section in study.sections.values()), name
        assert pages.has(name) or name == "images"


def test_a_table_has_a_line_for_each_row_that_is_meant():
    layout = {"figures": "f", "where": {"n": 1}, "columns": {"row": "{name}", "share": "{x:.0%}"}}
    stored = {"tables": {"t": layout}, "figures": {"f": {"command": "c", "rows": ROWS}}}
    assert pages.table(stored, "t") == [
        "    c",
        "",
        "| row | share |",
        "|---|---|",
        "| a | 50% |",
        "| b | – |",
    ]


def test_a_table_can_have_a_column_for_each_value():
    layout = {"figures": "f", "row": "{name}", "across": "n = {n}", "cell": "{x:.1f}"}
    stored = {"tables": {"t": layout}, "figures": {"f": {"command": "c", "rows": ROWS, "superseded": "by d"}}}
    assert pages.table(stored, "t")[2:] == [
        "**Superseded:** by d",
        "",
        "| row | n = 1 | n = 2 |",
        "|---|---|---|",
        "| a | 0.5 | – |",
        "| b | – | 2.0 |",
    ]


def test_rows_may_have_any_value_of_a_list():
    assert pages.matching(ROWS, {"name": ["a", "c"], "n": 1}) == ROWS[:1]


def test_saving_figures_updates_the_page_and_the_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "DATA", tmp_path)
    layout = {"figures": "f", "columns": {"x": "{x}"}}
    (tmp_path / "p.json").write_text(json.dumps({"figures": {}, "tables": {"t": layout}}))
    claim = {"claim": "x is {low:.1f} to {high:.1f}.", "figures": "p/f", "field": "x"}
    (tmp_path / "claims.json").write_text(json.dumps([claim]))
    for page, name in (("p", "t"), ("README", "claims")):
        (tmp_path / f"{page}.md").write_text(f"before\n<!-- table: {name} -->\n<!-- end -->\nafter\n")
    rows = [{"x": 0.12345678}, {"x": 2.5}, {"name": "failed"}]
    pages.save("p", "f", {"command": "c", "runs": [], "rows": rows})
    assert "\n| 0.123457 |\n| 2.5 |\n| – |\n\n<!-- end -->\nafter\n" in (tmp_path / "p.md").read_text()
    assert "| x is 0.1 to 2.5. | [p.md](p.md) | `c` |" in (tmp_path / "README.md").read_text()
    assert pages.load("p")["figures"]["f"]["origin"] == "measured"
    pages.save("p", "f", {"command": "c", "runs": [], "rows": rows}, is_simulated=True)
    found = pages.load("p")["figures"]["f"]
    assert (found["origin"], found["machine"]) == ("simulated", None)
    assert pages.text("p") == (tmp_path / "p.md").read_text()


def test_no_claim_rests_on_superseded_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "DATA", tmp_path)
    claim = {"claim": "x is {low}.", "figures": "p/f", "field": "x"}
    (tmp_path / "claims.json").write_text(json.dumps([claim]))
    one = {"command": "c", "superseded": "by d", "rows": [{"x": 1}]}
    (tmp_path / "p.json").write_text(json.dumps({"figures": {"f": one}, "tables": {}}))
    with pytest.raises(ValueError, match="x is"):
        pages.claims()


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def section(page: Path, anchor: str) -> str:
    """Return the section of a page that an anchor names, with those below it."""
    found: list[str] = []
    depth = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and depth and len(heading[1]) <= depth:
            break
        if heading and re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            depth = len(heading[1])
        if depth:
            found.append(line)
    return "\n".join(found)


QUOTES = [
    (path, text, page, anchor)
    for path in sorted(pages.RESULTS.parent.glob("*.md"))
    for text, page, anchor in re.findall(
        r"\[([^\]]+)\]\(results/([\w-]+\.md)#([^)]+)\)", path.read_text(encoding="utf-8")
    )
    if numbers(text)
]


@pytest.mark.parametrize(
    ("path", "text", "page", "anchor"), QUOTES, ids=[f"{quote[0].stem}: {quote[1][:40]}" for quote in QUOTES]
)
def test_a_figure_that_another_page_quotes_stands_where_its_link_leads(path, text, page, anchor):
    """The page of results owns it; a quote may be rounded."""
    given = [float(one) for one in numbers(section(pages.RESULTS / page, anchor))]
    for quoted in numbers(text):
        places = len(quoted.partition(".")[2])
        assert any(round(one, places) == float(quoted) for one in given), (path.name, quoted)
