"""The dataset that a DLIO workload describes, and where its files are in it.

DLIO lists the files of a run in its arguments. TFRecord and HDF5 files are shards: the sample *i*
of file *f* is sample ``f * num_samples_per_file + i``. An npz or npy file is one sample, and its
array has another shape than that of the next file, so these are opened as a folder of files and
parsed by numpy.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from dlio_benchmark.common.enumerations import DatasetType, FormatType

from forebay._core import FormatError, option_error
from forebay.dataset import Dataset, open

__all__ = ["Files"]

# How to open what holds several samples; of HDF5 files, DLIO's readers read one field.
_SHARDS: dict[Any, dict[str, Any]] = {
    FormatType.TFRECORD: {"format": "tfrecord"},
    FormatType.HDF5: {"format": "hdf5", "fields": ["records"], "sample_axis": 0},
}
_WHOLE = (FormatType.NPZ, FormatType.NPY)


class Files:
    """The files of a run, opened as one dataset.

    Parameters
    ----------
    arguments : dlio_benchmark.utils.config.ConfigArguments
        What DLIO knows of the run.
    dataset_type : dlio_benchmark.common.enumerations.DatasetType
        Training or validation.

    Attributes
    ----------
    dataset : Dataset
        The samples.
    parse : function or None
        Returns the arrays of a sample that the dataset holds as the bytes of a file.
    """

    def __init__(self, arguments: Any, dataset_type: Any) -> None:
        is_train = dataset_type is DatasetType.TRAIN
        listed = arguments.file_list_train if is_train else arguments.file_list_eval
        self._per_file = arguments.num_samples_per_file
        self._format = arguments.format
        # DLIO shuffles its list in place.
        self._paths = sorted(os.path.abspath(path) for path in listed)  # noqa: PTH100
        if not self._paths:
            raise option_error(
                f"forebay.dlio: the workload has no files for {dataset_type}",
                "set dataset.num_files_train, or dataset.num_files_eval for validation",
            )
        if self._format in _SHARDS:
            self.dataset, self.parse = open(self._paths, **_SHARDS[self._format]), None
        elif self._format in _WHOLE:
            self.dataset, self.parse = self._folder(), _arrays
        else:
            formats = ", ".join(str(one) for one in (*_SHARDS, *_WHOLE))
            raise option_error(
                f"forebay.dlio: dataset.format: expected one of {formats}, found {self._format}"
            )

    def _folder(self) -> Dataset:
        """Open files that are one sample each; their order is that of the paths."""
        if self._per_file != 1:
            raise option_error(
                f"forebay.dlio: dataset.num_samples_per_file: expected 1 for {self._format} files, found {self._per_file}",
                "DLIO puts the samples on the last axis of an array; use tfrecord or hdf5 for several samples in a file",
            )
        directories = sorted({os.path.dirname(path) for path in self._paths})  # noqa: PTH120
        folder = open(directories, format="folder", fields=["data"])
        numbers = {folder.extents(number)[0][0]: number for number in range(len(folder))}
        if missing := next((path for path in self._paths if path not in numbers), None):
            raise FormatError(f"{missing}: not among the {len(folder)} files of {', '.join(directories)}")
        wanted = [numbers[path] for path in self._paths]
        return folder if wanted == list(range(len(folder))) else folder.select(wanted)

    def check(self, samples: int) -> None:
        """Raise unless the dataset has as many samples as the workload says."""
        if samples != (wanted := len(self._paths) * self._per_file):
            raise option_error(
                f"forebay.dlio: expected {wanted} samples in {len(self._paths)} files from {self._paths[0]} on, "
                f"found {samples} (dataset.num_samples_per_file is {self._per_file})",
                "set num_samples_per_file to what the data was generated with",
            )

    def ids(self, places: list[tuple[str, int]]) -> list[int]:
        """Return the sample ids of places: path of a file, and number of a sample in it."""
        if not hasattr(self, "_first"):
            self._first = {path: number * self._per_file for number, path in enumerate(self._paths)}
        return [self._first[path] + int(number) for path, number in places]


def _arrays(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what an npz or npy file holds that DLIO's readers read."""
    loaded = np.load(io.BytesIO(sample["data"]), allow_pickle=False)
    return {"x": loaded["x"] if isinstance(loaded, np.lib.npyio.NpzFile) else loaded}
