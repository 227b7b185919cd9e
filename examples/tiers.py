"""Keep copies of what was read on storage of the node; the second epoch reads the copies.

    python examples/tiers.py

In a training, the data are on a shared file system and the tier on a local disk:

    loader = forebay.Loader("/lustre/train.tfrecord", 256, tiers=["/scratch/me:200GiB"])
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import forebay

SAMPLES, BATCH, EPOCHS = 2_000, 50, 3


def main() -> None:
    """Read three epochs; print where the bytes of each came from."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, tier = folder / "train.npy", folder / "tier"
        tier.mkdir()
        np.save(path, np.random.default_rng(0).random((SAMPLES, 4096), "float32"))
        # Files that were changed in the last 2 s are not copied: their times are coarse.
        time.sleep(2.1)
        with forebay.Loader(
            path,
            BATCH,
            order="shuffle",
            expected_epochs=EPOCHS,
            tiers=[f"{tier}:64MiB"],
            # Only for this example, whose file is in the page cache: no tier is faster than that,
            # so no copies are made where the cache is mapped.
            strategy="pread",
        ) as loader:
            print(loader.explain())
            for _ in range(EPOCHS):
                for _ in loader:
                    pass
            by_epoch = loader.stats()["level_bytes_by_epoch"]
        for epoch, levels in by_epoch.items():
            shares = ", ".join(
                f"{level}: {count / 1e6:.1f} MB" for level, count in levels.items() if count > 1e5
            )
            print(f"epoch {epoch}: {shares}")


if __name__ == "__main__":
    main()
