"""Where samples lie: those of a workload, without its data, or of a dataset that is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay_lab import _native
from forebay_lab.bench.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.dataset import Dataset

__all__ = ["Places", "of_dataset", "of_opened", "of_workload"]

_LABEL_BYTES = 11
"""About what Caffe's record has besides the image."""
_FRAMES = {"tfrecord": (12, 4)}
"""By container: bytes of a record before its value, and after it."""
_NO_FRAME = (0, 0)
_NPZ_HEADER_BYTES = 512
"""Local file header and npy header of an array in a zip file, about."""
_HDF5_HEADER_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Places:
    """Where the samples of a dataset lie."""

    description: dict[str, Any]
    """The few numbers that describe it; empty of a dataset that is there."""
    model: _native.SimPlaces
    """What computes the places, made once for all simulations."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.model.samples

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample, the mean where they differ."""
        return self.model.sample_bytes

    @classmethod
    def of(cls, kind: str, **description: int) -> Places:
        """Compute the places of records of one length.

        Parameters
        ----------
        kind
            ``uniform``: records at regular places of files. ``lmdb``: as LMDB's library lays them
            out.
        description
            The numbers, as in ``places`` of the crate forebay-sim.
        """
        return cls({kind: description}, _native.SimPlaces(json.dumps({kind: description})))


def of_opened(
    dataset: Dataset, report: Callable[[str, int, int], None] | None
) -> tuple[Places, Sequence[str]]:
    """Return where the samples of a dataset lie, and what that leaves out.

    Parameters
    ----------
    dataset
        What ``forebay.open`` returns; its index is built where it has none.
    report
        Told (what, done, all) while that runs.

    Raises
    ------
    ForebayError
        If the index cannot be had, or the dataset has no model.
    """
    places = Places({}, _native.SimPlaces.of_dataset(dataset.native_of(_native), report))
    return places, ("what decoding and padding costs, and the pages of a tree between records",)


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
    left_out = [_one_size(size)] if workload.sample.deviation_bytes else []
    if container == "lmdb":
        value = size + (_LABEL_BYTES if workload.sample.record == "caffe-datum" else 0)
        left_out.append("branches of the tree of an LMDB file")
        return Places.of("lmdb", samples=scaled.samples, sample_bytes=value), left_out
    head, tail = _FRAMES.get(container, _NO_FRAME)
    places = Places.of(
        "uniform",
        samples=scaled.samples,
        files=scaled.files,
        header_bytes={"npz": _NPZ_HEADER_BYTES, "hdf5": _HDF5_HEADER_BYTES}.get(container, 0),
        stride_bytes=head + size + tail,
        head_bytes=head,
        sample_bytes=size,
    )
    return places, left_out


def of_dataset(
    kind: str, *, samples: int, files: int, file_bytes: int, mean_bytes: float, commit_samples: int
) -> tuple[Places, Sequence[str]]:
    """Return about where the samples of a dataset lie, from what a result says of it.

    Parameters
    ----------
    kind
        Its container, as `forebay inspect` names it.
    samples, files
        How many.
    file_bytes
        Of all files [bytes].
    mean_bytes
        Of a record [bytes].
    commit_samples
        Of a transaction that wrote an LMDB file.

    Raises
    ------
    OptionError
        If there is no such dataset.
    """
    size = max(round(mean_bytes), 1)
    left_out = [] if size == mean_bytes else [_one_size(size)]
    if kind == "lmdb":
        left_out.append("branches of the tree of an LMDB file")
        left_out.append(f"when an LMDB file was committed: every {commit_samples:,} records are taken for it")
        places = Places.of("lmdb", samples=samples, sample_bytes=size, transaction_samples=commit_samples)
        return places, left_out
    head, tail = _FRAMES.get(kind, _NO_FRAME)
    rest = file_bytes - samples * (head + size + tail)
    places = Places.of(
        "uniform",
        samples=samples,
        files=files,
        # What is in the files besides samples comes before the first one.
        header_bytes=max(rest, 0) // files,
        stride_bytes=head + size + tail,
        head_bytes=head,
        sample_bytes=size,
    )
    return places, left_out


def _one_size(size: int) -> str:
    return f"sizes of samples that differ: all have the mean, {size:,} bytes"
