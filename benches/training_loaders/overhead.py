"""What an adapter adds to ``next(loader)``, per batch.

The loader and each adapter iterate the same small batches of their own loader, by turns, from the
page cache. The batches are ready when they are asked for, or nearly so, and nothing is computed
with them. What remains is the time of the call.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from sections import Row

__all__ = ["ADAPTERS", "overhead"]

BATCH = 16
STEPS, TINY_STEPS = 4_000, 50
ROUNDS = 15
NAMES = ("image", "label")


def _torch(loader: forebay.Loader) -> Iterable[Any]:
    import forebay.torch

    return forebay.torch.loader(loader, pin_memory=False)


def _torch_dataloader(loader: forebay.Loader) -> Iterable[Any]:
    import torch.utils.data

    import forebay.torch

    dataset = forebay.torch.dataset(loader, pin_memory=None)
    return torch.utils.data.DataLoader(dataset, batch_size=None, collate_fn=_as_it_is)


def _jax(loader: forebay.Loader) -> Iterable[Any]:
    import forebay.jax

    return forebay.jax.loader(loader)


def _tensorflow_loader(loader: forebay.Loader) -> Iterable[Any]:
    import forebay.tensorflow

    return forebay.tensorflow.loader(loader)


def _tensorflow_dataset(loader: forebay.Loader) -> Iterable[Any]:
    import forebay.tensorflow

    return forebay.tensorflow.dataset(loader)


def _grain(loader: forebay.Loader) -> Iterable[Any]:
    import forebay.grain

    return forebay.grain.dataset(loader)


def _as_it_is(batch: Any) -> Any:
    return batch


# Name → what makes the iterable of a loader, and the bar [us]. Each imports its framework itself.
ADAPTERS: dict[str, tuple[Callable[[forebay.Loader], Iterable[Any]], float | None]] = {
    "forebay.torch.loader": (_torch, 20),
    "DataLoader(forebay.torch.dataset)": (_torch_dataloader, None),
    "forebay.jax.loader": (_jax, 40),
    "forebay.tensorflow.loader": (_tensorflow_loader, 60),
    "forebay.tensorflow.dataset": (_tensorflow_dataset, None),
    "forebay.grain.dataset": (_grain, None),
}


def overhead(tiny: bool) -> list[Row]:
    """Time per batch over next(loader), two fields."""
    steps = TINY_STEPS if tiny else STEPS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npz"
        samples = BATCH * steps
        images = np.zeros((samples, 3, 8, 8), np.float32)
        np.savez(path, **dict(zip(NAMES, (images, np.arange(samples, dtype=np.int32)), strict=True)))
        return [_row(name, make, bar, path, 1 if tiny else ROUNDS) for name, (make, bar) in ADAPTERS.items()]


def _row(
    name: str,
    make: Callable[[forebay.Loader], Iterable[Any]],
    bar_us: float | None,
    path: Path,
    rounds: int,
) -> Row:
    with (
        forebay.Loader(path, BATCH, order="sequential", name="plain", memory="64MiB") as plain,
        forebay.Loader(path, BATCH, order="sequential", name="adapted", memory="64MiB") as inner,
    ):
        adapted = make(inner)
        found: dict[str, list[float]] = {"loader": [], "adapter": []}
        for _ in range(rounds + 1):
            found["loader"].append(_us_per_batch(plain))
            found["adapter"].append(_us_per_batch(adapted))
        # The first round fills page cache and sidecar.
        loader_us, adapter_us = (statistics.median(times[1:] or times) for times in found.values())
        return {
            "name": name,
            "loader_us": loader_us,
            "adapter_us": adapter_us,
            "overhead_us": statistics.median(
                after - before for before, after in zip(found["loader"], found["adapter"], strict=True)
            ),
            "bar_us": bar_us,
            "batches": len(plain),
            "rounds": rounds,
        }


def _us_per_batch(batches: Iterable[Any]) -> float:
    """Return the mean time of a batch of one epoch, without the first [us]."""
    iterator = iter(batches)
    next(iterator)
    count, begun = 0, time.perf_counter()
    for _ in iterator:
        count += 1
    return (time.perf_counter() - begun) / count * 1e6
