"""LMDB environments whose samples are two records each, as sets of text in scenes have them.

The keys are ``image-000000001`` and ``label-000000001``, counted from 1; ``num-samples`` says how
many there are. py-lmdb reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import FormatError
from forebay.tools.convert.columns import Column, require

__all__ = ["PairSource", "by_lmdb"]

# A batch is about as large as this [bytes].
BATCH_BYTES = 8 << 20

FIELDS = ("image", "label")


class PairSource:
    """The images and labels of environments, one after the other."""

    left_out: Sequence[tuple[int, str]] = ()

    def __init__(self, paths: Sequence[str], counts: Sequence[int]) -> None:
        self._paths, self._counts = paths, counts
        self.samples = sum(counts)
        self.columns = tuple(Column(name, np.dtype(np.uint8), None) for name in FIELDS)

    def batches(self) -> Iterator[Mapping[str, Any]]:
        """Read in the order of the numbers."""
        for path, count in zip(self._paths, self._counts, strict=True):
            with _environment(path) as environment, environment.begin() as reader:
                batch: dict[str, list[Any]] = {name: [] for name in FIELDS}
                batch_bytes = 0
                for number in range(1, count + 1):
                    for name in FIELDS:
                        value = reader.get(b"%s-%09d" % (name.encode(), number))
                        if value is None:
                            raise FormatError(
                                f"{path}: expected the key {name}-{number:09d}, since num-samples is {count}; found none"
                            )
                        batch[name].append(np.frombuffer(value, np.uint8))
                        batch_bytes += len(value)
                    if batch_bytes >= BATCH_BYTES or number == count:
                        yield batch
                        batch, batch_bytes = {name: [] for name in FIELDS}, 0


def by_lmdb(paths: Sequence[str]) -> PairSource | None:
    """Return the pairs of environments, or None if one is something else."""
    counts = [_pairs(Path(path)) for path in paths]
    found = [count for count in counts if count is not None]
    return PairSource(paths, found) if found and len(found) == len(counts) else None


def _pairs(path: Path) -> int | None:
    """Return the number of pairs; None of anything else."""
    file = path / "data.mdb" if path.is_dir() else path
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        if b"\xde\xc0\xef\xbe" not in opened.read(28):
            return None
    with _environment(str(path)) as environment, environment.begin() as reader:
        count = reader.get(b"num-samples")
        if reader.get(b"image-000000001") is None or reader.get(b"label-000000001") is None:
            return None
    if count is None or not count.isdigit():
        raise FormatError(f"{path}: expected the number of pairs under the key num-samples, found {count!r}")
    return int(count)


def _environment(path: str) -> Any:
    """Open an environment to read it."""
    return require("lmdb").open(path, subdir=Path(path).is_dir(), readonly=True, lock=False, readahead=False)
