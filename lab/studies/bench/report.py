"""The rows as text for the terminal, and as they are stored for `docs/results/core.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.harness import Outcome, Row


@dataclass(frozen=True)
class Line:
    """A row with what came out."""

    row: Row
    outcome: Outcome | None
    why_not: str = ""
    """Why it was skipped or failed."""
    failed: bool = False

    @property
    def met(self) -> bool:
        return self.outcome is not None and self.row.meets(self.outcome.figure)

    @property
    def verdict(self) -> str:
        if self.outcome is None:
            return "failed" if self.failed else "skipped"
        return "yes" if self.met else "NO"

    def stored(self) -> dict[str, Any]:
        """The row in docs/results/data/core.json; an unmeasured row has a reason, no figure."""
        row, found = self.row, self.outcome
        figure = {"why_not": self.why_not}
        if found is not None:
            parts = dict((*found.parts, *found.profile))
            figure = {"figure": found.figure, "low": found.low, "high": found.high, "parts": parts}
        return {
            "name": row.name,
            "title": row.title,
            "against": row.against,
            "unit": row.unit,
            "kind": "ratio" if row.unit == "×" else "absolute",
            "bar_is": "≥" if row.at_least else "≤",
            "bar": row.bar,
            "met": self.verdict.lower(),
            **figure,
        }

    def figure(self) -> str:
        return self.row.format(self.outcome.figure) if self.outcome else "–"

    def spread(self) -> str:
        if self.outcome is None:
            return "–"
        return f"{self.row.format(self.outcome.low)} – {self.row.format(self.outcome.high)}"


def text(lines: list[Line]) -> str:
    """For the terminal."""
    head = ("row", "median", "quartiles", "bar", "met")
    cells = [
        head,
        *((line.row.name, line.figure(), line.spread(), line.row.bar_text(), line.verdict) for line in lines),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    out = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    for line in lines:
        out.append(f"\n{line.row.name}: {line.row.title}, against {line.row.against}")
        if line.outcome is None:
            out.append(f"    {line.why_not}")
            continue
        out += [f"    {name}: {value}" for name, value in line.outcome.parts]
        if line.outcome.profile:
            out.append("    " + ", ".join(f"{name} {value}" for name, value in line.outcome.profile))
    return "\n".join(out)
