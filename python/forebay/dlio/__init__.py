"""Plug-ins for DLIO, the benchmark behind MLPerf Storage.

    reader:
      data_loader_classname: forebay.dlio.DataLoader
      data_loader_sampler: none

:class:`DataLoader` lets DLIO train on batches of a :class:`forebay.Loader`. :class:`Reader` lets
the data loaders of DLIO itself, of PyTorch and TensorFlow, read through :class:`forebay.Dataset`.
docs/dlio.md is the guide, with whole workload files.
"""

from __future__ import annotations

from forebay._adapters.require import require

# First: the modules below import DLIO, which does not say its version.
require("forebay.dlio", "dlio_benchmark", "", "dlio-benchmark==2.0.0")

from forebay.dlio._data_loader import DataLoader  # noqa: E402
from forebay.dlio._reader import Reader  # noqa: E402

__all__ = ["DataLoader", "Reader"]
