"""Datasets and loaders as text for people: ``repr()``, and tables in notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["counted", "fields_text", "table"]

Fields = Mapping[str, tuple[str, tuple[int, ...] | None]]

# Fields that a text names; a table has all.
_MOST_FIELDS = 6


def counted(number: int, what: str) -> str:
    """Return a number with its noun: ``1,000 samples``, ``1 step``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def field_text(dtype: str, shape: tuple[int, ...] | None) -> str:
    """Return the type of a field: ``uint8 (224, 224, 3)``, ``int64``, ``uint8, varying length``."""
    if shape is None:
        return f"{dtype}, varying length"
    return f"{dtype} {shape}" if shape else dtype


def fields_text(fields: Fields) -> str:
    """Return the fields of a dataset in one line."""
    shown = [f"{name}: {field_text(*kind)}" for name, kind in list(fields.items())[:_MOST_FIELDS]]
    more = len(fields) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def table(title: str, rows: Sequence[tuple[str, str]], fields: Fields) -> str:
    """Return a table in HTML: facts, then the fields.

    Parameters
    ----------
    title : str
        Its first line.
    rows : sequence of pair of str
        Name and value of each fact.
    fields : mapping
        Field name → (numpy dtype name, shape of one sample).
    """
    from html import escape

    all_rows = [*rows, *((f"field {name}", field_text(*kind)) for name, kind in fields.items())]
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in all_rows
    )
    return f'<table><caption style="text-align:left">{escape(title)}</caption>{cells}</table>'
