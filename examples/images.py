"""Decode and augment JPEG files of a folder in threads.

    pip install pillow
    python examples/images.py

Any decoder that releases the interpreter lock will do: Pillow, OpenCV, torchvision, simplejpeg.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

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


def prepare(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
    """Decode a file, crop it at random, flip half of all images."""
    with Image.open(io.BytesIO(sample["data"])) as image:
        left = int(rng.integers(image.width - SIZE + 1))
        top = int(rng.integers(image.height - SIZE + 1))
        crop = image.convert("RGB").crop((left, top, left + SIZE, top + SIZE))
    pixels = np.asarray(crop)
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    return {"image": pixels, "label": sample["label"]}


def main() -> None:
    """Iterate twice; the same seed gives the same crops on any number of threads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder)
        epochs = []
        for threads in (1, 4):
            with forebay.Loader(folder, BATCH, order="shuffle", sample=prepare, threads=threads) as loader:
                epochs.append([batch["image"].copy() for batch in loader])
                print(loader.config.per_sample)
    assert all((one == other).all() for one, other in zip(*epochs, strict=True))
    print(f"{len(epochs[0])} batches of shape {epochs[0][0].shape}, equal for 1 and 4 threads")


if __name__ == "__main__":
    main()
