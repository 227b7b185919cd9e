"""The form of workload files: TOML, checked by msgspec.

An error names the file, the key with its tables, what was expected and what was found.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta, Struct

from forebay._core import FormatError
from forebay_lab.bench.sample import MIN_SAMPLE_BYTES
from forebay_lab.checked import convert

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
    return convert(values, kind, functools.partial(refuse, path)), values


def refuse(path: Traversable | Path, key: str, expected: str, found: object) -> NoReturn:
    """Raise the error for a key."""
    text = "nothing" if found is None else repr(found)
    raise FormatError(f"workload {path}: key {key}: expected {expected}, found {text}")
