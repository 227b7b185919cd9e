"""Write the golden files of MDS, LitData and ArrayRecord with the libraries of these formats.

The libraries bring large requirements, so they live in an environment of their own, once:

    python3.11 -m venv /tmp/shards
    /tmp/shards/bin/pip install mosaicml-streaming==0.13.0 litdata==0.2.76 array_record==0.8.6
    /tmp/shards/bin/python scripts/make_shard_golden.py tests/formats/golden

The tests make the samples again (`tests/support/shard_records.py`). Each library reads its files
back here, so that a test compares Forebay with what the library delivers.
"""

import sys
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import streaming
import torch
from array_record.python import array_record_module
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))
from shard_records import (
    ARRAY_RECORD_OPTIONS,
    MDS_COLUMNS,
    array_records,
    mds_sample,
    token_sample,
    tree_sample,
)

SAMPLES = 20


def equal(found: Any, expected: Any) -> bool:
    """Compare values, arrays and tensors of any of the libraries."""
    if isinstance(found, torch.Tensor):
        found = found.numpy()
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    return bool(found == expected)


def write_mds(
    directory: Path, columns: dict[str, str], samples: list[dict[str, Any]], **options: Any
) -> None:
    """Write shards of MDS, and read them back."""
    with streaming.MDSWriter(out=str(directory), columns=columns, size_limit=1600, **options) as writer:
        for sample in samples:
            writer.write(sample)
    if options:
        return
    dataset = streaming.LocalDataset(str(directory))
    for shard in dataset.shards:
        # The images here only begin like a JPEG.
        shard.column_encodings = [name.replace("jpeg", "bytes") for name in shard.column_encodings]
    for number, sample in enumerate(samples):
        found = dataset[number]
        assert all(equal(found[name], value) for name, value in sample.items()), (found, sample)


def write_litdata(directory: Path, samples: list[Any], chunk_size: int = 7, **options: Any) -> None:
    """Write chunks of LitData."""
    writer = BinaryWriter(str(directory), chunk_size=chunk_size, **options)
    for number, sample in enumerate(samples):
        writer[number] = sample
    writer.done()
    writer.merge()


def tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with tensors where its names say so."""
    return {
        name: torch.from_numpy(value.copy()) if name in ("tensor", "vector") else value
        for name, value in sample.items()
    }


def main() -> None:
    """Write all files below the directory that is named."""
    golden = Path(sys.argv[1])
    samples = [mds_sample(number) for number in range(SAMPLES)]
    write_mds(golden / "mds" / "columns", MDS_COLUMNS, samples)
    write_mds(golden / "mds" / "zstd", MDS_COLUMNS, samples, compression="zstd")
    tokens = [{"tokens": token_sample(number).tobytes()} for number in range(SAMPLES)]
    write_mds(golden / "mds" / "tokens", {"tokens": "bytes"}, tokens)

    trees = [tree_sample(number) for number in range(SAMPLES)]
    write_litdata(golden / "litdata" / "trees", [tensors(sample) for sample in trees])
    read = litdata.StreamingDataset(str(golden / "litdata" / "trees"))
    for number, sample in enumerate(trees):
        found = read[number]
        assert all(equal(found[name], value) for name, value in sample.items()), (found, sample)
    write_litdata(golden / "litdata" / "leaf", [token_sample(number) for number in range(SAMPLES)])
    documents = [torch.from_numpy(token_sample(number).astype(np.int32)) for number in range(SAMPLES)]
    write_litdata(golden / "litdata" / "tokens", documents, 60, item_loader=TokensLoader())
    write_litdata(golden / "litdata" / "arrow", [{"text": f"{number}", "n": number} for number in range(9)])
    compressed = [tensors(sample) for sample in trees]
    write_litdata(golden / "litdata" / "zstd", compressed, compression="zstd", compression_level="chunk")
    write_litdata(golden / "litdata" / "framed", compressed, compression="zstd")

    directory = golden / "arrayrecord"
    directory.mkdir(parents=True, exist_ok=True)
    refused = {"brotli": "group_size:1,brotli", "transposed": "group_size:7,transpose:true"}
    for name, options in {**ARRAY_RECORD_OPTIONS, **refused}.items():
        path = str(directory / f"{name}.array_record")
        writer = array_record_module.ArrayRecordWriter(path, options)
        records = array_records()[:5] if name in refused else array_records()
        for record in records:
            writer.write(record)
        writer.close()
        reader = array_record_module.ArrayRecordReader(path)
        assert reader.read_all() == records
        reader.close()


if __name__ == "__main__":
    main()
