"""Batches as torch tensors.

    import forebay.torch

    for images, labels in forebay.torch.loader("train", 256, transform=decode, workers=8):
        ...

:func:`loader` delivers the batches of a :class:`forebay.Loader` as tensors, on a device if asked.
:func:`dataset` wraps it for ``torch.utils.data.DataLoader``, :func:`node` for ``torchdata.nodes``,
:func:`prepare` for Accelerate and the Trainer of transformers.
docs/pytorch.md is the guide.
"""

from __future__ import annotations

from forebay._adapters.require import require

# First: the modules below import torch, whatever its version.
require("forebay.torch", "torch", "2.3", "torch>=2.3")

from forebay.torch._batches import TensorBatch, TensorTuple  # noqa: E402
from forebay.torch._dataset import BatchDataset, dataset  # noqa: E402
from forebay.torch._loader import TensorLoader, loader  # noqa: E402
from forebay.torch._node import node  # noqa: E402
from forebay.torch._prepare import prepare  # noqa: E402

__all__ = [
    "BatchDataset",
    "TensorBatch",
    "TensorLoader",
    "TensorTuple",
    "dataset",
    "loader",
    "node",
    "prepare",
]
