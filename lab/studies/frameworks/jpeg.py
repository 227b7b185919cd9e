"""JPEG of 500 x 375 pixels to a random crop of 224 x 224, one rank on two cores."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from studies.frameworks.contest import compare, prepared
from studies.frameworks.registry import JPEG
from studies.harness.sections import Row, Scope

__all__ = ["jpeg"]

WIDTH, HEIGHT, CROP, QUALITY = 500, 375, 224, 90
IMAGES, TINY_IMAGES, DISTINCT, BATCH = 1024, 64, 128, 32
# Cells per side of the noise of each octave; its amplitude is 1 over the power of them.
_OCTAVES = (4, 12, 40, 120, 375)
_POWER = 0.8


def jpeg(scope: Scope) -> list[Row]:
    """Images per second, decoded to a random crop, on two cores."""
    images = TINY_IMAGES if scope.tiny else IMAGES
    folder = prepared(f"jpeg-{images}", lambda path: _write(path, images))
    facts = {"kind": "jpeg", "samples": images, "record_bytes": CROP * CROP * 3, "batch": BATCH}
    found = compare(JPEG, folder, facts, 1, ("warm",), tiny=scope.tiny)
    function_of = {entry.name: entry.settings.get("function") for entry in JPEG}
    quality = _quality(folder, sorted({name for name in function_of.values() if name}))
    bounds = {row["name"]: row for row in found if row["role"] == "bound" and "warm_samples_s" in row}
    of = {
        "Forebay, transform= with simplejpeg": "simplejpeg in 2 bare threads",
        "Forebay, decode=forebay.image": "forebay.image in 2 bare threads",
    }
    for row in found:
        row.pop("warm_bound_share", None)
        if "warm_cpu_us_sample" in row:
            # A program that has ended is not counted.
            is_counted = row["name"] != "forebay.image in 2 bare threads"
            row["warm_cpu_ms"] = row.pop("warm_cpu_us_sample") / 1000 if is_counted else None
            row["psnr_db"] = quality.get(function_of[row["name"]])
        if (bound := bounds.get(of.get(row["name"], ""))) and "warm_samples_s" in row:
            row["decoder_share"] = row["warm_samples_s"] / bound["warm_samples_s"]
    return found


def _write(folder: Path, images: int) -> None:
    """Write encoded images: noise with the spectrum of photographs, some of them several times."""
    encoded = [_photo(number) for number in range(min(images, DISTINCT))]
    parts = [np.frombuffer(encoded[number % len(encoded)], np.uint8) for number in range(images)]
    offsets = np.cumsum([0, *map(len, parts)])
    np.savez(folder / "images.npz", values=np.concatenate(parts), offsets=offsets)


def _photo(number: int) -> bytes:
    from PIL import Image

    rng = np.random.default_rng(number)
    total = np.zeros((HEIGHT, WIDTH, 3))
    for octave in _OCTAVES:
        tile = Image.fromarray(rng.integers(0, 256, (octave, octave * WIDTH // HEIGHT, 3), np.uint8))
        total += np.asarray(tile.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / octave**_POWER
    total -= total.min()
    into = io.BytesIO()
    Image.fromarray((total * (255 / total.max())).astype(np.uint8)).save(into, "JPEG", quality=QUALITY)
    return into.getvalue()


def _quality(folder: Path, names: list[str]) -> dict[str, float]:
    """Return the least PSNR of each decoder, from a process that may import what they need."""
    command = [sys.executable, "-m", "studies.frameworks.agreement", str(folder), json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
