"""Where the samples of a workload lie, without its data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forebay_lab.bench.containers import lmdb_record
from forebay_lab.bench.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Places", "of_workload"]

_LABEL_BYTES = 11
"""About what Caffe's record has besides the image."""
_LMDB_META_BYTES = 8192
_TFRECORD_HEAD_BYTES, _TFRECORD_TAIL_BYTES = 12, 4
_NPZ_HEADER_BYTES = 512
"""Local file header and npy header of an array in a zip file, about."""
_HDF5_HEADER_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Records of one length at regular places."""

    samples: int
    files: int = 1
    header_bytes: int = 0
    """Before the first record of a file."""
    stride_bytes: int
    """From a record of a file to the next."""
    head_bytes: int = 0
    """Of a record before its value."""
    sample_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the dataset of a simulated job."""
        return {"uniform": asdict(self)}

    @property
    def file_bytes(self) -> int:
        """Size of all files."""
        return self.files * self.header_bytes + self.samples * self.stride_bytes


def of_workload(workload: Workload, scale: float, container: str | None) -> tuple[Places, Sequence[str]]:
    """Return where the samples of a workload lie, and what that leaves out.

    Raises
    ------
    OptionError
        If scale or container are none.
    """
    container = container or workload.container
    scaled = workload.scaled(scale, container)
    size = workload.sample.bytes
    left_out = []
    if workload.sample.deviation_bytes:
        left_out.append(f"sizes of samples that differ: all have the mean, {size:,} bytes")
    if container == "lmdb":
        value = size + (_LABEL_BYTES if workload.sample.record == "caffe-datum" else 0)
        record, head = lmdb_record(value)
        left_out.append("pages of the tree of an LMDB file, which lie between those of the records")
        places = Places(
            samples=scaled.samples,
            header_bytes=_LMDB_META_BYTES,
            stride_bytes=record,
            head_bytes=head,
            sample_bytes=value,
        )
    elif container == "tfrecord":
        places = Places(
            samples=scaled.samples,
            files=scaled.files,
            stride_bytes=_TFRECORD_HEAD_BYTES + size + _TFRECORD_TAIL_BYTES,
            head_bytes=_TFRECORD_HEAD_BYTES,
            sample_bytes=size,
        )
    else:
        header = _NPZ_HEADER_BYTES if container == "npz" else _HDF5_HEADER_BYTES
        places = Places(
            samples=scaled.samples,
            files=scaled.files,
            header_bytes=header,
            stride_bytes=size,
            sample_bytes=size,
        )
    return places, left_out
