"""Measure the figures of docs/results/tables.md: rows of Arrow and Parquet files.

Usage: ``python lab/studies/tables.py [--tiny] [--save] [SECTION ...]``

Each row takes an epoch of batches of 256 rows in one process: by a `forebay.Loader` and by pyarrow.
pyarrow takes random batches of an Arrow file as the library datasets of Hugging Face does: by
`take` on a memory map. Of a Parquet file it reads the row groups in random order, since there is no
access to single rows. Both run in turn, with files in the page cache; a figure is the median of the
repetitions. The files are kept in ``$FOREBAY_BENCH_DIR`` (default ``./bench-data``, about
1 GB).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay
from sections import DIRECTORY, Row, run_sections

BATCH = 256
GROUP_ROWS = 1_000
SAMPLE_BYTES = (3_073, 110_000)
DATA_BYTES = 256 << 20
REPETITIONS = 5


@dataclass
class Study:
    """How much is read, and how often."""

    data_bytes: int
    repetitions: int

    @classmethod
    def of(cls, tiny: bool) -> Study:
        """Make the directory."""
        DIRECTORY.mkdir(exist_ok=True)
        return cls(DATA_BYTES // 100 if tiny else DATA_BYTES, 2 if tiny else REPETITIONS)


def file(study: Study, kind: str, sample_bytes: int) -> Path:
    """Write a file of random bytes and labels, once."""
    samples = max(2 * BATCH, study.data_bytes // sample_bytes)
    path = DIRECTORY / f"rows-{sample_bytes}-{samples}.{kind}"
    if path.exists():
        return path
    random = np.random.default_rng(1)
    partial = path.with_suffix(".partial")
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with (
        pq.ParquetWriter(partial, schema, compression="zstd")
        if kind == "parquet"
        else pa.ipc.new_file(pa.OSFile(str(partial), "wb"), schema)
    ) as writer:
        for first in range(0, samples, GROUP_ROWS):
            rows = min(GROUP_ROWS, samples - first)
            images = [random.bytes(sample_bytes) for _ in range(rows)]
            table = pa.table([images, np.arange(first, first + rows)], schema=schema)
            writer.write_table(table)
    partial.rename(path)
    return path


def taken(path: Path, draw: np.random.Generator) -> Iterator[pa.Table]:
    """Random batches of an Arrow file."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    numbers = draw.permutation(len(table))
    for first in range(0, len(numbers) - BATCH + 1, BATCH):
        yield table.take(numbers[first : first + BATCH])


def grouped(path: Path, draw: np.random.Generator) -> Iterator[pa.Table]:
    """Batches of the row groups of a Parquet file, in random order."""
    found = pq.ParquetFile(path)
    for number in draw.permutation(found.num_row_groups):
        table = found.read_row_group(number)
        rows = draw.permutation(len(table))
        for first in range(0, len(rows) - BATCH + 1, BATCH):
            yield table.take(rows[first : first + BATCH])


def rate(lengths: Iterable[int]) -> float:
    """Samples per second of batches of these lengths."""
    begun = time.perf_counter()
    samples = sum(lengths)
    return samples / (time.perf_counter() - begun)


def measure(study: Study, kind: str, order: str, by_pyarrow: Callable[..., Iterator[pa.Table]]) -> list[Row]:
    """Measure one format in one order."""
    rows: list[Row] = []
    for sample_bytes in SAMPLE_BYTES:
        path, draw = file(study, kind, sample_bytes), np.random.default_rng(2)
        found: dict[str, list[float]] = {"forebay": [], "pyarrow": []}
        with forebay.Loader(path, BATCH, order=order, last_batch="drop", world="single") as loader:
            for repetition in range(-1, study.repetitions):
                rates = {
                    "forebay": rate(len(batch["label"]) for batch in loader),
                    "pyarrow": rate(len(one) for one in by_pyarrow(path, draw)),
                }
                if repetition >= 0:
                    for name, one in rates.items():
                        found[name].append(one)
        row: Row = {"format": kind, "order": order, "sample_bytes": sample_bytes}
        row |= {f"{name}_samples_per_second": statistics.median(rates) for name, rates in found.items()}
        ratios = [own / other for own, other in zip(found["forebay"], found["pyarrow"], strict=True)]
        rows.append(row | {"speedup": statistics.median(ratios)})
    return rows


def arrow(study: Study) -> list[Row]:
    """Random batches of an uncompressed Arrow file."""
    return measure(study, "arrow", "shuffle", taken)


def parquet(study: Study) -> list[Row]:
    """Shuffled row groups of a zstd Parquet file."""
    return measure(study, "parquet", "group", grouped)


if __name__ == "__main__":
    run_sections(__doc__, "tables", {"arrow": arrow, "parquet": parquet}, {}, Study.of)
