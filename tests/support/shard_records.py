"""Samples of the golden files of MDS, LitData and ArrayRecord.

``scripts/make_shard_golden.py`` writes the files.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

MDS_COLUMNS = {
    "image": "jpeg",
    "label": "int",
    "weight": "float32",
    "count": "uint16",
    "name": "str",
    "facts": "json",
    "digits": "str_int",
    "grid": "ndarray:float32:2,3",
    "tokens": "ndarray:int32",
    "pixels": "ndarray",
    "blob": "bytes",
}
"""Columns of MDS and their encodings."""


def mds_sample(number: int) -> dict[str, Any]:
    """Return a sample as MDSWriter takes it."""
    rng = np.random.default_rng(number)
    return {
        "image": b"\xff\xd8" + rng.bytes(20 + number % 7),
        "label": number - 5,
        "weight": np.float32(number / 4),
        "count": np.uint16(number * 1000),
        "name": f"näme-{number}" * (number % 3),
        "facts": {"number": number, "even": number % 2 == 0},
        "digits": 10**number,
        "grid": rng.random((2, 3), np.float32),
        "tokens": rng.integers(0, 1 << 20, 3 + number % 5, np.int32),
        "pixels": rng.integers(0, 256, (2, 4), np.uint8),
        "blob": rng.bytes(number % 4),
    }


def mds_fields(number: int) -> dict[str, Any]:
    """Return the same sample as Forebay delivers it."""
    sample = mds_sample(number)
    return {
        **sample,
        "label": np.int64(sample["label"]),
        "name": sample["name"].encode(),
        "facts": json.dumps(sample["facts"]).encode(),
        "digits": str(sample["digits"]).encode(),
    }


def token_sample(number: int) -> np.ndarray[Any, Any]:
    """Return a document of tokens."""
    return np.random.default_rng(number).integers(0, 50_000, 5 + number % 9, np.uint16)


def tree_sample(number: int) -> dict[str, Any]:
    """Return a sample of LitData, without torch: arrays stand for tensors where a name says so."""
    rng = np.random.default_rng(100 + number)
    return {
        "blob": rng.bytes(number % 6),
        "even": number % 2 == 0,
        "grid": rng.random((2, 2), np.float32),
        "label": number - 3,
        "line": rng.integers(0, 1000, number % 4, np.uint16),
        "tensor": rng.integers(-9, 9, (3, 2), np.int16),
        "text": f"text {number} ä",
        "vector": rng.random(2 + number % 3),
        "weight": number / 8,
    }


def array_records() -> list[bytes]:
    """Return records of ArrayRecord: empty ones, short ones, and some that blocks cut."""
    rng = np.random.default_rng(7)
    lengths = [0, 1, 40, 300, 0, 70_000, 5, 65_536, 17, *range(60, 90)]
    # Repeated, so that the files are small in a repository.
    return [(rng.bytes(16) * (length // 16 + 1))[:length] for length in lengths]


ARRAY_RECORD_OPTIONS = {
    "plain": "group_size:1,uncompressed",
    "zstd": "group_size:1,zstd",
    "grouped": "group_size:7,zstd",
    "grouped_plain": "group_size:7,uncompressed",
}
"""Files that are read, and the options they are written with."""
