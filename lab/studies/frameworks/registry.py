"""The rows of a comparison: each loader at the settings that were fastest here.

`stock` rows are other projects', `bound` rows are what no loader passes, `reference` rows are shown
without ratios.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["JPEG", "RAW", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A row: `loader` is MODULE:CLASS, `format` names its data, `packages` what it imports."""

    name: str
    loader: str
    format: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    role: str = "stock"
    # Mapped pages cannot be dropped: such a row is measured warm only, or its ranks start anew
    # before each cold turn.
    states: tuple[str, ...] = ("warm", "cold")
    restarts: bool = False


_WARM, _COLD = ("warm",), ("cold",)
_MMAP = {"access": "mmap"}
_PREAD = {"access": "pread"}


def _torch(workers: int, access: Mapping[str, Any], states: tuple[str, ...]) -> Entry:
    return Entry(
        f"torch DataLoader, npy {access['access']}, {workers} workers",
        "torch_dataloader:NpyBatches",
        "npy",
        {"workers": workers, **access},
        ("torch",),
        states=states,
    )


RAW = (
    Entry(
        "one memory copy, in order", "bounds:Copy", "npy", {"shuffled": False}, role="reference", states=_WARM
    ),
    Entry("one memory copy, shuffled", "bounds:Copy", "npy", {"shuffled": True}, role="bound", states=_WARM),
    Entry("one sequential read", "bounds:Read", "npy", role="bound", states=_COLD),
    Entry("Forebay, npy", "forebay_loader:Records", "npy", {"format": "npy"}, role="forebay"),
    Entry(
        "Forebay, TFRecord",
        "forebay_loader:Records",
        "tfrecord",
        {"format": "tfrecord"},
        ("google_crc32c",),  # writes the data
        role="forebay",
    ),
    *(_torch(workers, _MMAP, ("warm",)) for workers in (0, 1, 2)),
    *(_torch(workers, _PREAD, ("cold",)) for workers in (0, 2)),
    Entry(
        "torch DataLoader, LMDB, 2 workers",
        "torch_dataloader:LmdbRecords",
        "lmdb",
        {"workers": 2},
        ("torch", "lmdb"),
        states=_WARM,
    ),
    Entry("webdataset, 2 workers", "webdataset_tar:Tar", "tar", {"workers": 2}, ("webdataset", "torch")),
    Entry("tf.data, TFRecord", "tf_data:TFRecord", "tfrecord", {}, ("tensorflow",)),
    Entry(
        "LitData, 2 workers",
        "litdata_chunks:Chunks",
        "litdata",
        {"workers": 2},
        ("litdata", "torch"),
        states=_WARM,
    ),
    Entry(
        "LitData, 0 workers",
        "litdata_chunks:Chunks",
        "litdata",
        {"workers": 0},
        ("litdata", "torch"),
        restarts=True,
    ),
    Entry(
        "Grain, ArrayRecord",
        "grain_records:ArrayRecord",
        "array_record",
        {"threads": 2},
        ("grain", "array_record"),
    ),
    Entry(
        "SPDL, npy mmap", "spdl_pipeline:NpyBatches", "npy", {"threads": 2, **_MMAP}, ("spdl",), states=_WARM
    ),
    Entry(
        "SPDL, npy pread",
        "spdl_pipeline:NpyBatches",
        "npy",
        {"threads": 4, **_PREAD},
        ("spdl",),
        states=_COLD,
    ),
)

_PILLOW = ("simplejpeg", "PIL")

JPEG = (
    Entry(
        "simplejpeg in 2 bare threads",
        "bare_decoders:Threads",
        "npz",
        {"function": "simplejpeg", "threads": 2},
        _PILLOW,
        role="bound",
    ),
    Entry(
        "forebay.image in 2 bare threads",
        "bare_decoders:Engine",
        "tar",
        {"threads": 2, "function": "engine"},
        role="bound",
    ),
    Entry(
        "Forebay, transform= with simplejpeg",
        "forebay_loader:Jpeg",
        "tar",
        {"format": "tar", "function": "simplejpeg", "threads": 2},
        _PILLOW,
        role="forebay",
    ),
    Entry(
        "Forebay, decode=forebay.image",
        "forebay_loader:Jpeg",
        "tar",
        {"format": "tar", "function": "engine"},
        role="forebay",
    ),
    *(
        Entry(
            f"torch DataLoader, {function}, 2 workers",
            "torch_dataloader:Jpeg",
            "lmdb",
            {"workers": 2, "function": function},
            ("torch", "lmdb", *packages),
        )
        for function, packages in (("simplejpeg", _PILLOW), ("torchvision", ("torchvision",)))
    ),
    Entry(
        "webdataset, simplejpeg, 2 workers",
        "webdataset_tar:Tar",
        "tar",
        {"workers": 2, "function": "simplejpeg"},
        ("webdataset", "torch", *_PILLOW),
    ),
    Entry("tf.data, decode_and_crop_jpeg", "tf_data:TFRecord", "tfrecord", {}, ("tensorflow",)),
    Entry(
        "SPDL, simplejpeg, 2 threads",
        "spdl_pipeline:Jpeg",
        "lmdb",
        {"threads": 2, "function": "simplejpeg"},
        ("spdl", "lmdb", *_PILLOW),
    ),
)
