"""The form of workload files: TOML, checked by msgspec.

An error names the file, the key with its tables, what was expected and what was found.
"""

from __future__ import annotations

import re
import sys
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct

from forebay._core import FormatError
from forebay.tools.bench.sample import MIN_SAMPLE_BYTES

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

__all__ = ["SampleTable", "ScalingFile", "VariantTable", "WorkloadFile", "read", "refuse"]

_Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_Text = Annotated[str, Meta(pattern=r"\S")]


class _Table(Struct, forbid_unknown_fields=True):
    """A misspelt key would have no effect, so unknown ones are an error."""


class FieldTable(_Table):
    """A part of a sample."""

    name: _Text
    dtype: Literal["uint8", "uint16", "float32"]
    shape: Annotated[tuple[_Count, ...], Meta(min_length=1)] | None = None


class SampleTable(_Table):
    """What one sample holds."""

    bytes: Annotated[int, Meta(ge=MIN_SAMPLE_BYTES)]
    record: Literal["raw", "caffe-datum"]
    fields: Annotated[tuple[FieldTable, ...], Meta(min_length=1)]
    deviation_bytes: Annotated[int, Meta(ge=0)] = 0


class DatasetTable(_Table):
    """How many samples, in which files."""

    samples: _Count
    files: _Count
    container: Literal["lmdb", "hdf5", "tfrecord", "npz"]


class VariantTable(_Table):
    """One published way to run the workload."""

    name: _Text
    ranks: _Count | None = None
    batch_samples: _Count | None = None
    global_batch_samples: _Count | None = None
    step_seconds: _Positive | None = None
    sample_seconds: _Positive | None = None


class ClientTable(_Table):
    """The published machine's nodes."""

    node_ranks: _Count
    node_memory_bytes: _Count | None = None


class BenchmarkTable(_Table):
    """What the publication asks of a run."""

    utilisation_line: Annotated[float, Meta(gt=0, le=1)] | None = None
    reader_threads: _Count | None = None
    epochs: _Count | None = None
    data_to_memory: _Positive | None = None


class RulesTable(_Table):
    """How far the workload can be scaled down."""

    least_steps: _Count


class WorkloadFile(_Table):
    """A published job."""

    name: _Text
    about: _Text
    sample: SampleTable
    dataset: DatasetTable
    variants: Annotated[tuple[VariantTable, ...], Meta(min_length=1)]
    scaling: RulesTable
    sources: dict[str, _Text]
    client: ClientTable | None = None
    benchmark: BenchmarkTable = msgspec.field(default_factory=BenchmarkTable)


class KeepTable(_Table):
    """A ratio to keep, and why."""

    ratio: _Text
    why: _Text


class ScalingFile(_Table):
    """The rules that hold for all workloads."""

    scaled: tuple[_Text, ...]
    fixed: tuple[_Text, ...]
    keep: Annotated[tuple[KeepTable, ...], Meta(min_length=1)]


_File = TypeVar("_File", WorkloadFile, ScalingFile)


def read(path: Traversable | Path, kind: type[_File]) -> tuple[_File, dict[str, Any]]:
    """Read a file; return it in its form, and as the TOML parser returned it.

    Raises
    ------
    FormatError
        If it is not as expected.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"workload {path}: expected TOML, found: {error}") from error
    try:
        return msgspec.convert(values, kind), values
    except msgspec.ValidationError as error:
        _refuse_as(error, path, values, kind)


def refuse(path: Traversable | Path, key: str, expected: str, found: object) -> NoReturn:
    """Raise the error for a key."""
    raise FormatError(f"workload {path}: key {key}: expected {expected}, found {found!r}")


def _refuse_as(
    error: msgspec.ValidationError, path: Traversable | Path, values: dict[str, Any], kind: type[Struct]
) -> NoReturn:
    """Raise msgspec's error with the file, the key and the value."""
    what, _, place = str(error).partition(" - at `$")
    place = place.removesuffix("`").lstrip(".")
    if match := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what):
        key = f"{place}.{match[2]}".lstrip(".")
        if match[1].startswith("missing"):
            refuse(path, key, "a value", "nothing")
        refuse(path, key, "no key of this name", _find(values, key))
    expected = what.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
    if what.startswith("Invalid enum value"):
        expected = f"one of {', '.join(_words(kind, place))}"
    refuse(path, place, expected, _find(values, place))


def _words(kind: type[Struct], place: str) -> list[str]:
    """Return the words that a key may be."""
    found: Any = msgspec.inspect.type_info(kind)
    for part in _parts(place):
        fields = {field.name: field.type for field in getattr(found, "fields", ())}
        found = fields[part] if fields else found.item_type
    return [str(word) for word in found.values]


def _parts(place: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", place)


def _find(values: Any, place: str) -> object:
    for part in _parts(place):
        if isinstance(values, list):
            values = values[int(part)]
        elif isinstance(values, dict):
            values = values.get(part)
    return values
