"""Copies of a batch in pinned memory, or on a CUDA device.

A batch lies in a batch buffer of the loader, which is ordinary memory. A copy to a device that
starts there either blocks or, once the buffer is reused, reads the bytes of a later batch. So each
array is first copied into pinned memory that torch allocates: torch knows it, keeps it until the
copies from it have ended, and uses it again. The batch buffer is free as soon as that copy is made.

Copies to a CUDA device run on a stream of their own, beside the computation. The stream that the
script uses waits for them, not the script itself.

A helper thread makes the copies (:meth:`Transfer.begin`), the thread that iterates takes them
(:meth:`Transfer.take`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

__all__ = ["Copies", "CudaCopies", "Moved", "PinnedCopies", "Transfer"]


class Transfer(Protocol):
    """How the tensors of a batch get from the loader to the script."""

    def begin(self) -> AbstractContextManager[Copies]:
        """Begin with a batch, in the helper thread."""

    def take(self, copies: Copies) -> None:
        """Make the copies of a batch ready for use, in the thread that iterates."""


class Copies:
    """The copies of one batch in pinned memory."""

    def one(self, tensor: Any) -> Any:
        """Return the copy of a tensor; what is no tensor of the CPU's memory stays as it is."""
        return tensor.pin_memory() if _is_copied(tensor) else tensor

    def several(self, tensors: list[Any]) -> list[Any]:
        """Return copies of a list of tensors, side by side where they have the same dtype.

        One allocation and one copy to the device take as long for many small tensors as for one.
        """
        if not _are_joined(tensors):
            return [self.one(tensor) for tensor in tensors]
        return _parts(self._joined(tensors), tensors)

    def _joined(self, tensors: list[Any]) -> Any:
        return _joined(tensors, pins=True)


class PinnedCopies:
    """Copies in pinned memory.

    Parameters
    ----------
    device : torch.device
        The CUDA device through which memory is pinned. In a thread this is device 0 otherwise,
        where each rank of a node would take memory.
    """

    def __init__(self, device: Any) -> None:
        self._device = device

    @contextmanager
    def begin(self) -> Iterator[Copies]:
        with torch.cuda.device(self._device):
            yield Copies()

    def take(self, copies: Copies) -> None:
        """Do nothing: the copies are complete."""


class Moved(Copies):
    """Copies on a device without pinned memory; each is complete at once."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def one(self, tensor: Any) -> Any:
        return tensor.to(self._device) if isinstance(tensor, torch.Tensor) else tensor

    def _joined(self, tensors: list[Any]) -> Any:
        return self.one(_joined(tensors, pins=False))


class _OnDevice(Copies):
    """The copies of one batch on a CUDA device."""

    def __init__(self, device: Any, *, pins: bool) -> None:
        self._device, self._pins = device, pins
        self.tensors: list[Any] = []
        """Each allocation."""
        self.event: Any = None
        """Recorded after the copies."""

    def one(self, tensor: Any) -> Any:
        if not _is_copied(tensor):
            return tensor
        return self._sent(tensor.pin_memory() if self._pins else tensor)

    def _joined(self, tensors: list[Any]) -> Any:
        return self._sent(_joined(tensors, pins=self._pins))

    def _sent(self, tensor: Any) -> Any:
        # Torch keeps pinned memory until the copies that began there have ended.
        sent = tensor.to(self._device, non_blocking=self._pins)
        self.tensors.append(sent)
        return sent


class CudaCopies:
    """Copies on a CUDA device.

    Parameters
    ----------
    device : torch.device
        The device, with its number.
    pins : bool
        Whether they go through pinned memory. If not, each copy blocks the helper thread.
    """

    def __init__(self, device: Any, *, pins: bool) -> None:
        self._device, self._pins = device, pins
        self._stream: Any = None

    @contextmanager
    def begin(self) -> Iterator[Copies]:
        # The current device and stream are those of a thread.
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()
            with torch.cuda.stream(self._stream):
                copies = _OnDevice(self._device, pins=self._pins)
                yield copies
                copies.event = torch.cuda.Event()
                copies.event.record()

    def take(self, copies: Copies) -> None:
        """Let the script's stream wait for the copies, and their memory for that stream."""
        assert isinstance(copies, _OnDevice)
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copies.event)
        for tensor in copies.tensors:
            # Allocated for the stream of the copies, which would use it again while the script's
            # stream still reads it.
            tensor.record_stream(stream)


def _is_copied(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _are_joined(tensors: list[Any]) -> bool:
    return len(tensors) > 1 and all(
        _is_copied(tensor) and tensor.dtype == tensors[0].dtype and tensor.layout == torch.strided
        for tensor in tensors
    )


def _joined(tensors: list[Any], *, pins: bool) -> Any:
    """Return the elements of all tensors one after the other."""
    first = tensors[0]
    joined = torch.empty(sum(one.numel() for one in tensors), dtype=first.dtype, pin_memory=pins)
    for part, tensor in zip(_parts(joined, tensors), tensors, strict=True):
        part.copy_(tensor)
    return joined


def _parts(joined: Any, tensors: list[Any]) -> list[Any]:
    """Return the parts of joined tensors, each in its own shape."""
    parts = joined.split([one.numel() for one in tensors])
    return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]
