"""What the batches of a loader look like, without taking one of them."""

from __future__ import annotations

from typing import Any

from forebay._samples.functions import Functions
from forebay.loader import Loader

__all__ = ["example"]


def example(loader: Loader) -> Any:
    """Return a batch of copies of the first sample, as the loader would deliver it.

    It reads this one sample and calls the functions of the loader once; the loader stays where it
    is.
    """
    if loader._pipeline is not None:
        functions = loader._pipeline.functions
    else:
        functions = Functions(
            None, "stack", loader._batch_function, name=loader.name, seed=loader._options["seed"],
            skips=loader._options["bad_samples"] == "skip",
        )  # fmt: skip
    return functions.example(loader.dataset, loader.batch_size)
