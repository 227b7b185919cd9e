"""Decode, crop and normalize JPEG files of a folder, without a function of Python.

    pip install pillow
    python examples/images.py

Pillow only writes the files here. For other augmentations, `transform=` calls a function with the
decoded pixels (albumentations_augment.py).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import forebay

CLASSES, FILES, SIZE, BATCH = ("ant", "bee"), 32, 64, 16


def write_folder(folder: Path) -> None:
    """Write JPEG files as folder/CLASS/NUMBER.jpg."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(FILES):
            height, width = rng.integers(SIZE + 16, 2 * SIZE, 2)
            pixels = rng.integers(0, 256, (height, width, 3), "uint8")
            Image.fromarray(pixels).save(folder / name / f"{number:04}.jpg")


def main() -> None:
    """Iterate twice; the same seed gives the same crops."""
    pixels = forebay.image(
        SIZE, resize="random-crop", flip=True, layout="chw",
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder)
        dataset = forebay.open(folder, decode={"data": pixels})
        epochs = []
        for _ in range(2):
            with forebay.Loader(dataset, BATCH, order="shuffle") as loader:
                epochs.append([batch["data"].copy() for batch in loader])
        assert all((one == other).all() for one, other in zip(*epochs, strict=True))
        first = epochs[0][0]
        print(f"classes {dataset.classes}: {len(epochs[0])} batches of shape {first.shape}, {first.dtype}")


if __name__ == "__main__":
    main()
