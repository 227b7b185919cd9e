"""The first opening of large data: a million small files, and 100 GB of sparse TFRecord.

`forebay index` runs in a new process with an empty sidecar cache. Beside its peak of memory stands
that of an index of one sample, which is what Python and the libraries take. As root, the caches of
the kernel are dropped first, so directories and inodes also come from the disk.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay_lab.bench.containers import masked_crc32c
from studies.harness import small_files
from studies.harness.sections import Row, Scope

FILES, TINY_FILES = 1_000_000, 2_000
DIRECTORY_FILES = 10_000
"""A hundred directories."""
RECORDS, TINY_RECORDS = 6_400, 64
RECORD_BYTES = 16 << 20
"""6,400 records: 100 GiB."""
DROP = Path("/proc/sys/vm/drop_caches")


def index(scope: Scope) -> list[Row]:
    """`forebay index` of a million small files and 100 GB of TFRecord: seconds, memory, bytes."""
    scope.directory.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory(dir=scope.directory) as scratch:
        one = Path(scratch, "one.tfrecord")
        write_records(one, 1, 4096)
        base = measured(one)[1]
        large = Path(scratch, "large.tfrecord")
        write_records(large, scope.pick(RECORDS, TINY_RECORDS), RECORD_BYTES)
        lines.append(line("TFRecord, sparse", measured(large), base))
        folder = files(scope)
        if scope.tiny or not os.access(DROP, os.W_OK):
            print("Nothing was dropped from the kernel's caches: that takes root, and a whole run.\n")
        else:
            os.sync()
            DROP.write_text("3")
            lines.append(line("folder, inodes on the disk", measured(folder), base))
        lines.append(line("folder, inodes in memory", measured(folder), base))
    return lines


def files(scope: Scope) -> Path:
    """Return a folder of small files of 1 to 97 bytes, made once."""
    count = scope.pick(FILES, TINY_FILES)
    folder = scope.directory / f"folder-{count}"
    small_files.make(folder, count, DIRECTORY_FILES, "{:08d}.txt", lambda number: b"." * (1 + number % 97))
    return folder


def write_records(path: Path, records: int, record_bytes: int) -> None:
    """Write headers, and the checksums of data that are holes."""
    length = struct.pack("<Q", record_bytes)
    header = length + masked_crc32c(length)
    checksum = masked_crc32c(bytes(record_bytes))
    with path.open("wb") as file:
        for record in range(records):
            start = record * (record_bytes + 16)
            os.pwrite(file.fileno(), header, start)
            os.pwrite(file.fileno(), checksum, start + 12 + record_bytes)


def measured(path: Path) -> tuple[dict[str, Any], int]:
    """Index in a new process; return what it says, and its peak of resident memory [KiB]."""
    with _cache() as cache:
        command = [sys.executable, "-m", "forebay", "index", str(path), "--schema", "raw", "--json"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"FOREBAY_CACHE_DIR": str(cache)}
        )
        assert process.stdout is not None
        answer = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command} ended with {process.returncode}")
    return json.loads(answer), usage.ru_maxrss


@contextmanager
def _cache() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="forebay-cache-") as directory:
        yield Path(directory)


def line(what: str, found: tuple[dict[str, Any], int], base_kib: int) -> Row:
    report, peak_kib = found
    kept = ("samples", "file_bytes", "seconds", "reads", "read_bytes", "sidecar_bytes")
    return {
        "name": what,
        **{key: report[key] for key in kept},
        "memory_mib": (peak_kib - base_kib) / 1024,
    }
