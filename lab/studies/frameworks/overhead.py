"""What an adapter adds to ``next(loader)``, per batch.

The loader and each adapter iterate the same small batches of their own loader, by turns, from the
page cache. The script computes between two batches, so that the next one is ready when it is asked
for. What remains is the time of the call.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay_lab.bench.turns import in_turn
from studies.harness.sections import Row, Scope

__all__ = ["ADAPTERS", "overhead"]

BATCH = 16
STEPS, TINY_STEPS = 1_000, 50
ROUNDS = 20
# What the script computes between two batches: long enough for the next one to be ready.
STEP_S = 50e-6
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


# Name → its framework, what makes the iterable of a loader, and the bar [us].
ADAPTERS: dict[str, tuple[str, Callable[[forebay.Loader], Iterable[Any]], float | None]] = {
    "forebay.torch.loader": ("torch", _torch, 20),
    "DataLoader(forebay.torch.dataset)": ("torch", _torch_dataloader, None),
    "forebay.jax.loader": ("jax", _jax, 40),
    "forebay.tensorflow.loader": ("tensorflow", _tensorflow_loader, 60),
    "forebay.tensorflow.dataset": ("tensorflow", _tensorflow_dataset, None),
    "forebay.grain.dataset": ("grain", _grain, None),
}


def overhead(scope: Scope) -> list[Row]:
    """Time per batch over next(loader), two fields, for the frameworks that are installed."""
    steps = TINY_STEPS if scope.tiny else STEPS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npz"
        samples = BATCH * steps
        images = np.zeros((samples, 3, 8, 8), np.float32)
        np.savez(path, **dict(zip(NAMES, (images, np.arange(samples, dtype=np.int32)), strict=True)))
        return [
            _row(name, make, bar, path, 1 if scope.tiny else ROUNDS)
            for name, (framework, make, bar) in ADAPTERS.items()
            if find_spec(framework) is not None
        ]


def _row(
    name: str,
    make: Callable[[forebay.Loader], Iterable[Any]],
    bar_us: float | None,
    path: Path,
    rounds: int,
) -> Row:
    with (
        forebay.Loader(path, BATCH, order="sequential", name="plain", node_memory="64MiB") as plain,
        forebay.Loader(path, BATCH, order="sequential", name="adapted", node_memory="64MiB") as inner,
    ):
        both = {"loader": plain, "adapter": make(inner)}
        measures = {which: partial(_us_per_batch, batches) for which, batches in both.items()}
        # Of the quietest rounds: whatever else the machine does only adds to a time.
        least = {which: min(found) for which, found in in_turn(measures, rounds, warm_ups=0).items()}
        return {
            "name": name,
            "loader_us": least["loader"],
            "adapter_us": least["adapter"],
            "overhead_us": least["adapter"] - least["loader"],
            "bar_us": bar_us,
            "batches": len(plain),
            "rounds": rounds,
        }


def _us_per_batch(batches: Iterable[Any]) -> float:
    """Return the median time of ``next`` in one epoch, where the batch is ready [us]."""
    times, iterator = [], iter(batches)
    next(iterator)
    while True:
        begun = time.perf_counter()
        if next(iterator, None) is None:
            return statistics.median(times) * 1e6
        ended = time.perf_counter()
        times.append(ended - begun)
        while time.perf_counter() < ended + STEP_S:
            pass
