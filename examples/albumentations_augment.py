"""Decode and augment images with albumentations, the same on any number of threads.

    pip install albumentations
    python examples/albumentations_augment.py

A pipeline keeps the state of its random numbers, so each thread has its own.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np

import forebay

FILES, SIZE, BATCH = 48, 64, 16

local = threading.local()


def pipeline() -> albumentations.Compose:
    """Return the pipeline of this thread."""
    if not hasattr(local, "pipeline"):
        local.pipeline = albumentations.Compose(
            [
                albumentations.RandomCrop(SIZE, SIZE),
                albumentations.HorizontalFlip(p=0.5),
                albumentations.RandomBrightnessContrast(),
            ]
        )
    return local.pipeline


def augment(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
    """Decode a sample and augment it; `rng` depends on seed, epoch and sample alone."""
    pixels = cv2.cvtColor(cv2.imdecode(sample["data"], cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    pipeline().set_random_seed(int(rng.integers(1 << 32)))
    return {"image": pipeline()(image=pixels)["image"], "label": sample["label"]}


def write_folder(folder: Path) -> None:
    """Write PNG files as folder/CLASS/NUMBER.png."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / ("ant", "bee")[number % 2] / f"{number:04}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 256, (SIZE + 16, SIZE + 32, 3), "uint8"))


def main() -> None:
    """Load with one thread and with four; the images are the same."""
    cv2.setNumThreads(1)  # the loader has threads of its own
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name))
        epochs = []
        for threads in (1, 4):
            with forebay.Loader(name, BATCH, order="shuffle", transform=augment, workers=threads) as loader:
                epochs.append([batch["image"].copy() for batch in loader])
    assert all((one == other).all() for one, other in zip(*epochs, strict=True))
    print(f"{len(epochs[0])} batches of shape {epochs[0][0].shape}, equal for 1 and 4 threads")


if __name__ == "__main__":
    main()
