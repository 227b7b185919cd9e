"""Write the tables of docs/results from the stored figures.

Usage: ``python lab/studies pages [--check] [PAGE ...]``

In order: a study measures rows and, with ``--save``, stores them in
``docs/results/data/PAGE.json``; that file also holds the layout of the page's tables; this module
replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` in
``docs/results/PAGE.md``. ``README.md`` there is the page of claims, each computed from the rows of
another page. A page never holds a figure in a table that its JSON does not hold.

A file ``PAGE.json`` has two parts:

``figures``
    By name: `command`, which measures them; `runs`, the commands of `forebay` that it ran;
    `machine`; `origin`, "measured" or "transcribed" (typed in from a page that was older than this
    file: no more digits than the page had); `rows`. Where the code has changed since, `superseded`
    says how. Fields of rows are those of `forebay bench --json` (docs/metrics.md) where it has
    them; units end their names, and shares are fractions of one.
``tables``
    By name: `figures`, which rows; `where`, the values that fields of them must have; and either
    `columns` (title and template of a cell, as of `str.format`) or `row`, `across` and `cell`
    (templates: one line per `row`, one column per `across`).

``claims.json`` is a list: `claim`, a template; `figures`, as PAGE/NAME; `where`; and `field`,
whose smallest and largest value the template calls `low` and `high`.
"""

from __future__ import annotations

import argparse
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay_lab.bench import machine

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
DATA = RESULTS / "data"
CLAIMS = "README"

Row = dict[str, Any]

_MARKED = re.compile(r"(?<=<!-- table: )(?P<name>[\w.-]+)(?P<open> -->\n).*?(?=<!-- end -->)", re.DOTALL)
_DIGITS = 6
"""Significant ones of a stored number: more than any spread allows."""


def load(page: str) -> dict[str, Any]:
    """Return what is stored for a page."""
    found: dict[str, Any] = json.loads((DATA / f"{page}.json").read_text(encoding="utf-8"))
    return found


def has(page: str) -> bool:
    """Whether there is a page of this name."""
    return (DATA / f"{page}.json").exists()


def pages() -> list[str]:
    """Name all pages, that of the claims last."""
    return [*sorted(path.stem for path in DATA.glob("*.json") if path.stem != "claims"), CLAIMS]


def text(page: str) -> str:
    """Return a page with its tables made anew."""
    old = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    stored = {} if page == CLAIMS else load(page)

    def block(found: re.Match[str]) -> str:
        lines = claims() if page == CLAIMS else table(stored, found["name"])
        return f"{found['name']}{found['open']}\n" + "\n".join(lines) + "\n\n"

    return _MARKED.sub(block, old)


def table(stored: Mapping[str, Any], name: str) -> list[str]:
    """Return the lines of one table: its command, and whether it is superseded, stand above it."""
    layout = stored["tables"][name]
    figures = stored["figures"].get(layout["figures"])
    if figures is None:
        return ["Not measured yet."]
    lines = [f"    {figures['command']}", ""]
    if "superseded" in figures:
        lines += [f"**Superseded:** {figures['superseded']}", ""]
    return lines + _laid_out(layout, matching(figures["rows"], layout.get("where", {})))


def printed(page: str, name: str, rows: Sequence[Row]) -> str:
    """Return the tables of a page that show these figures; without a page, one with all fields."""
    if not has(page):
        fields = list(dict.fromkeys(field for row in rows for field in row))
        return "\n".join(_lines(fields, [[str(row.get(field, "–")) for field in fields] for row in rows]))
    layouts = load(page)["tables"].values()
    shown = (
        _laid_out(layout, matching(rows, layout.get("where", {})))
        for layout in layouts
        if layout["figures"] == name
    )
    return "\n\n".join("\n".join(lines) for lines in shown)


def save(page: str, name: str, figures: Mapping[str, Any]) -> None:
    """Store measured figures and write the page's tables, and the claims that rest on them."""
    stored = load(page)
    rows = [_rounded(row) for row in figures["rows"]]
    stored["figures"][name] = {**figures, "machine": machine.describe(), "origin": "measured", "rows": rows}
    (DATA / f"{page}.json").write_text(dumped(stored), encoding="utf-8")
    for one in (page, CLAIMS):
        (RESULTS / f"{one}.md").write_text(text(one), encoding="utf-8")


def dumped(stored: Mapping[str, Any]) -> str:
    """Return JSON that diffs well: a row on a line."""
    bare = {name: {**one, "rows": f"@{name}@"} for name, one in stored["figures"].items()}
    made = json.dumps({**stored, "figures": bare}, ensure_ascii=False, indent=1)
    for name, one in stored["figures"].items():
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in one["rows"])
        made = made.replace(f'"@{name}@"', f"[\n    {rows}\n   ]")
    return made + "\n"


def matching(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Select rows by the values of their fields."""
    return [row for row in rows if all(row.get(key) == value for key, value in where.items())]


def filled(template: str, row: Row) -> str:
    """Fill a template from a row: – where a field is missing or null."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field]
    return "–" if any(row.get(field) is None for field in fields) else template.format_map(row)


def claims() -> list[str]:
    """Return the lines of the table of claims."""
    lines = ["| Claim | Page | Command |", "|---|---|---|"]
    for one in json.loads((DATA / "claims.json").read_text(encoding="utf-8")):
        page, _, name = one["figures"].partition("/")
        figures = load(page)["figures"][name]
        rows = matching(figures["rows"], one.get("where", {}))
        values = [value for row in rows if (value := row.get(one["field"])) is not None]
        if not values or "superseded" in figures:
            raise ValueError(f"{one['claim']!r}: expected figures that hold, found {len(values)} values")
        said = one["claim"].format(low=min(values), high=max(values))
        lines.append(f"| {said} | [{page}.md]({page}.md) | `{figures['command']}` |")
    return lines


def _laid_out(layout: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    if "columns" in layout:
        cells = [[filled(template, row) for template in layout["columns"].values()] for row in rows]
        return _lines(
            list(layout["columns"]),
            [[first + _mark(row), *rest] for row, (first, *rest) in zip(rows, cells, strict=True)],
        )
    across = list(dict.fromkeys(filled(layout["across"], row) for row in rows))
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault(filled(layout["row"], row), {})
        line[filled(layout["across"], row)] = filled(layout["cell"], row) + _mark(row)
    return _lines(
        [layout.get("title", "row"), *across],
        [[name, *(line.get(one, "–") for one in across)] for name, line in lines.items()],
    )


def _mark(row: Row) -> str:
    """Say that a row missed deadlines of the emulator, or did not end."""
    late = " (late)" if row.get("missed_deadlines") else ""
    return late if row.get("status", "ok") == "ok" else f"{late} ({row['status']})"


def _lines(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _rounded(row: Row) -> Row:
    return {
        key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for key, value in row.items()
    }


def _outdated(names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for name in names:
        path, new = RESULTS / f"{name}.md", text(name)
        if path.read_text(encoding="utf-8") != new:
            yield path, new


def main(words: Sequence[str]) -> int:
    """Write pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python lab/studies pages", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page would change")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="[default: all]")
    options = parser.parse_args(words)
    outdated = list(_outdated(options.pages or pages()))
    for path, new in outdated:
        print(f"{path}: {'outdated' if options.check else 'written'}")
        if not options.check:
            path.write_text(new, encoding="utf-8")
    return 1 if options.check and outdated else 0
