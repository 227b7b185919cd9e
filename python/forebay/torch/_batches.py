"""Batches of tensors that move to a device as a whole, and keep their ids and position.

Libraries that move batches, such as Lightning, call ``to(device)`` where a batch has it. They make
any other dictionary or tuple anew, without its attributes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from forebay._adapters.leaves import convert
from forebay._iteration import Batch, BatchTuple, marked_as
from forebay._trees import register

__all__ = ["TensorBatch", "TensorTuple", "with_to"]

_Made = TypeVar("_Made", "TensorBatch", "TensorTuple")


class TensorBatch(Batch):
    """A :class:`forebay.Batch` of tensors: field name → tensor."""

    def to(self, device: Any, *, non_blocking: bool | None = None) -> TensorBatch:
        """Return the batch on a device.

        Parameters
        ----------
        device : torch.device or str
            The device.
        non_blocking : bool, optional
            As for ``Tensor.to``. Default: True where the device is a CUDA device, which is safe for
            batches of a loader, pinned or not.

        Returns
        -------
        TensorBatch
            A batch of the tensors there; those that are there already are the same.
        """
        return _moved(self, device, non_blocking)


class TensorTuple(BatchTuple):
    """A :class:`forebay.BatchTuple` of tensors."""

    def to(self, device: Any, *, non_blocking: bool | None = None) -> TensorTuple:
        """Return the batch on a device, as :meth:`TensorBatch.to` does it."""
        return _moved(self, device, non_blocking)


def with_to(batch: Any) -> Any:
    """Return a Batch as a TensorBatch, a BatchTuple as a TensorTuple, anything else as it is."""
    if type(batch) is Batch:
        return marked_as(TensorBatch(batch), batch)
    if type(batch) is BatchTuple:
        return marked_as(TensorTuple(batch), batch)
    return batch


def _moved(batch: _Made, device: Any, non_blocking: bool | None) -> _Made:
    target = torch.device(device)
    waits = target.type != "cuda" if non_blocking is None else not non_blocking

    def moved(value: Any) -> Any:
        return value.to(target, non_blocking=not waits) if isinstance(value, torch.Tensor) else value

    made: _Made = with_to(convert(batch, lambda array: array, other=moved))
    return made


register(Batch, BatchTuple, TensorBatch, TensorTuple)
