"""The demo's dataset: scikit-learn's digits as a Caffe-style LMDB.

How, in order: the 1,797 digits (8x8, shipped inside scikit-learn, nothing is downloaded) are parted
into training and held-out images, class by class, *before* anything is multiplied, so that no
variation of a held-out image is ever trained on. Each training sample is one training image,
enlarged to 32x32, shifted, coloured and made noisy; the image is drawn at random, so the classes
are mixed in file order, as in the sets that Caffe's own tools shuffle. Every sample is a `Datum`
under the key ``%08d``, put in order, one transaction per 1,000 samples, which is what Caffe's
converter does.

The directory appears under its name only when it is complete (it is written beside it and renamed),
and carries `demo.json`, which says what is inside; a directory that holds the same set is used
again.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forebay.tools.convert import datum

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

CHANNELS, HEIGHT, WIDTH, CLASSES = 3, 32, 32, 10
"""Shape of an image (that of CIFAR-10, as in the LMDBIO papers), and the number of digits."""

COMMIT_EVERY = 1000
"""Samples per transaction: what Caffe's `convert_imageset` does."""

HELD_OUT_SHARE = 0.2
"""Share of each class held out from training: about 360 images, so one image is 0.3 % accuracy."""

_SHIFT_PIXELS = 4
_NOISE = 48
_PAGE_BYTES = 4096
_MARGIN_BYTES = 256 << 20


class DemoError(Exception):
    """The demo cannot go on; the message says why and, after a line break, what to do."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the dataset holds; equal specs give equal bytes."""

    samples: int
    seed: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """A dataset on disk."""

    directory: Path
    samples: int
    made: bool
    """False: it was there already."""
    file_bytes: int = 0
    """Size of the LMDB data file."""
    held_out_samples: int = 0

    @property
    def database(self) -> Path:
        """The LMDB directory."""
        return self.directory / "train.lmdb"

    @property
    def file(self) -> Path:
        """The LMDB data file."""
        return self.database / "data.mdb"

    @property
    def cache(self) -> Path:
        """Where Forebay keeps the index: it goes when the dataset goes."""
        return self.directory / "cache"

    @property
    def held_out(self) -> Path:
        """Held-out images and labels, as `numpy.savez` writes them."""
        return self.directory / "held-out.npz"


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's digits, enlarged to 32x32, values 0-1, and their labels.

    Raises
    ------
    DemoError
        If scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DemoError(f"demo data: {error}\nhint: pip install 'forebay[demo]'") from error
    images, labels = load_digits(return_X_y=True)
    return enlarge(images.reshape(-1, 8, 8)), labels.astype(np.int64)


def part(labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return training and held-out image numbers: a partition, the same share of every class."""
    generator = np.random.default_rng([seed, 1])
    held_out = np.concatenate(
        [
            generator.permutation(numbers)[: round(len(numbers) * HELD_OUT_SHARE)]
            for numbers in (np.flatnonzero(labels == digit) for digit in range(CLASSES))
        ]
    )
    held_out.sort()
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def enlarge(images: NDArray[np.float64], size: int = HEIGHT) -> NDArray[np.float32]:
    """8x8 images with values 0-16 as `size` x `size` images with values 0-1, bilinear."""
    positions = (np.arange(size) + 0.5) * images.shape[1] / size - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(positions[:, None] - np.arange(images.shape[1])[None, :]))
    weights /= weights.sum(axis=1, keepdims=True)
    enlarged: NDArray[np.float32] = (weights @ (images / 16.0) @ weights.T).astype(np.float32)
    return enlarged


def pad(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images with the margins that `vary` shifts them in."""
    margin = (_SHIFT_PIXELS, _SHIFT_PIXELS)
    return np.pad(images, ((0, 0), margin, margin))


def vary(
    padded: NDArray[np.float32], numbers: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.uint8]:
    """One shifted, coloured and noisy image, uint8 [3, 32, 32], for each image number."""
    count = len(numbers)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (HEIGHT, WIDTH), axis=(1, 2))
    shifts = generator.integers(0, 2 * _SHIFT_PIXELS + 1, size=(2, count))
    shapes = windows[numbers, shifts[0], shifts[1]]
    ink = generator.integers(110, 208, size=(count, CHANNELS, 1, 1)).astype(np.float32)
    paper = generator.integers(0, 48, size=(count, CHANNELS, 1, 1)).astype(np.float32)
    noise = generator.integers(0, _NOISE, size=(count, CHANNELS, HEIGHT, WIDTH), dtype=np.uint8)
    # At most 207 + 47 < 256: the sum cannot wrap.
    clean: NDArray[np.uint8] = (paper + shapes[:, None] * (ink - paper)).astype(np.uint8)
    clean += noise
    return clean


def render(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return enlarged images in the middle of the range of `vary`, without shift and noise."""
    grey = 24 + images[:, None] * (159 - 24) + _NOISE / 2
    return np.repeat(grey.astype(np.uint8), CHANNELS, axis=1)


def prepare(directory: Path, spec: Spec, progress: Callable[[int, int], None]) -> DemoDataset:
    """Find the dataset in `directory`, or make it.

    Parameters
    ----------
    directory
        Where the dataset is or will be. A directory that holds something else is left alone.
    spec
        What it must hold.
    progress
        Called with (samples written, samples in all) about once per 10,000 samples.

    Raises
    ------
    DemoError
        The directory holds something else, the disk is too full, or a package is missing.
    """
    marker = directory / "demo.json"
    if marker.is_file() and json.loads(marker.read_text()) == asdict(spec):
        return _found(directory, spec, made=False)
    if directory.exists() and not marker.is_file() and any(directory.iterdir()):
        raise DemoError(
            f"demo data in {directory}: the directory holds something else\n"
            "hint: give another one with --data, or empty it"
        )
    parent = directory.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    needed = spec.samples * _PAGE_BYTES + _MARGIN_BYTES
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise DemoError(
            f"demo data in {directory}: expected {needed >> 20} MiB free, found {free >> 20} MiB\n"
            "hint: use fewer --samples, or another place with --data"
        )
    partial = parent / f"{directory.name}.partial-{os.getpid()}"
    try:
        _write(partial, spec, progress)
        if directory.exists():
            shutil.rmtree(directory)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return _found(directory, spec, made=True)


def _found(directory: Path, spec: Spec, *, made: bool) -> DemoDataset:
    dataset = DemoDataset(directory, spec.samples, made)
    with np.load(dataset.held_out) as held_out:
        count = len(held_out["label"])
    return replace(dataset, file_bytes=dataset.file.stat().st_size, held_out_samples=count)


def _write(directory: Path, spec: Spec, progress: Callable[[int, int], None]) -> None:
    try:
        import lmdb
    except ImportError as error:
        raise DemoError(f"demo data: {error}\nhint: pip install 'forebay[demo]'") from error

    enlarged, labels = digits()
    training, held_out = part(labels, spec.seed)
    padded = pad(enlarged[training])
    generator = np.random.default_rng([spec.seed, 2])

    directory.mkdir()
    (directory / "cache").mkdir(mode=0o700)
    np.savez(
        directory / "held-out.npz", image=render(enlarged[held_out]), label=labels[held_out], number=held_out
    )
    head = datum.head(CHANNELS, HEIGHT, WIDTH)
    tails = [datum.tail(digit) for digit in range(CLASSES)]
    environment = lmdb.open(
        str(directory / "train.lmdb"),
        map_size=2 * spec.samples * _PAGE_BYTES + (64 << 20),
        sync=False,
        meminit=False,
    )
    with environment:
        for first in range(0, spec.samples, COMMIT_EVERY):
            count = min(COMMIT_EVERY, spec.samples - first)
            numbers = generator.integers(0, len(training), size=count)
            pixels = vary(padded, numbers, generator)
            chosen = labels[training[numbers]]
            with environment.begin(write=True) as transaction:
                for i in range(count):
                    record = b"".join((head, pixels[i].tobytes(), tails[chosen[i]]))
                    transaction.put(b"%08d" % (first + i), record)
            if first % 10_000 == 0:
                progress(first, spec.samples)
        # Written pages must be clean, or the page cache cannot be emptied before a run.
        environment.sync(True)
    progress(spec.samples, spec.samples)
    (directory / "demo.json").write_text(json.dumps(asdict(spec)))
