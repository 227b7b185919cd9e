"""Batches and samples for Grain.

    for batch in forebay.grain.dataset("train.h5", 256).map(augment):
        ...

:func:`dataset` makes a ``grain.IterDataset`` of the batches of a :class:`forebay.Loader`, with its
order and its exact state. :func:`source` makes a random-access source, where Grain chooses which
samples are read. docs/jax.md is the guide.
"""

from __future__ import annotations

from forebay._adapters.require import require

# First: the modules below import Grain, whatever its version.
require("forebay.grain", "grain", "0.2.10", "grain>=0.2.10")

from forebay.grain._batches import BatchDataset, BatchIterator, dataset  # noqa: E402
from forebay.grain._source import DataSource, source  # noqa: E402

__all__ = ["BatchDataset", "BatchIterator", "DataSource", "dataset", "source"]
