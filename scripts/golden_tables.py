"""Write the small Arrow and Parquet files of the tests of damage and of the fuzz targets.

    python scripts/golden_tables.py    # writes crates/forebay-format/tests/golden/tables

pyarrow writes them: one row of each kind of column, in several batches or row groups. Each file has
12 rows.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TABLES = Path(__file__).resolve().parent.parent / "crates/forebay-format/tests/golden/tables"
ROWS = 12
BATCH_ROWS = 5


def table() -> pa.Table:
    """Return a table with a column of most kinds."""
    rows = range(ROWS)
    return pa.table(
        {
            "number": pa.array(rows, pa.int16()),
            "text": [str(row) * (row % 4) for row in rows],
            "flag": [row % 3 == 0 for row in rows],
            "list": pa.array([list(range(row % 3)) for row in rows], pa.list_(pa.int32())),
            "pair": pa.array([[row, -row] for row in rows], pa.list_(pa.float32(), 2)),
            "label": pa.array(["ab"[row % 2] for row in rows]).dictionary_encode(),
            "image": [{"bytes": bytes([row] * row), "path": None} for row in rows],
            "time": pa.array(rows, pa.timestamp("us")),
        }
    )


def main() -> None:
    """Write all files."""
    TABLES.mkdir(parents=True, exist_ok=True)
    found = table()
    for compression in (None, "lz4", "zstd"):
        for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            path = TABLES / f"{name}-{compression or 'plain'}.arrow"
            with (
                pa.OSFile(str(path), "wb") as file,
                new(file, found.schema, options=options) as writer,
            ):
                writer.write_table(found, max_chunksize=BATCH_ROWS)
    for compression in ("none", "snappy", "gzip", "lz4", "zstd"):
        path = TABLES / f"{compression}.parquet"
        pq.write_table(found, path, row_group_size=BATCH_ROWS, compression=compression)
    pq.write_table(found, TABLES / "second.parquet", data_page_version="2.0", use_dictionary=False)


if __name__ == "__main__":
    main()
