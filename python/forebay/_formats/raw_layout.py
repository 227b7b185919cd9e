"""What a record of a raw file consists of, as the engine wants to be told it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from forebay._core import option_error

__all__ = ["raw_layout"]

_OWN = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
"""Types that the engine knows; of all others it moves bytes."""


def raw_layout(fields: Any, record_bytes: int | None, header_bytes: int) -> tuple[str, list[str]]:
    """Describe the records of a raw file.

    Parameters
    ----------
    fields : mapping of str to (dtype, shape) or dtype, numpy structured dtype, list of numpy's
    field tuples, or None
        The fields in their order; those of a mapping lie one behind the other. None: the record is
        one field.
    record_bytes : int or None
        Size of a record [bytes]. Default: what the fields take.
    header_bytes : int
        Bytes before the first record.

    Returns
    -------
    str
        The layout as JSON.
    list of str
        Names of the fields.

    Raises
    ------
    OptionError
        If the fields have no fixed size, or there is neither a field nor a size.
    """
    _check_bytes("record_bytes", record_bytes, 1)
    _check_bytes("header_bytes", header_bytes, 0)
    record = None if fields is None else _structure(fields)
    if record is None and record_bytes is None:
        raise option_error(
            "forebay.open: a raw file says nothing of its records",
            "pass record_bytes=, or fields= with types and shapes",
        )
    found = (
        [] if record is None else [(_field(name, dtype), start) for name, dtype, start in _members(record)]
    )
    layout = {
        "record_bytes": record.itemsize if record_bytes is None and record is not None else record_bytes,
        "header_bytes": header_bytes,
        "fields": found,
    }
    return json.dumps(layout), [field["name"] for field, _ in found]


def _check_bytes(name: str, value: object, least: int) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63
    ):
        raise option_error(
            f"forebay.open: {name}=: expected a number of bytes, at least {least}, found {value!r}"
        )


def _structure(fields: Any) -> np.dtype[Any]:
    """Return the fields as one structured type."""
    if isinstance(fields, Mapping):
        one: Any = [
            (name, *(value if isinstance(value, tuple) else (value,))) for name, value in fields.items()
        ]
    else:
        one = fields
        if isinstance(fields, list | tuple) and all(isinstance(field, str) for field in fields):
            raise option_error(
                f"forebay.open: fields={fields!r} names fields of a raw file without their types",
                'give each a type and a shape, as in fields={"label": "u1", "image": ("u1", (3, 32, 32))}',
            )
    try:
        record: np.dtype[Any] = np.dtype(one)
    except (TypeError, ValueError) as error:
        raise option_error(
            f"forebay.open: fields={fields!r} is no description of a record: {error}"
        ) from None
    if not record.itemsize:
        raise option_error(f"forebay.open: fields={fields!r} describes no bytes of a record")
    if record.names is None:
        record = np.dtype([("data", record)])
    if record.hasobject or any(dtype.itemsize == 0 for _, dtype, _ in _members(record)):
        raise option_error(f"forebay.open: fields={fields!r} has a type without a fixed size in a file")
    return record


def _members(record: np.dtype[Any]) -> list[tuple[str, np.dtype[Any], int]]:
    """Return name, type and first byte of each field."""
    members: Mapping[str, Any] = record.fields or {}
    return [(name, *members[name][:2]) for name in record.names or ()]


def _field(name: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Describe a field: a type of our own, or rows of bytes that numpy is told the type of."""
    base, shape = (dtype.base, dtype.shape)
    if base.isnative and base.name in _OWN:
        return {"name": name, "dtype": base.name, "layout": {"dense": list(shape)}}
    told: object = np.lib.format.dtype_to_descr(base)
    text = told if isinstance(told, str) else repr(told)
    return {"name": name, "dtype": "uint8", "layout": {"dense": [*shape, base.itemsize]}, "numpy": text}
