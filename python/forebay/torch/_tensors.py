"""Arrays become tensors that share their memory, or say why they cannot.

A dtype that torch has as well is shared without a copy. Arrays that torch cannot share are copied:
those of the other byte order, with negative strides, and read-only ones, whose memory a tensor
would make writable. Arrays of strings become lists. Any other dtype is an error that names the
field, unless the user says by ``dtypes=`` what it becomes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from forebay._adapters.leaves import convert
from forebay._core import option_error
from forebay.torch._batches import with_to

__all__ = ["Tensors"]

Array = npt.NDArray[Any]

# Dtypes that packages such as ml_dtypes add to numpy, by name: the integers of the same size, as
# which torch takes them, and its own dtype. Torch 2.3 has all of these.
_ADDED = {
    "bfloat16": (np.uint16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}


# What torch shares; the unsigned ones since torch 2.3.
_SHARED = frozenset(
    np.dtype(name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
)  # fmt: skip

# By kind of a dtype that torch lacks: what numpy converts it to where `dtypes` asks for it, and
# what an error proposes.
_NEAREST = {"f": np.float64, "c": np.complex128, "m": np.int64, "M": np.int64}
_WANTED = {"f": "float64", "c": "complex128", "m": "int64", "M": "int64"}

_DTYPES_HINT = 'for example dtypes={"uint16": torch.int32}'


class _NoTensorError(Exception):
    """Torch cannot hold this array."""

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.array = array


class Copies(Protocol):
    """Makes the copies of a batch that the script gets."""

    def one(self, tensor: Any) -> Any: ...
    def several(self, tensors: list[Any]) -> list[Any]: ...


class Tensors:
    """Converts batches.

    Parameters
    ----------
    dtypes : mapping, optional
        dtype of numpy, as :class:`numpy.dtype` takes it → ``torch.dtype`` of the tensors.

    Raises
    ------
    OptionError
        If ``dtypes`` is not such a mapping.
    """

    def __init__(self, dtypes: Mapping[Any, Any] | None = None) -> None:
        self._dtypes: dict[np.dtype[Any], Any] = {}
        if dtypes is not None and not isinstance(dtypes, Mapping):
            raise option_error(f"dtypes=: expected a mapping, found {dtypes!r}", _DTYPES_HINT)
        for given, wanted in (dtypes or {}).items():
            try:
                found = np.dtype(given)
            except TypeError:
                raise option_error(
                    f"dtypes=: expected dtypes of numpy as keys, found {given!r}", _DTYPES_HINT
                ) from None
            if not isinstance(wanted, torch.dtype):
                raise option_error(
                    f"dtypes=: expected a torch.dtype for {found}, found {wanted!r}", _DTYPES_HINT
                )
            self._dtypes[found] = wanted

    def batch(self, batch: Any) -> Any:
        """Return the same tree with tensors; it keeps types, ``indices`` and ``position``.

        Raises
        ------
        OptionError
            If torch has no tensor for an array; the message names the field.
        """
        return self._converted(batch, self.tensor)

    def batch_by(self, batch: Any, copies: Copies) -> Any:
        """Return the same tree with the copies that ``copies`` makes of tensors."""
        one = copies.one
        return self._converted(
            batch,
            lambda array: one(self.tensor(array)),
            arrays=lambda arrays: copies.several([self.tensor(array) for array in arrays]),
            other=one,
        )

    def _converted(self, batch: Any, leaf: Callable[[Array], Any], **others: Any) -> Any:
        try:
            return with_to(convert(batch, leaf, **others))
        except _NoTensorError as error:
            raise _unsupported(batch, error.array) from None

    def tensor(self, array: Array) -> Any:
        """Return a tensor of the array's memory, or of a copy where it cannot be shared."""
        if not self._dtypes and type(array) is np.ndarray and array.flags.writeable:
            try:
                return torch.from_numpy(array)
            except (TypeError, ValueError):
                pass
        return self._other(array)

    def _other(self, array: Array) -> Any:
        """Return the tensor of an array that is not shared as it is."""
        if isinstance(array, np.ma.MaskedArray):
            raise _NoTensorError(array)
        dtype = array.dtype.newbyteorder("=")
        wanted = self._dtypes.get(dtype)
        if not array.dtype.isnative:
            array = array.astype(dtype)
        if wanted is None and dtype.kind in "SU":
            return array.tolist()
        if dtype in _SHARED:
            tensor = _shared(array)
        elif dtype.name in _ADDED:
            integers, own = _ADDED[dtype.name]
            tensor = _shared(np.ascontiguousarray(array).view(integers)).view(own)
        elif wanted is not None and dtype.kind in _NEAREST:
            tensor = torch.from_numpy(array.astype(_NEAREST[dtype.kind]))
        else:
            raise _NoTensorError(array)
        return tensor if wanted is None else tensor.to(wanted)


def _shared(array: Array) -> Any:
    """Return a tensor of the memory; of a copy if it is read-only or its strides forbid that."""
    if array.flags.writeable:
        with contextlib.suppress(ValueError):
            return torch.from_numpy(array)
    return torch.from_numpy(array.copy())


def _unsupported(batch: Any, array: Array) -> Exception:
    """Return the error for an array of the batch that torch cannot hold."""
    path = next((path for path, value in _leaves(batch, ()) if value is array), ())
    names = [f"field {key!r}" if isinstance(key, str) else f"part {key}" for key in reversed(path)]
    what = "a masked array" if isinstance(array, np.ma.MaskedArray) else f"dtype {array.dtype}"
    return option_error(
        f"forebay.torch: {' of '.join(names) or 'the batch'}: torch has no tensor for {what}, shape {array.shape}",
        _hint(array),
    )


def _leaves(batch: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Iterate over the values of a tree, each with the keys that lead to it."""
    if isinstance(batch, dict):
        parts: Any = batch.items()
    elif isinstance(batch, tuple | list):
        parts = enumerate(batch)
    else:
        yield path, batch
        return
    for key, value in parts:
        yield from _leaves(value, (*path, key))


def _hint(array: Array) -> str:
    if isinstance(array, np.ma.MaskedArray):
        return "return the data and the mask as two arrays"
    if array.dtype.kind in _NEAREST:
        return f'convert it: dtypes={{"{array.dtype}": torch.{_WANTED[array.dtype.kind]}}}'
    if array.dtype.names:
        return "return fields one by one from transform= or batch_transform=: {name: array[name] for name in array.dtype.names}"
    return 'return arrays of numbers from transform= or batch_transform=; collate="list" keeps any objects'
