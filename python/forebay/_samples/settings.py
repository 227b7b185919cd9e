"""The options of functions: which go together, and the sizes that follow from them."""

from __future__ import annotations

import dataclasses
from typing import Any

from forebay._core import option_error
from forebay._samples.calling import check_function
from forebay._samples.portable import in_worker
from forebay.options import MAX_PROCESSES, Resolved, Strategy

__all__ = ["check_given", "has_processes", "prefetch_for", "strategy_for"]

# For so many batches ahead, each loader has buffers.
_OF_ANY_LOADER = 2
# Batch buffers beside those of the batches ahead, at least: one for the batch that the script waits
# for, one for the engine to fill.
_MIN_OTHERS = 2
# The same where `prefetch=` was asked for: two more for what the script holds.
_OTHERS = 4


def check_given(*, transform: object, batch_transform: object, **others: Any) -> None:
    """Check the functions, and that arguments are not given without the function they belong to.

    Raises
    ------
    OptionError
        If a function is none, or another argument would have no effect.
    """
    if transform is not None:
        check_function("transform", transform, "a sample")
    if batch_transform is not None:
        check_function("batch_transform", batch_transform, "a batch")
    for name, value in others.items():
        of_samples = name in ("collate", "worker_kind")
        if value is not None and transform is None and (batch_transform is None or of_samples):
            fitting = "transform=" if of_samples else "transform= or batch_transform="
            raise option_error(f"{name}=: expected {fitting} beside it, found {name}={value!r} alone")


def has_processes(options: Resolved, transform: object) -> bool:
    """Return whether worker processes shall call ``transform``, and not threads.

    Raises
    ------
    OptionError
        If this is a worker process itself, or the number is too large for processes.
    """
    if transform is None or options["worker_kind"] == "thread":
        return False
    workers = options["workers"]
    if workers is not None and workers > MAX_PROCESSES:
        raise option_error(
            f'{options.origins["workers"]}: expected at most {MAX_PROCESSES} with worker_kind="process", found {workers}'
        )
    if in_worker():
        raise option_error(
            'worker_kind="process": this is a worker process, which has imported the script for its function of samples',
            'write what the script does under if __name__ == "__main__", or define the function in a module of its own',
        )
    return True


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
