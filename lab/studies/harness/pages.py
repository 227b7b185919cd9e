"""Write the tables and pictures of docs/results from the stored figures.

Usage: ``python lab/studies pages [--check] [PAGE ...]``

In order: a study measures rows and, with ``--save``, stores them in
``docs/results/data/PAGE.json``; that file also holds the layouts of the page's tables and pictures;
this module replaces what stands between ``<!-- table: NAME -->`` or ``<!-- picture: NAME -->`` and
``<!-- end -->`` in ``docs/results/PAGE.md``, and draws ``docs/results/pictures/PAGE/NAME.svg``.
``README.md`` there is the page of claims, each computed from the rows of another page. A page never
holds a figure in a table that its JSON does not hold.

A file ``PAGE.json`` has three parts:

``figures``
    By name: `command`, which measures them; `runs`, the commands of `forebay` that it ran;
    `machine`; `origin`, "measured", "simulated" (then `machine` is null) or "transcribed" (typed in
    from a page that was older than this file: no more digits than the page had); `rows`. Where
    the code has changed since, `superseded` says how. Fields of rows are those of `forebay bench
    --json` (docs/metrics.md) where it has them; units end their names, and shares are fractions of
    one.
``tables``
    By name: `figures`, which rows; `where`, the value that a field of them must have, or a list of
    such values; and either `columns` (title and template of a cell, as of `str.format`) or `row`,
    `across` and `cell` (templates: one line per `row`, one column per `across`).
``pictures``
    By name: `figures` and `where`, as of tables; `title`; and either `lines` or `stacks`, which
    `pictures` describes. A table of the page shows the same figures. May be left out.

``claims.json`` is a list: `claim`, a template; `figures`, as PAGE/NAME; `where`; and `field`,
whose smallest and largest value the template calls `low` and `high`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay_lab.bench import machine
from studies.harness import pictures
from studies.harness.rows import Row, filled, matching

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
DATA = RESULTS / "data"
CLAIMS = "README"

PICTURES = "pictures"
"""Folder of docs/results with a folder of pictures for each page."""

_MARKED = re.compile(
    r"(?<=<!-- )(?P<kind>table|picture)(?P<open>: (?P<name>[\w.-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL
)
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
        if found["kind"] == "picture":
            lines = picture(page, stored, found["name"])
        else:
            lines = claims() if page == CLAIMS else table(stored, found["name"])
        return f"{found['kind']}{found['open']}\n" + "\n".join(lines) + "\n\n"

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


def picture(page: str, stored: Mapping[str, Any], name: str) -> list[str]:
    """Return the lines that show one picture; its figures have a table that names their command."""
    layout = stored.get("pictures", {}).get(name)
    if layout is None:
        raise KeyError(f"{page}.md: no layout of picture {name} in {page}.json")
    if layout["figures"] not in stored["figures"]:
        return ["Not measured yet."]
    return [f"![{layout['title']}]({PICTURES}/{page}/{name}.svg)"]


def drawn(page: str) -> dict[Path, str]:
    """Return the files of a page's pictures, drawn anew."""
    stored = {} if page == CLAIMS else load(page)
    return {
        RESULTS / PICTURES / page / f"{name}.svg": pictures.draw(
            layout, matching(figures["rows"], layout.get("where", {}))
        )
        for name, layout in stored.get("pictures", {}).items()
        if (figures := stored["figures"].get(layout["figures"])) is not None
    }


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


def save(page: str, name: str, figures: Mapping[str, Any], *, is_simulated: bool = False) -> None:
    """Store figures and write the page's tables, and the claims that rest on them."""
    stored = load(page)
    origin = "simulated" if is_simulated else "measured"
    described = None if is_simulated else machine.describe()
    rows = [_rounded(row) for row in figures["rows"]]
    stored["figures"][name] = {**figures, "machine": described, "origin": origin, "rows": rows}
    (DATA / f"{page}.json").write_text(dumped(stored), encoding="utf-8")
    for one in (page, CLAIMS):
        for path, new in _outdated([one]):
            _write(path, new)


def dumped(stored: Mapping[str, Any]) -> str:
    """Return JSON that diffs well: a row on a line."""
    bare = {name: {**one, "rows": f"@{name}@"} for name, one in stored["figures"].items()}
    made = json.dumps({**stored, "figures": bare}, ensure_ascii=False, indent=1)
    for name, one in stored["figures"].items():
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in one["rows"])
        made = made.replace(f'"@{name}@"', f"[\n    {rows}\n   ]")
    return made + "\n"


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
    """Yield each page and picture that would change, and what it should be."""
    for name in names:
        for path, new in {RESULTS / f"{name}.md": text(name), **drawn(name)}.items():
            if not path.exists() or path.read_text(encoding="utf-8") != new:
                yield path, new


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


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
            _write(path, new)
    return 1 if options.check and outdated else 0
