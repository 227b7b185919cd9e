"""The workloads of MLPerf Storage, scaled to a small machine, as DLIO's workload files.

One factor shrinks the bytes of a step and its compute time: through the batch, and through the size
of samples that are files of many MiB. Stripes, requests and latencies are never shrunk, and files
stay several requests long. Then all times are stretched, so that a small machine carries the bytes:
those of the file system by `FILE_SYSTEM_TIME_SCALE`, and the compute time so far that the node's
link feeds `LINK_FEEDS` accelerators.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_lab.bench import workload

__all__ = ["FILE_SYSTEM_TIME_SCALE", "LINK_FEEDS", "PRESET", "WORKLOADS", "Emulated"]

PRESET = "lustre-ssd"
FILE_SYSTEM_TIME_SCALE = 100.0
"""What `--time-scale auto` chooses for the preset: it leaves 0.4 GB/s of all targets."""
LINK_BYTES_PER_SECOND = 12.5e9 / FILE_SYSTEM_TIME_SCALE
"""Of the preset's node."""
LINK_FEEDS = 4.4
"""Accelerators whose demand the link of the node carries: a loader that uses the link well passes
with 4, one that does not passes with 2."""
RANKS_OF_DATA = 8
"""Ranks for which an epoch of the data has all steps of a run."""
TINY_FILE_SAMPLES = 20
SECONDS = 10
"""Compute time of a run on up to that many ranks."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A workload at this scale.

    Attributes
    ----------
    name : str
        Name of the published workload.
    framework : str
        The one of MLPerf's file.
    sample_shrink : int
        Factor by which samples are smaller than published.
    batch : int
        Samples of a step.
    file_samples : int
        Samples of a file.
    shuffle : str
        ``seed``, or ``off``, as in MLPerf's file.
    stock : tuple of str
        DLIO's data loaders that read the format.
    threads : tuple of int
        Numbers of workers to choose from, the published one first.
    resize_bytes : int
        What DLIO's readers hand out for each sample; 0: as many bytes as it has.
    """

    name: str
    framework: str
    sample_shrink: int
    batch: int
    file_samples: int
    shuffle: str
    stock: tuple[str, ...]
    threads: tuple[int, ...]
    resize_bytes: int = 0

    @property
    def published(self) -> workload.Workload:
        return workload.load(self.name)

    @property
    def line(self) -> float:
        """Utilisation that passes."""
        found = self.published.benchmark.utilisation_line
        assert found is not None
        return found

    @property
    def sample_bytes(self) -> int:
        return round(self.published.sample.bytes / self.sample_shrink)

    @property
    def deviation_bytes(self) -> int:
        return round(self.published.sample.deviation_bytes / self.sample_shrink)

    @property
    def shrink(self) -> float:
        """Factor by which the bytes and the compute time of a step are smaller."""
        return self.sample_shrink * self.published.variant().batch_samples / self.batch

    @property
    def step_s(self) -> float:
        """Compute time of a step, stretched so that the link feeds `LINK_FEEDS` accelerators."""
        return LINK_FEEDS * self.batch * self.sample_bytes / LINK_BYTES_PER_SECOND

    @property
    def relative_slowness(self) -> float:
        """How much slower the file system is than the preset, relative to the compute time."""
        published = self.published.variant().step_seconds
        assert published is not None
        return FILE_SYSTEM_TIME_SCALE * published / self.shrink / self.step_s

    def steps(self, tiny: bool) -> int:
        """Steps of a run, on up to `RANKS_OF_DATA` ranks."""
        return 3 if tiny else max(20, round(SECONDS / self.step_s))

    def samples_of_file(self, tiny: bool) -> int:
        return min(self.file_samples, TINY_FILE_SAMPLES) if tiny else self.file_samples

    def files(self, tiny: bool) -> int:
        """Files of the dataset; at least one for each of 16 ranks, as DLIO shares out files."""
        samples = self.steps(tiny) * self.batch * (2 if tiny else RANKS_OF_DATA)
        return max(16, -(-samples // self.samples_of_file(tiny)))

    def described(self, folder: Path, tiny: bool, **sections: dict[str, Any]) -> dict[str, Any]:
        """Return DLIO's workload file."""
        return {
            "model": self.name,
            "framework": self.framework,
            "workflow": {"generate_data": False, "train": True},
            "dataset": {
                "data_folder": str(folder),
                "format": "npz" if self.published.container == "npz" else "tfrecord",
                "num_files_train": self.files(tiny),
                "num_samples_per_file": self.samples_of_file(tiny),
                "record_length": self.sample_bytes,
                "record_length_stdev": self.deviation_bytes,
                "record_length_resize": self.resize_bytes,
            },
            "train": {"epochs": 1, "computation_time": self.step_s, "seed": 123},
            "metric": {"au": self.line},
            **sections,
        }


# What MLPerf hands out for each sample, of unet3d as much smaller as the sample.
UNET3D_RESIZE_BYTES, RESNET50_RESIZE_BYTES = 2_097_152 // 16, 150_528

WORKLOADS = {
    one.name: one
    for one in (
        Emulated(
            "unet3d", "pytorch", 16, 2, 1, "seed", ("pytorch", "tensorflow"), (4, 8), UNET3D_RESIZE_BYTES
        ),
        Emulated(
            "resnet50", "tensorflow", 1, 50, 1251, "off", ("tensorflow",), (8, 4), RESNET50_RESIZE_BYTES
        ),
        Emulated("cosmoflow", "tensorflow", 1, 1, 1, "seed", ("tensorflow",), (4, 8)),
    )
}
