"""Images that look natural to a codec, and what Pillow makes of them: the oracle of `decode=`."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from PIL import Image

# Side of the tiles, from which an image is enlarged, of each octave [pixels].
_OCTAVES = (4, 12, 40, 120)


def photo(number: int, width: int = 320, height: int = 240, mode: str = "RGB") -> Image.Image:
    """Return an image of smooth noise at several frequencies, as photographs have."""
    rng = np.random.default_rng(number)
    total = np.zeros((height, width, 3))
    for octave in _OCTAVES:
        tile = Image.fromarray(rng.integers(0, 256, (octave, octave, 3), np.uint8))
        total += np.asarray(tile.resize((width, height), Image.Resampling.BICUBIC)) / octave**0.7
    total -= total.min()
    return Image.fromarray((total * (255 / total.max())).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Return an image as a file of a kind; JPEG with quality 90."""
    into = io.BytesIO()
    image.save(into, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return into.getvalue()


def generator(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Return the random numbers of a sample, as docs/decode.md gives them."""
    return np.random.Generator(np.random.Philox(key=seed + 2**64 * epoch, counter=2**192 * sample + 2**128))


def random_box(
    rng: np.random.Generator, width: int, height: int, scale: Any = (0.08, 1), ratio: Any = (3 / 4, 4 / 3)
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        found = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(area * found)), round(math.sqrt(area / found))
        if 0 < wide <= width and 0 < high <= height:
            top = int(rng.random() * (height - high + 1))
            left = int(rng.random() * (width - wide + 1))
            return left, top, left + wide, top + high
    wide, high = width, height
    if width / height < ratio[0]:
        high = min(round(width / ratio[0]), height)
    elif width / height > ratio[1]:
        wide = min(round(height * ratio[1]), width)
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def expected(
    data: bytes,
    *,
    size: int | tuple[int, int] = 64,
    mode: str = "rgb",
    resize: str = "center-crop",
    flip: bool = False,
    short_side: int | None = None,
    key: tuple[int, int, int] = (0, 0, 0),
    **random: Any,
) -> np.ndarray:
    """Decode by Pillow as `forebay.image` with these options does; ``key``: seed, epoch, sample."""
    high, wide = (size, size) if isinstance(size, int) else size
    image = Image.open(io.BytesIO(data)).convert("RGB" if mode == "rgb" else "L")
    rng = generator(*key)
    flips = rng.random() < 0.5 and flip
    box: tuple[float, float, float, float] = (0, 0, *image.size)
    if resize == "random-crop":
        box = random_box(rng, *image.size, **random)
    elif resize == "center-crop":
        factor = min(image.size) / (short_side or round(max(high, wide) * 256 / 224))
        left, top = (image.width - wide * factor) / 2, (image.height - high * factor) / 2
        box = (left, top, left + wide * factor, top + high * factor)
    found = np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR, box=box))
    found = found.reshape(high, wide, -1)
    return found[:, ::-1] if flips else found


def psnr(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio [dB]."""
    error = np.mean((found.astype(float) - wanted.astype(float)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)
