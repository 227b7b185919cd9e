"""The options of functions: which go together, and the sizes that follow from them."""

from __future__ import annotations

import dataclasses
from typing import Any

from forebay._core import option_error
from forebay._samples.calling import check_function
from forebay._samples.portable import in_worker
from forebay.options import Resolved, Strategy

__all__ = ["check_given", "prefetch_for", "processes_for", "strategy_for"]

# For so many batches ahead, each loader has buffers.
_OF_ANY_LOADER = 2
# Batch buffers beside those of the batches ahead, at least: one for the batch that the script waits
# for, one for the engine to fill.
_MIN_OTHERS = 2
# The same where `prefetch=` was asked for: two more for what the script holds.
_OTHERS = 4


def check_given(*, sample: object, batch: object, **others: Any) -> None:
    """Check the functions, and that arguments are not given without the function they belong to.

    Raises
    ------
    OptionError
        If a function is none, or another argument would have no effect.
    """
    if sample is not None:
        check_function("sample", sample, "a sample")
    if batch is not None:
        check_function("batch", batch, "a batch")
    for name, value in others.items():
        of_samples = name in ("collate", "processes")
        if value is not None and sample is None and (batch is None or of_samples):
            fitting = "sample=" if of_samples else "sample= or batch="
            raise option_error(f"{name}=: expected {fitting} beside it, found {name}={value!r} alone")


def processes_for(options: Resolved, sample: object) -> int | None:
    """Return how many worker processes shall call ``sample``; None for threads.

    Raises
    ------
    OptionError
        If this is a worker process itself.
    """
    processes: int | None = options["processes"] if sample is not None else None
    if processes is not None and in_worker():
        raise option_error(
            f"processes={processes}: this is a worker process, which has imported the script for its function of samples",
            'write what the script does under if __name__ == "__main__", or define the function in a module of its own',
        )
    return processes


def prefetch_for(options: Resolved, batch_buffers: int) -> int:
    """Return how many batches are worked on ahead: by default no more than buffers allow."""
    prefetch: int = options["prefetch"]
    if "prefetch" in options.origins:
        return prefetch
    return max(0, min(prefetch, batch_buffers - _MIN_OTHERS))


def strategy_for(options: Resolved, *, works_ahead: bool) -> Strategy:
    """Return the strategy with enough batch buffers for the ``prefetch=`` that was asked for."""
    strategy: Strategy = options["strategy"]
    prefetch = options["prefetch"]
    if not works_ahead or strategy.batch_buffers is not None or prefetch <= _OF_ANY_LOADER:
        return strategy
    return dataclasses.replace(strategy, batch_buffers=prefetch + _OTHERS)
