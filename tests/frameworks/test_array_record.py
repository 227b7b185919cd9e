"""ArrayRecord: files that Grain's own writer makes now are read as its own reader reads them."""

from __future__ import annotations

import numpy as np
import pytest

import forebay

array_record_module = pytest.importorskip(
    "array_record.python.array_record_module", reason="array_record cannot be had here"
)


@pytest.mark.parametrize(
    "options", ["", "group_size:1,uncompressed", "group_size:5", "group_size:40,uncompressed"]
)
@pytest.mark.parametrize("seed", range(3))
def test_records_of_any_lengths_are_those_of_the_library(tmp_path, options, seed):
    rng = np.random.default_rng(seed)
    lengths = [int(length) for length in rng.integers(0, 2 ** rng.integers(1, 18, 150))]
    records = [rng.bytes(length) for length in lengths]
    path = str(tmp_path / "x.array_record")
    writer = array_record_module.ArrayRecordWriter(path, options)
    for record in records:
        writer.write(record)
    writer.close()
    reader = array_record_module.ArrayRecordReader(path)
    assert reader.read_all() == records
    dataset = forebay.open(path, schema="raw")
    assert dataset.format == "arrayrecord"
    assert list(dataset) == records
