"""Decode and augment images with DALI; Forebay reads them.

    pip install nvidia-dali-cuda120
    python examples/dali_pipeline.py

Without a GPU, DALI decodes on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import GetCUDADeviceCount

import forebay

FILES, SIZE, BATCH = 48, 64, 16


def encoded(loader: forebay.Loader) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Yield the encoded images and the labels of each batch; DALI copies them."""
    for batch in loader:
        yield batch["data"], batch["label"]


@pipeline_def(batch_size=BATCH, num_threads=2)
def images(loader: forebay.Loader, has_gpu: bool) -> tuple[Any, Any]:
    """Decode images, crop them at random, and flip half of them."""
    data, labels = fn.external_source(source=encoded(loader), num_outputs=2, dtype=[types.UINT8, types.INT64])
    pixels = fn.decoders.image(data, device="mixed" if has_gpu else "cpu", output_type=types.RGB)
    pixels = fn.random_resized_crop(pixels, size=(SIZE, SIZE))
    return fn.flip(pixels, horizontal=fn.random.coin_flip()), labels


def write_folder(folder: Path) -> None:
    """Write uncompressed images as folder/CLASS/NUMBER.ppm."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / ("ant", "bee")[number % 2] / f"{number:04}.ppm"
        path.parent.mkdir(exist_ok=True)
        height, width = SIZE + 16, SIZE + 32
        pixels = rng.integers(0, 256, (height, width, 3), "uint8")
        path.write_bytes(f"P6 {width} {height} 255\n".encode() + pixels.tobytes())


def main() -> None:
    """Take one epoch of images."""
    has_gpu = GetCUDADeviceCount() > 0
    device = 0 if has_gpu else None
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name))
        with forebay.Loader(name, BATCH, order="shuffle", last_batch="drop") as loader:
            pipeline = images(loader, has_gpu, device_id=device)
            pipeline.build()
            for step in range(len(loader)):
                pixels, labels = pipeline.run()
                shape = pixels.as_cpu().as_array().shape
                print(f"step {step}: images {shape}, labels {np.ravel(labels.as_array())[:4]} ...")
                assert shape == (BATCH, SIZE, SIZE, 3)


if __name__ == "__main__":
    main()
