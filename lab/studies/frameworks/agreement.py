"""How far the pixels of each decoder are from those of Pillow, for the same crops.

Pillow decodes the whole image and resizes the crop with its bilinear filter. The answer is the
least PSNR of some images [dB]; a decoder that is not there has none.
"""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import forebay
from studies.frameworks.formats import files, samples
from studies.frameworks.jpeg_functions import CROP, FUNCTIONS, crop_of

__all__ = ["main"]

IMAGES = 32


def _pillow(data: bytes, rng: np.random.Generator) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, wide, high = crop_of(rng, *image.size)
    box = (left, top, left + wide, top + high)
    return np.asarray(image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=box))


def _psnr(found: Any, wanted: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio [dB]."""
    error = np.mean((np.asarray(found, float) - np.asarray(wanted, float)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def _of_function(name: str, images: list[bytes]) -> float:
    function = FUNCTIONS[name]
    return min(
        _psnr(function(data, np.random.default_rng(number)), _pillow(data, np.random.default_rng(number)))
        for number, data in enumerate(images)
    )


def _of_engine(folder: Path) -> float:
    paths: Any = [str(path) for path in files(folder, "tar")]
    encoded = forebay.open(paths)
    image = forebay.image(size=CROP, resize="random-crop")  # type: ignore[attr-defined]
    decoded = forebay.open(paths, decode={"jpg": image})  # type: ignore[call-arg]
    with forebay.Loader(
        decoded, IMAGES, world="single", name="agreement", order="sequential", expected_epochs=1
    ) as loader:
        batch = next(iter(loader))
        numbers, pixels = batch.indices.tolist(), batch["jpg"].copy()
    least = math.inf
    for number, found in zip(numbers, pixels, strict=True):
        # docs/decode.md: the random numbers of a sample of epoch 0 with seed 0.
        rng = np.random.Generator(np.random.Philox(key=0, counter=2**192 * number + 2**128))
        rng.random()
        sample = encoded[number]
        data = sample["jpg"] if isinstance(sample, dict) else sample
        least = min(least, _psnr(found, _pillow(bytes(data), rng)))
    return least


def main() -> None:
    folder, names = Path(sys.argv[1]), json.loads(sys.argv[2])
    images = samples(folder)[:IMAGES]
    found = {}
    for name in names:
        try:
            if name != "engine":
                found[name] = _of_function(name, images)
            elif hasattr(forebay, "image"):
                found[name] = _of_engine(folder)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
