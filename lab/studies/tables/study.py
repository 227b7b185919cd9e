"""The sections: one for each format."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay
from forebay_lab.bench.turns import in_turn, median_ratio
from studies.harness.sections import DIRECTORY, Row, Scope, Study

BATCH = 256
GROUP_ROWS = 1_000
SAMPLE_BYTES = (3_073, 110_000)
DATA_BYTES = 256 << 20


def file(scope: Scope, kind: str, sample_bytes: int) -> Path:
    """Write a file of random bytes and labels, once."""
    samples = max(2 * BATCH, scope.pick(DATA_BYTES, DATA_BYTES // 100) // sample_bytes)
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


def measure(scope: Scope, kind: str, order: str, by_pyarrow: Callable[..., Iterator[pa.Table]]) -> list[Row]:
    """Measure one format in one order."""
    rows: list[Row] = []
    for sample_bytes in SAMPLE_BYTES:
        path, draw = file(scope, kind, sample_bytes), np.random.default_rng(2)
        with forebay.Loader(path, BATCH, order=order, last_batch="drop", world="single") as loader:
            found = in_turn(
                {
                    "forebay": lambda: rate(len(batch["label"]) for batch in loader),
                    "pyarrow": lambda path=path, draw=draw: rate(len(one) for one in by_pyarrow(path, draw)),
                },
                scope.repetitions,
            )
        row: Row = {"format": kind, "order": order, "sample_bytes": sample_bytes}
        row |= {f"{name}_samples_per_second": statistics.median(rates) for name, rates in found.items()}
        rows.append(row | {"speedup": median_ratio(found["forebay"], found["pyarrow"])})
    return rows


def arrow(scope: Scope) -> list[Row]:
    """Random batches of an uncompressed Arrow file."""
    return measure(scope, "arrow", "shuffle", taken)


def parquet(scope: Scope) -> list[Row]:
    """Shuffled row groups of a zstd Parquet file."""
    return measure(scope, "parquet", "group", grouped)


STUDY = Study(sections={"arrow": arrow, "parquet": parquet}, repetitions=5)
