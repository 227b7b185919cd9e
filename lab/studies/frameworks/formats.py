"""Write the samples of a dataset in the format of each loader.

``records.npy`` is the source of raw records. ``images.npz`` (values and offsets) is that of JPEGs.
A format is written once: a stamp beside it says so.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from forebay_lab.bench.containers import framed
from studies.frameworks.place import SHARDS

__all__ = ["FORMATS", "files", "write"]

Samples = list[bytes]


def samples(folder: Path) -> Samples:
    """Return all samples as bytes."""
    if (path := folder / "records.npy").exists():
        return [row.tobytes() for row in np.load(path, mmap_mode="r")]
    with np.load(folder / "images.npz") as stored:
        values, offsets = stored["values"].tobytes(), stored["offsets"]
    return [values[first:last] for first, last in itertools.pairwise(offsets)]


def _lmdb(folder: Path, found: Samples) -> None:
    import lmdb

    with (
        lmdb.open(str(folder / "samples.lmdb"), map_size=4 << 30) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, sample in enumerate(found):
            transaction.put(b"%08d" % number, sample)


def _shards(found: Samples) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    numbered = list(enumerate(found))
    for shard in range(SHARDS):
        yield shard, numbered[shard::SHARDS]


def _tar(folder: Path, found: Samples) -> None:
    suffix = "bin" if (folder / "records.npy").exists() else "jpg"
    for shard, part in _shards(found):
        with tarfile.open(folder / f"samples-{shard:02d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, sample in part:
                member = tarfile.TarInfo(f"{number:08d}.{suffix}")
                member.size = len(sample)
                tar.addfile(member, io.BytesIO(sample))


def _tfrecord(folder: Path, found: Samples) -> None:
    for shard, part in _shards(found):
        path = folder / f"samples-{shard:02d}.tfrecord"
        path.write_bytes(b"".join(framed(sample) for _, sample in part))


def _tfrecord_one(folder: Path, found: Samples) -> None:
    with (folder / "all.tfrecord").open("wb") as file:
        file.writelines(map(framed, found))


def _litdata(folder: Path, found: Samples) -> None:
    from litdata.streaming.writer import BinaryWriter

    into = folder / "litdata"
    into.mkdir(exist_ok=True)
    # Chunks enough for four ranks with two workers each.
    writer = BinaryWriter(str(into), chunk_size=-(-len(found) // (2 * SHARDS)))
    raw = (folder / "records.npy").exists()
    for number, sample in enumerate(found):
        writer[number] = np.frombuffer(sample, np.uint8) if raw else sample
    writer.done()
    writer.merge()


def _array_record(folder: Path, found: Samples) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    # Groups of one, as Grain's guide wants them for random access.
    writer = ArrayRecordWriter(str(folder / "samples.arrayrecord"), "group_size:1,uncompressed")
    for sample in found:
        writer.write(sample)
    writer.close()


FORMATS: dict[str, tuple[Callable[[Path, Samples], None], str]] = {
    "npy": (lambda folder, found: None, "records.npy"),
    "lmdb": (_lmdb, "samples.lmdb/data.mdb"),
    "tar": (_tar, "samples-*.tar"),
    "tfrecord": (_tfrecord, "samples-*.tfrecord"),
    "tfrecord-one": (_tfrecord_one, "all.tfrecord"),
    "litdata": (_litdata, "litdata/*"),
    "array_record": (_array_record, "samples.arrayrecord"),
}
"""Name → what writes it, and its files."""


def files(folder: Path, name: str) -> list[Path]:
    """Return the files of a format."""
    return sorted(folder.glob(FORMATS[name][1]))


def write(folder: Path, names: list[str]) -> None:
    """Write the formats that are missing."""
    missing = [name for name in names if not (folder / f"{name}.written").exists()]
    if not missing:
        return
    found = samples(folder)
    for name in missing:
        FORMATS[name][0](folder, found)
        (folder / f"{name}.written").touch()


if __name__ == "__main__":
    write(Path(sys.argv[1]), json.loads(sys.argv[2]))
