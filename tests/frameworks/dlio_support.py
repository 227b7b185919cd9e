"""What tests of forebay.dlio share: DLIO's arguments in this process, and whole runs of DLIO."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from forebay_lab.ranks import launch
from support import DEADLINE_S

dlio = pytest.importorskip("dlio_benchmark", reason="the environment has no DLIO")

from dlio_benchmark.common.enumerations import DatasetType  # noqa: E402
from dlio_benchmark.utils.config import ConfigArguments, LoadConfig  # noqa: E402
from dlio_benchmark.utils.utility import DLIOMPI  # noqa: E402

LOADER = {"data_loader_classname": "forebay.dlio.DataLoader", "data_loader_sampler": "none"}
READER = {"reader_classname": "forebay.dlio.Reader"}


def workload(folder: Path, format: str, *, reader: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Describe a small workload of 12 samples, as a workload file does."""
    per_file = {"npz": 1, "npy": 1, "tfrecord": 3, "hdf5": 3}[format]
    found: dict[str, Any] = {
        "model": "small",
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True},
        "dataset": {
            "data_folder": str(folder / format),
            "format": format,
            "num_files_train": 12 // per_file,
            "num_samples_per_file": per_file,
            "record_length": 2500,
        },
        "reader": {"data_loader": "pytorch", "batch_size": 2, "read_threads": 1, **reader},
        "train": {"epochs": 1, "computation_time": 0.001},
    }
    for section, values in sections.items():
        found[section] = {**found.get(section, {}), **values}
    return found


def write(folder: Path, format: str, *, varied: bool = False) -> dict[int, np.ndarray]:
    """Write what DLIO generates for such a workload; return its images by sample id."""
    train = folder / format / "train"
    train.mkdir(parents=True)
    (folder / format / "valid").mkdir()
    rng = np.random.default_rng(7)
    images = {
        number: rng.integers(255, size=(50 - (number if varied else 0), 50), dtype=np.uint8)
        for number in range(12)
    }
    if format in ("npz", "npy"):
        for number, image in images.items():
            path = train / f"img_{number:02d}_of_12.{format}"
            with path.open("wb") as file:
                if format == "npz":
                    np.savez(file, x=image[..., None], y=[0])
                else:
                    np.save(file, image[..., None])
        return images
    for first in range(0, 12, 3):
        path = train / f"img_{first // 3}_of_4.{format}"
        block = [images[number] for number in range(first, first + 3)]
        if format == "hdf5":
            import h5py

            with h5py.File(path, "w") as file:
                file["records"], file["labels"] = np.stack(block), [0] * 3
        else:
            import tensorflow as tf

            with tf.io.TFRecordWriter(str(path)) as writer:
                for image in block:
                    pixels = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()]))
                    size = tf.train.Feature(int64_list=tf.train.Int64List(value=[50]))
                    features = tf.train.Features(feature={"image": pixels, "size": size})
                    writer.write(tf.train.Example(features=features).SerializeToString())
    return images


def arguments(described: dict[str, Any]) -> Any:
    """Return DLIO's arguments for a workload, in this process alone."""
    # Open MPI would leave a segment of shared memory behind, which one process does not need.
    os.environ["OMPI_MCA_btl"] = "self"  # noqa: SIM112 as Open MPI names it
    DLIOMPI.reset()
    DLIOMPI.get_instance().initialize()
    ConfigArguments.reset()
    found = ConfigArguments.get_instance()
    LoadConfig(found, described)
    folder = Path(found.data_folder) / "train"
    found.derive_configurations(sorted(map(str, folder.rglob(f"*.{found.format}"))), [])
    found.reconfigure(1)
    return found


def loader_of(described: dict[str, Any]) -> Any:
    """Return the data loader that DLIO makes for a workload."""
    from dlio_benchmark.data_loader.data_loader_factory import DataLoaderFactory

    found = arguments(described)
    return DataLoaderFactory.get_loader(found.data_loader, found.format, DatasetType.TRAIN, 1)


class Taken(NamedTuple):
    """A batch, copied."""

    ids: list[int]
    fields: dict[str, list[np.ndarray]]

    def images(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the id and the pixels, in one axis, of each sample."""
        (name,) = self.fields.keys() - {"size"}
        for number, value in zip(self.ids, self.fields[name], strict=True):
            yield number, value.reshape(-1)


def epochs_of(loader: Any, epochs: int) -> Iterator[list[Taken]]:
    """Iterate a data loader as DLIO does: read once, then finalize after each epoch."""
    loader.read()
    for _ in range(epochs):
        yield [
            Taken(
                batch.indices.tolist(),
                {name: [np.array(one) for one in values] for name, values in batch.items()},
            )
            for batch in loader.next()
        ]
        loader.finalize()


def run(described: dict[str, Any], folder: Path, ranks: int) -> dict[str, Any]:
    """Run DLIO on MPI ranks; return its summary and what each rank measured."""
    (folder / "workload").mkdir(parents=True)
    output = folder / "output"
    described = {**described, "output": {"folder": str(output)}}
    (folder / "workload/small.yaml").write_text(yaml.safe_dump(described))
    program = ["-m", "dlio_benchmark.main", f"--config-dir={folder}", "workload=small"]
    program += [f"hydra.run.dir={folder / 'hydra'}"]
    variables = {name: value for name, value in os.environ.items() if name.startswith("FOREBAY_")}
    launch.run(
        launch.command(ranks, program),
        deadline_s=DEADLINE_S,
        progress=lambda _: None,
        what="DLIO",
        variables=variables,
    )
    return {
        "summary": json.loads((output / "summary.json").read_text()),
        "ranks": [json.loads((output / f"{rank}_output.json").read_text()) for rank in range(ranks)],
    }


def steps_of(found: dict[str, Any]) -> list[list[int]]:
    """Return the number of steps of each epoch on each rank."""
    return [
        [len(rank[epoch]["load"]["block1"]) for epoch in sorted(key for key in rank if key.isdigit())]
        for rank in found["ranks"]
    ]
