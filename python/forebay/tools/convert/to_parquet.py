"""A Parquet file with zstd and row groups of few megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forebay.tools.convert import arrow_batches
from forebay.tools.convert.columns import Column, require
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse types that Arrow does not have."""
    return arrow_batches.check(columns, "parquet")


def write(path: Path, source: Source) -> None:
    """Write a batch of the source as a row group."""
    package = require("pyarrow.parquet")
    with package.ParquetWriter(path, arrow_batches.schema(source.columns), compression="zstd") as writer:
        for batch in arrow_batches.record_batches(source):
            writer.write_batch(batch)
    flush(path)
