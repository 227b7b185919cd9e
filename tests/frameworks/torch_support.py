"""What tests of forebay.torch share: data, loaders, and copies without a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import forebay
import forebay.torch
from forebay.torch._tensors import Tensors
from forebay.torch._transfer import Copies

SAMPLES = 96
BATCH = 8
STEPS = SAMPLES // BATCH


def write_samples(path: Path) -> Path:
    """Write images, whose pixels are their sample id, and labels."""
    ids = np.arange(SAMPLES)
    images = np.broadcast_to(ids[:, None, None], (SAMPLES, 4, 4)).astype(np.float32)
    np.savez(path, image=images, label=ids % 10)
    return path


def plain_loader(path: Path, **options: Any) -> forebay.Loader:
    """Make a loader of these samples, shuffled."""
    return forebay.Loader(
        path, BATCH, **{"order": "shuffle", "seed": 3, "node_memory": "16MiB", "name": "plain", **options}
    )


def prepare(sample: dict[str, Any], rng: np.random.Generator) -> tuple[Any, Any]:
    """Return an augmented image and its label."""
    return sample["image"] + rng.random(dtype=np.float32), sample["label"]


class _Clones(Copies):
    """Copies in ordinary memory."""

    def one(self, tensor: Any) -> Any:
        return tensor.clone() if isinstance(tensor, torch.Tensor) else tensor

    def several(self, tensors: list[Any]) -> list[Any]:
        return [self.one(tensor) for tensor in tensors]


class Clones:
    """The part of a CUDA device: copies that a helper thread makes, and that count themselves."""

    def __init__(self) -> None:
        self.begun = self.taken = 0
        self.fail_at: int | None = None
        """The copy that fails, counted from 0."""

    @contextmanager
    def begin(self) -> Iterator[Copies]:
        self.begun += 1
        if self.fail_at == self.begun - 1:
            raise RuntimeError("out of memory")
        yield _Clones()

    def take(self, copies: Copies) -> None:
        assert isinstance(copies, _Clones)
        self.taken += 1


def copying(loader: forebay.Loader, transfer: Clones | None = None) -> forebay.torch.TensorLoader:
    """Return a loader that copies batches ahead of the script, as for a CUDA device."""
    return forebay.torch.TensorLoader(loader, Tensors(), None, pins=False, transfer=transfer or Clones())


def ids_of(batch: Any) -> list[int]:
    """Return the sample ids of a batch."""
    return [int(one) for one in batch.indices]


def epochs_of(batches: Any, count: int) -> list[list[list[int]]]:
    """Return the sample ids of each step of the next epochs."""
    return [[ids_of(batch) for batch in batches] for _ in range(count)]
