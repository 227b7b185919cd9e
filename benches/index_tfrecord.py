"""What the index of a large TFRecord file costs: bytes read, time, memory; on a sparse file, which takes little of the disk.

.venv/bin/python benches/index_tfrecord.py [--gibibytes 100] [--record-mebibytes 16]
"""

import argparse
import json
import os
import resource
import struct
import tempfile
from pathlib import Path

import google_crc32c

import forebay


def masked_crc32c(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write(path: Path, records: int, record_bytes: int) -> None:
    """Write headers, and the checksums of data that are holes."""
    length = struct.pack("<Q", record_bytes)
    header = length + masked_crc32c(length)
    checksum = masked_crc32c(bytes(record_bytes))
    with path.open("wb") as file:
        for record in range(records):
            start = record * (record_bytes + 16)
            os.pwrite(file.fileno(), header, start)
            os.pwrite(file.fileno(), checksum, start + 12 + record_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gibibytes", type=int, default=100)
    parser.add_argument("--record-mebibytes", type=int, default=16)
    arguments = parser.parse_args()
    record_bytes = arguments.record_mebibytes << 20
    records = (arguments.gibibytes << 30) // record_bytes
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "large.tfrecord"
        write(path, records, record_bytes)
        os.environ["FOREBAY_CACHE_DIR"] = directory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = forebay.open(path, schema="raw").native.build_index()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shown = {
        key: report[key]
        for key in ("samples", "file_bytes", "reads", "read_bytes", "seconds", "sidecar_bytes")
    }
    print(json.dumps({**shown, "peak_rss_before_kib": before, "peak_rss_after_kib": after}))


if __name__ == "__main__":
    main()
