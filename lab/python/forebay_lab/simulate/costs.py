"""Costs of processors: what the engine does beside waiting for storage, on one machine.

A file of costs is TOML with the keys of `Costs`. An error names the file and the key.
"""

from __future__ import annotations

import functools
import json
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from forebay._core import FormatError, StorageError
from forebay_lab import _native
from forebay_lab.checked import convert

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MEANINGS", "Costs", "check", "read", "write"]

_Ns = Annotated[float, Meta(ge=0, le=1e12)]
_Rate = Annotated[float, Meta(ge=1, le=1e18)]

MEANINGS = {
    "locate_ns": "finding a sample in the index",
    "plan_ns": "planning a sample",
    "gather_ns": "gathering a sample, besides copying its bytes",
    "copy_bytes_per_second": "copying, by one thread",
    "read_ns": "a pread, besides copying its bytes",
    "request_ns": "a request of the page cache to the file system",
    "fault_ns": "the first touch of a mapped page that is in memory",
    "pass_ns": "passing a record with a cursor, in a Python program",
    "wake_ns": "waking a thread",
    "message_ns": "a message between two ranks",
    "serve_ns": "serving a part of a share to another node, or receiving it, besides its bytes",
    "serve_bytes_per_second": "serving, or receiving, by one thread",
    "start_up_ns": "making a loader, besides what it waits for",
}
"""Of each number."""


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Processor times of one machine: nanoseconds, and bytes per second of a copy."""

    machine: Annotated[str, Meta(pattern=r"\S")]
    """The machine that they were measured on."""
    locate_ns: _Ns
    plan_ns: _Ns
    gather_ns: _Ns
    copy_bytes_per_second: _Rate
    read_ns: _Ns
    request_ns: _Ns
    fault_ns: _Ns
    pass_ns: _Ns
    wake_ns: _Ns
    message_ns: _Ns
    serve_ns: _Ns
    serve_bytes_per_second: _Rate
    start_up_ns: _Ns

    @classmethod
    def default(cls) -> Costs:
        """Return those that simulations have where none are given."""
        return msgspec.json.decode(_native.sim_costs(), type=cls)

    def faster(self, factor: float) -> Costs:
        """Return the costs of a machine that does everything so many times as fast."""
        slower = {"copy_bytes_per_second", "serve_bytes_per_second"}
        values = {key: self.number(key) for key in MEANINGS}
        return Costs(
            machine=self.machine,
            **{key: one * factor if key in slower else one / factor for key, one in values.items()},
        )

    def number(self, key: str) -> float:
        """Return one of the costs."""
        return float(getattr(self, key))

    def as_json(self) -> dict[str, Any]:
        """Return the object that jobs and results hold."""
        return msgspec.structs.asdict(self)


def read(path: Path) -> Costs:
    """Read a file of costs.

    Raises
    ------
    StorageError
        If it cannot be read.
    FormatError
        If it is not as expected.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StorageError(
            f"costs {path}: {error.strerror or error}", errno=error.errno, filename=path
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"costs {path}: expected TOML, found: {error}") from error
    return convert(values, Costs, functools.partial(_refuse, path))


def check(path: Path) -> None:
    """Refuse a place where something is that is no file of costs.

    Raises
    ------
    FormatError
        If it is.
    """
    if path.exists():
        read(path)


def write(costs: Costs, path: Path) -> None:
    """Write a file of costs.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    lines = [f"machine = {json.dumps(costs.machine)}"]
    lines += [f"{key} = {costs.number(key):.4g}  # {meaning}" for key, meaning in MEANINGS.items()]
    try:
        path.write_text("\n".join([*lines, ""]), "utf-8")
    except OSError as error:
        raise StorageError(
            f"costs {path}: {error.strerror or error}", errno=error.errno, filename=path
        ) from error


def _refuse(path: Path, key: str, expected: str, found: object) -> NoReturn:
    text = "nothing" if found is None else repr(found)
    raise FormatError(f"costs {path}: key {key}: expected {expected}, found {text}")
