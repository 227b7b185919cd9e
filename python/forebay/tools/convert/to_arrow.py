"""An Arrow file without compression, so that its values are read in place."""

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
    return arrow_batches.check(columns, "arrow")


def write(path: Path, source: Source) -> None:
    """Write a batch of the source as a record batch."""
    package = require("pyarrow")
    with (
        package.OSFile(str(path), "wb") as file,
        package.ipc.new_file(file, arrow_batches.schema(source.columns)) as writer,
    ):
        for batch in arrow_batches.record_batches(source):
            writer.write_batch(batch)
    flush(path)
