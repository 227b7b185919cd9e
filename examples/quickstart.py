"""Read a numpy file in shuffled groups, for two epochs.

Run it as follows; the last lines say what the loader decided and why:

    python examples/quickstart.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import forebay

SAMPLES, BATCH, EPOCHS = 10_000, 256, 2


def main() -> None:
    """Write a dataset, iterate it, print what the loader did."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npz"
        images = np.random.default_rng(0).random((SAMPLES, 3, 32, 32), "float32")
        np.savez(path, image=images, label=np.arange(SAMPLES) % 10)

        dataset = forebay.open(path)
        print(f"{dataset.format} file of {len(dataset):,} samples: {dataset.fields}")

        with forebay.Loader(dataset, BATCH, order="group", expected_epochs=EPOCHS) as loader:
            for epoch in range(EPOCHS):
                mean = 0.0
                for batch in loader:
                    # Numpy arrays by the names of the fields; batch.indices has the sample ids.
                    mean += float(batch["image"].mean()) / len(loader)
                    assert (batch["label"] == batch.indices % 10).all()
                print(f"epoch {epoch}: {len(loader)} steps, mean {mean:.3f}")
            print(loader.explain())
            stats = loader.stats()
        delivered = stats["requested_bytes"] / 2**20
        print(f"{delivered:.0f} MiB delivered; the script waited {stats['exposed_seconds']:.3f} s")


if __name__ == "__main__":
    main()
