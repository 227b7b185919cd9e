"""The loader whose batches are tensors."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NoReturn, Self, Unpack, cast, overload

import torch

from forebay._adapters.forwards import Forwards
from forebay._adapters.loaders import Source, loader_for
from forebay._callers import overfits
from forebay._core import option_error
from forebay._iteration import Batch, Position
from forebay._samples.crew import Crew
from forebay._warn import warn
from forebay.dataset import Dataset, PathLike
from forebay.loader import Loader, LoaderOptions, LoaderSettings, T
from forebay.torch._ahead import Consumed, CopyIteration, Reader
from forebay.torch._batches import TensorBatch
from forebay.torch._tensors import Tensors
from forebay.torch._transfer import CudaCopies, Moved, PinnedCopies, Transfer

__all__ = ["TensorLoader", "loader", "tensor_loader"]

_living: weakref.WeakSet[TensorLoader] = weakref.WeakSet()


class TensorSettings(LoaderSettings, total=False):
    """The options of :func:`loader` but its two functions, for type checkers."""

    device: Any
    pin_memory: bool | None
    dtypes: Mapping[Any, Any] | None


class TensorOptions(TensorSettings, total=False):
    """The options of :func:`loader`, by name, for type checkers."""

    transform: Callable[..., Any] | None
    batch_transform: Callable[[Any], Any] | None


@overload
def loader(
    source: Loader[Batch] | Dataset | PathLike | Sequence[PathLike],
    batch_size: int | None = None,
    *,
    transform: None = None,
    batch_transform: None = None,
    **options: Unpack[TensorSettings],
) -> TensorLoader[TensorBatch]: ...


@overload
def loader(
    source: Source, batch_size: int | None = None, **options: Unpack[TensorOptions]
) -> TensorLoader[Any]: ...


def loader(
    source: Source,
    batch_size: int | None = None,
    *,
    device: Any = None,
    pin_memory: bool | None = None,
    dtypes: Mapping[Any, Any] | None = None,
    **options: Unpack[LoaderOptions],
) -> TensorLoader[Any]:
    """Make a loader that delivers batches of tensors.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        A loader, or what :class:`forebay.Loader` takes as its dataset.
    batch_size : int, optional
        Samples per rank and step; not with a loader.
    device : torch.device or str, optional
        Where the tensors are delivered. Default: in the memory of the CPU. Copies to a CUDA device
        are made ahead of the script, by a thread and on a stream of their own; the device holds up
        to two batches more than the script. ``"cuda"`` is the current device of the thread that
        iterates.
    pin_memory : bool, optional
        Whether batches are copied into pinned memory first: for copies to a CUDA device that run
        beside the computation. Default: where torch finds a CUDA device, unless ``device`` is
        another one.
    dtypes : mapping, optional
        dtype of numpy → ``torch.dtype`` of the tensors, for example ``{"uint16": torch.int32}``.
        Values convert as ``Tensor.to`` does it.
    **options
        Options of :class:`forebay.Loader`, by name; not with a loader.

    Returns
    -------
    TensorLoader

    Raises
    ------
    OptionError
        If an argument is not valid, or torch finds no such device; and as :class:`forebay.Loader`
        raises it.
    """
    tensors, place = Tensors(dtypes), _device(device)
    pins = _pins(place, pin_memory)
    return TensorLoader(
        loader_for("forebay.torch.loader", source, batch_size, options), tensors, place, pins=pins
    )


def tensor_loader(
    adapter: str, source: TensorLoader | Source, batch_size: int | None, options: TensorOptions
) -> TensorLoader:
    """Return the loader of an adapter: the user's own, or one made of a dataset and options."""
    if not isinstance(source, TensorLoader):
        return loader(source, batch_size, **options)
    # The same refusal as for a loader with options.
    loader_for(adapter, source.loader, batch_size, cast(LoaderOptions, options))
    return source


def _device(device: Any) -> Any:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise option_error(f"device=: expected a torch.device, found {device!r}: {error}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise option_error(
            f'device="{found}": torch finds no CUDA device',
            "torch.cuda.is_available() is False: leave device= out, or install torch for CUDA and its driver",
        )
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise option_error(
            f'device="{found}": torch cannot use it: {error}', "leave device= out, or install torch for it"
        ) from error
    return found


def _pins(device: Any, pin_memory: bool | None) -> bool:
    if pin_memory is not None and not isinstance(pin_memory, bool):
        raise option_error(f"pin_memory=: expected True or False, found {pin_memory!r}")
    has_cuda = torch.cuda.is_available()
    if pin_memory is None:
        return has_cuda and (device is None or device.type == "cuda")
    if pin_memory and not has_cuda:
        warn("pin_memory=True has no effect: torch finds no CUDA device")
    return pin_memory and has_cuda


class TensorLoader(Forwards, Generic[T]):
    """Deliver the batches of a :class:`forebay.Loader` as tensors.

    :func:`forebay.torch.loader` makes it. Each iteration delivers one epoch, the next iteration the
    next epoch, as those of the loader. Batches keep their form: a :class:`forebay.Batch` is a
    dictionary with ``indices`` and ``position``, a :class:`forebay.BatchTuple` a tuple with both; a
    NamedTuple stays one, and with it :class:`forebay.Ragged` and :class:`forebay.Padded`. Strings,
    bytes and other objects stay as they are.

    Without a device and pinned memory, tensors are writable views of the loader's batch buffers.
    A buffer is used again when the last tensor of its batch is dropped.

    Parameters
    ----------
    loader : Loader
        The loader, which nothing else iterates.
    tensors : Tensors
        Converts batches.
    device : torch.device or None
        Where tensors are delivered.
    pins : bool
        Whether they go through pinned memory.
    transfer : Transfer, optional
        How batches are copied ahead of the script. Default: as ``device`` and ``pins`` need it.
    """

    def __init__(
        self,
        loader: Loader,
        tensors: Tensors,
        device: Any,
        *,
        pins: bool,
        transfer: Transfer | None = None,
    ) -> None:
        self._loader, self._tensors, self._device, self._pins = loader, tensors, device, pins
        self._transfer = transfer
        self._consumed = Consumed()
        self._iteration: weakref.ref[CopyIteration] | None = None
        self._crew = Crew(f"forebay-{loader.name}-copies")
        weakref.finalize(self, self._crew.stop, join=False)
        _living.add(self)

    @property
    def loader(self) -> Loader:
        """The loader behind it.

        Copies ahead of the script have taken up to two batches more from it than the script. Its
        ``stats()`` count them.
        """
        return self._loader

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self._loader.batch_size

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the next one between epochs; counted from 0."""
        place = self._place()
        return self._loader.epoch if place is None else place[0]

    def __len__(self) -> int:
        """Return the number of steps in an epoch, the same on every rank."""
        return len(self._loader)

    def __repr__(self) -> str:
        where = "" if self._device is None else f" on {self._device}"
        return f"<forebay.torch.TensorLoader{where}{', pinned' if self._pins else ''} of {self._loader!r}>"

    # --- iteration ---

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the batches of the next epoch, or the rest of a restored one."""
        if overfits():
            # As the loader does it, which the copies ahead must not use meanwhile.
            self.set_epoch(0)
        transfer = self._copying()
        if transfer is not None:
            iteration = CopyIteration(
                Reader(self._loader, self._tensors, transfer, self._crew), self._consumed
            )
            self._iteration = weakref.ref(iteration)
            return iteration
        if self._device is None or self._device.type == "cpu":
            return map(self._tensors.batch, iter(self._loader))
        copies = Moved(self._device)
        return map(partial(self._tensors.batch_by, copies=copies), iter(self._loader))

    def _copying(self) -> Transfer | None:
        """Return how batches are copied ahead, if they are."""
        if self._transfer is not None:
            return self._transfer
        if self._device is not None and self._device.type == "cuda":
            self._transfer = CudaCopies(_numbered(self._device), pins=self._pins)
        elif self._pins:
            self._transfer = PinnedCopies(torch.device("cuda", torch.cuda.current_device()))
        return self._transfer

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a position restored within this epoch is kept.

        Loops that number their epochs may call it before each, as they do with a
        ``DistributedSampler``; without it, each iteration delivers the next epoch.

        Parameters
        ----------
        epoch : int
            Number of the epoch, counted from 0.

        Raises
        ------
        OptionError
            As :meth:`forebay.Loader.set_epoch` raises it.
        """
        has_consumed = self._place() is not None
        self._settle()
        before = self._loader._progress
        self._loader.set_epoch(epoch)
        if has_consumed and self._loader._progress is before:
            # Copies ahead have brought the loader to this epoch already; the script's iterator
            # must not deliver what they took.
            self._loader._move(self._loader.epoch, 0)

    @property
    def batch_sampler(self) -> _BatchSampler:
        """Where trainers such as Lightning look for ``sampler.set_epoch``."""
        return _BatchSampler(self)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that the script took last, whatever was copied ahead.

        Returns
        -------
        dict
            As :meth:`forebay.Loader.state_dict` returns it.
        """
        place = self._place()
        if place is None:
            return self._loader.state_dict()
        return self._loader._states.at(place[0], place[1])

    def state_at(self, position: Position | tuple[int, int]) -> dict[str, Any]:
        """Return the state after the batch at ``position``, as :meth:`forebay.Loader.state_at`."""
        return self._loader.state_at(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, as :meth:`forebay.Loader.load_state_dict` does it.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` or :meth:`state_at` returned, or those of a
            :class:`forebay.Loader`.

        Raises
        ------
        OptionError
            If the state does not fit; the message says what would.
        """
        self._settle()
        self._loader.load_state_dict(state)

    def _place(self) -> tuple[int, int, bool] | None:
        """Return the position of the script where it may differ from the loader's."""
        progress, place = self._consumed.at
        return place if progress is self._loader._progress else None

    def _settle(self) -> None:
        """Let the helper thread be idle, so that the loader is not in use."""
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            iteration.settle()

    # --- close ---

    def close(self) -> None:
        """Close the loader, also one that was given, and end the thread of the copies.

        Batches that the script holds stay valid. A second call does nothing.
        """
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            iteration.cancel()
        # It wakes the thread where that waits for a batch.
        self._loader.close()
        self._crew.stop(join=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        self._loader.__reduce__()


class _BatchSampler:
    """The attribute of a DataLoader where a trainer looks for ``set_epoch``.

    A checkpoint of Lightning from the end of an epoch restores the number of the epoch, and not the
    state of the loader.
    """

    def __init__(self, sampler: TensorLoader) -> None:
        self.sampler = sampler


def _numbered(device: Any) -> Any:
    """Return the device with its number: the current one of this thread where none was given."""
    if device.index is not None:
        return device
    current, local_rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    if local_rank.isdecimal() and current != int(local_rank) < torch.cuda.device_count():
        warn(
            f'device="cuda" is cuda:{current} in the process with LOCAL_RANK={local_rank}; '
            f'call torch.cuda.set_device({local_rank}) first, or give device="cuda:{local_rank}"'
        )
    return torch.device("cuda", current)


@atexit.register
def _close_all() -> None:
    """Close loaders whose thread may wait for a batch, before threads are joined at exit."""
    for one in list(_living):
        if one._iteration is not None:
            one.close()
