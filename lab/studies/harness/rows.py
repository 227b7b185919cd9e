"""Rows of figures: which of them are meant, and cells filled from them."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Row", "filled", "matching"]

Row = dict[str, Any]


def matching(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Select rows by the value of each field, or by a list of values that it may have."""
    return [row for row in rows if all(_has(row.get(key), wanted) for key, wanted in where.items())]


def _has(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def filled(template: str, row: Row) -> str:
    """Fill a template from a row: – where a field is missing or null."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field]
    return "–" if any(row.get(field) is None for field in fields) else template.format_map(row)
