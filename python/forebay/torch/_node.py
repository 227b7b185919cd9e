"""The node for torchdata.nodes, whose class is made in :mod:`forebay.torch._batch_node`."""

from __future__ import annotations

from typing import Any, Unpack

from forebay._adapters.loaders import Source
from forebay._adapters.require import require
from forebay.torch._loader import TensorLoader, TensorOptions, tensor_loader

__all__ = ["node"]


def node(
    source: TensorLoader | Source, batch_size: int | None = None, **options: Unpack[TensorOptions]
) -> Any:
    """Make a node of ``torchdata.nodes`` that delivers batches of tensors.

    Its state is exact: that of the batch that was taken last from the node, so that nodes behind it
    which prefetch restore what they had not delivered.

    Parameters
    ----------
    source : TensorLoader, Loader, Dataset, path-like or sequence of path-like
        What delivers the batches, or of what :func:`forebay.torch.loader` makes that.
    batch_size : int, optional
        Samples per rank and step; not with a loader.
    **options
        Options of :func:`forebay.torch.loader`, by name; not with a loader.

    Returns
    -------
    torchdata.nodes.BaseNode
        ``node.loader`` is the :class:`TensorLoader`.

    Raises
    ------
    ImportError
        Without torchdata 0.10 or later.
    OptionError
        As :func:`forebay.torch.loader` raises it.
    """
    require("forebay.torch.node", "torchdata", "0.10", "torchdata>=0.10")
    from forebay.torch._batch_node import BatchNode

    return BatchNode(tensor_loader("forebay.torch.node", source, batch_size, options))
