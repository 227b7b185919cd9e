"""One reader of a large file, without samples: pread and a mapping by size of block (figure 8)."""

from __future__ import annotations

import json
from typing import Any

from forebay_lab import _native
from forebay_lab.pfs.start import Wanted
from forebay_lab.simulate.costs import Costs
from studies.harness.sections import MIB, Row, Scope
from studies.simulate.lmdbio.published import MMAP_SLOWDOWN

__all__ = ["blocks"]

_PAGE = 4096
_BLOCKS = (_PAGE, 16 << 10, 64 << 10, 256 << 10, MIB, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
_ACCESSES = {"pread": "read", "pread, O_DIRECT": "direct", "mapping": "mmap"}
_LEAST_BYTES, _LEAST_BLOCKS = 256 << 20, 4
_FILE_BYTES = 256 << 30


def blocks(scope: Scope) -> list[Row]:
    """Read a file with one reader: MiB/s of pread and of a mapping by size of block."""
    spec = Wanted(preset="bebop").resolve()
    sizes = scope.pick(_BLOCKS, (_PAGE, MIB))
    found: list[Row] = [
        {"name": name, "block_kib": size // 1024, "mib_s": _rate(spec, how, size)}
        for name, how in _ACCESSES.items()
        for size in sizes
    ]
    rates = {(row["name"], row["block_kib"]): row["mib_s"] for row in found}
    for row in found:
        mapped = rates["mapping", row["block_kib"]]
        row["over_mapping"] = row["mib_s"] / mapped
        is_published = (row["name"], row["block_kib"]) == ("pread", _PAGE // 1024)
        row["published"] = MMAP_SLOWDOWN if is_published else None
    return found


def _rate(spec: dict[str, Any], how: str, size: int) -> float:
    """Return MiB/s; processor times are those of `forebay simulate`."""
    costs = Costs.default()
    pages = -(-size // _PAGE)
    calls = costs.fault_ns * pages if how == "mmap" else costs.read_ns
    think = round(calls + size / costs.copy_bytes_per_second * 1e9)
    total = max(_LEAST_BYTES, _LEAST_BLOCKS * size)
    actions: list[dict[str, Any]] = []
    for offset in range(0, total, size):
        actions += [{"touch": {"offset": offset, "length": size, "how": how}}, {"think_ns": think}]
    scenario = {"streams": [{"actions": actions}], "files": [_FILE_BYTES]}
    end = json.loads(_native.pfs_predict(json.dumps(spec), json.dumps(scenario)))["end_ns"]
    return total / MIB / (end * 1e-9)
