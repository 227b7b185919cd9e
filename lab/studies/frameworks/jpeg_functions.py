"""Decoders of a JPEG with a random crop: bytes and random numbers → (224, 224, 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["CROP", "FUNCTIONS", "crop_of"]

CROP = 224
_TRIES = 10


def crop_of(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width, height as RandomResizedCrop of torchvision draws them."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top = int(rng.random() * (height - high + 1))
            left = int(rng.random() * (width - wide + 1))
            return left, top, wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def simplejpeg_pillow(data: bytes, rng: np.random.Generator) -> np.ndarray:
    """Decode by simplejpeg at the least size that is enough (DCT scaling); resize by Pillow."""
    import simplejpeg
    from PIL import Image

    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    left, top, wide, high = crop_of(rng, width, height)
    image = simplejpeg.decode_jpeg(
        data,
        "RGB",
        fastdct=True,
        fastupsample=True,
        min_height=min(height, math.ceil(height * CROP / high)),
        min_width=min(width, math.ceil(width * CROP / wide)),
        # Factors nearer to 1 took longer than the whole image does.
        min_factor=1.5,
    )
    down, across = image.shape[0] / height, image.shape[1] / width
    box = (left * across, top * down, (left + wide) * across, (top + high) * down)
    resized = Image.fromarray(image).resize((CROP, CROP), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized)


def torchvision(data: bytes, rng: np.random.Generator) -> Any:
    """Decode and resize by torchvision, which has no DCT scaling."""
    import torch
    import torchvision.io
    from torchvision.transforms.v2 import functional

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    image = torchvision.io.decode_jpeg(encoded, torchvision.io.ImageReadMode.RGB)
    left, top, wide, high = crop_of(rng, image.shape[2], image.shape[1])
    resized = functional.resized_crop(image, top, left, high, wide, [CROP, CROP], antialias=True)
    return resized.permute(1, 2, 0).contiguous()


FUNCTIONS: dict[str, Callable[[bytes, np.random.Generator], Any]] = {
    "simplejpeg": simplejpeg_pillow,
    "torchvision": torchvision,
}
