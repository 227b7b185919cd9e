"""Batches as JAX arrays.

    for batch in forebay.jax.loader("train.h5", 256, sharding=sharding):
        state = train_step(state, batch)

Each array of a batch is put on the default device, or on the devices of a sharding. On a CPU a
large JAX array refers to the batch buffer and holds it: the loader fills the buffer again when the
last one of the batch is gone. Small arrays, and those on other devices, are copies.

Batches are plain dictionaries, tuples and NamedTuples, which are pytrees. What a JAX array cannot
be, strings and fields whose length varies among them, raises. So do values that do not fit 32 bits
where JAX has 64 bits disabled.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from forebay._adapters.converted import ConvertedLoader
from forebay._adapters.loaders import Source, loader_for
from forebay._adapters.require import require
from forebay._core import option_error
from forebay._job.explicit import World
from forebay._trees import register
from forebay._warn import warn
from forebay.loader import Loader, LoaderOptions

require("forebay.jax", "jax", "0.4.35", "jax>=0.4.35")

import jax  # noqa: E402
from jax.sharding import NamedSharding, Sharding  # noqa: E402

__all__ = ["JaxLoader", "loader", "world"]

register()

MAX_COPIED_BYTES = 64 << 10
"""Arrays up to this size are copied on a CPU.

A compiled function copies two of them in 16 microseconds. `jnp.asarray` takes 40 for each,
`jax.device_put` 72, without a copy (JAX 0.10, one virtual core). The copy takes less than the
difference.
"""

_ARRAYS = (np.ndarray, np.generic)
# Transfer guards that let all transfers pass.
_PERMISSIVE = (None, "allow", "log")
# Kinds of numpy dtypes that JAX arrays can have.
_KINDS = "biufcV"


class JaxLoader(ConvertedLoader[Any]):
    """Deliver batches as pytrees of :class:`jax.Array`; :func:`loader` makes one."""


def loader(
    source: Source, batch_size: int | None = None, *, sharding: Any = None, **options: Unpack[LoaderOptions]
) -> JaxLoader:
    """Return a loader that delivers pytrees of JAX arrays.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        The dataset, or a loader that was made before.
    batch_size : int, optional
        Samples per rank and step.
    sharding : jax.sharding.Sharding or pytree of them, optional
        Where the arrays lie: one for all of them, or a dictionary or tuple as the batch is. Without
        it they are on the default device, uncommitted. Where it spans several processes, each rank
        of the loader is one process of JAX, its batch is its part of the global array, and the
        first axis has ``batch_size`` samples of each.
    **options
        Options of :class:`forebay.Loader`. With several processes of JAX, pass
        ``world=forebay.jax.world()`` unless a launcher is found.

    Returns
    -------
    JaxLoader
        Iterate it as a :class:`forebay.Loader`.

    Raises
    ------
    OptionError
        If the samples of a step cannot be divided among the devices, if a field is not an array of
        numbers, or if the ranks of the loader are not the processes of JAX. Also as
        :class:`forebay.Loader` raises it.
    """
    found = loader_for("forebay.jax.loader", source, batch_size, options)
    try:
        _check_fields(found)
        for one in jax.tree.leaves(sharding):
            _check_sharding(found, one)
    except BaseException:
        if found is not source:
            found.close()
        raise
    return JaxLoader(found, _Converter(found.name, sharding))


def world() -> World:
    """Return the ranks of a loader: the processes of JAX, after ``jax.distributed.initialize()``.

    Collective over all processes of JAX. They exchange the names of their nodes.

    Returns
    -------
    World
        For the option ``world`` of :class:`forebay.Loader`.
    """
    from jax.experimental import multihost_utils

    rank, size = jax.process_index(), jax.process_count()
    if size == 1:
        return World()
    # As bytes: JAX truncates 64-bit integers.
    node = np.frombuffer(sha256(_node().encode()).digest(), np.uint8)
    nodes = np.asarray(multihost_utils.process_allgather(node)).reshape(size, -1)
    token = np.frombuffer(secrets.token_bytes(16), np.uint8)
    job = bytes(np.asarray(multihost_utils.broadcast_one_to_all(token)).astype(np.uint8))
    local = tuple(int(one) for one in np.flatnonzero((nodes == nodes[rank]).all(axis=1)))
    return World(
        rank=rank,
        size=size,
        local_rank=local.index(rank),
        local_size=len(local),
        local_ranks=local,
        job=f"jax-{job.hex()}",
    )


def _node() -> str:
    """Return what tells this host from others, containers with equal names among them."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text() if boot.exists() else ''}"


def _check_fields(loader: Loader) -> None:
    """Raise where the fields of the dataset cannot be JAX arrays and no function converts them."""
    if loader.config.per_sample is not None or loader._batch_function is not None:
        return
    for name, (_, shape) in loader.dataset.fields.items():
        if shape is None:
            raise option_error(
                f"forebay.jax.loader: field {name!r} has a different length in each sample, which no JAX array can have",
                'decode to arrays of one shape with transform=, use collate="pad", or choose others by forebay.open(fields=)',
            )


def _check_sharding(loader: Loader, sharding: object) -> None:
    """Raise where batches cannot be divided among the devices of a sharding."""
    if not isinstance(sharding, Sharding):
        raise option_error(
            f"forebay.jax.loader: sharding=: expected a jax.sharding.Sharding or a pytree of them, found {sharding!r}",
            'NamedSharding(mesh, PartitionSpec("data")) divides the first axis among the devices of the mesh axis "data"',
        )
    ranks, processes = loader.world.size, 1 if sharding.is_fully_addressable else jax.process_count()
    if ranks != processes and processes > 1:
        raise option_error(
            f"forebay.jax.loader: sharding= spans {processes} processes of JAX, the loader has {ranks} "
            f"{'rank' if ranks == 1 else 'ranks'} ({loader.world.source})",
            "make the loader with world=forebay.jax.world()",
        )
    if processes > 1 and loader.world.rank != jax.process_index():
        raise option_error(
            f"forebay.jax.loader: rank {loader.world.rank} of the loader is process {jax.process_index()} of JAX",
            "make the loader with world=forebay.jax.world()",
        )
    if not isinstance(sharding, NamedSharding) or not len(sharding.spec):
        return
    axes = sharding.spec[0]
    names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    parts = int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))
    samples = loader.batch_size * processes
    if samples % parts:
        raise option_error(
            f"forebay.jax.loader: sharding= divides the first axis among {parts} devices, "
            f"and a step has {samples} samples",
            f"choose a batch size that is a multiple of {parts // np.gcd(parts, processes)}",
        )
    rest = loader.config.order.rest
    if rest % (parts * ranks // processes):
        raise option_error(
            f'forebay.jax.loader: last_batch="partial" makes a last step of {rest} samples, and sharding= divides '
            f"the first axis among {parts} devices",
            'use last_batch="drop" or "fill"',
        )


class _Converter:
    """Puts the arrays of a batch on devices."""

    def __init__(self, name: str, sharding: Any) -> None:
        self._name, self._sharding = name, sharding
        self._has_warned = False
        self._put = _DefaultPut()
        # Those that JAX takes as they are, whatever its configuration.
        self._fitting_dtypes: set[np.dtype[Any]] = set()

    def __call__(self, batch: Any) -> Any:
        if self._sharding is None or isinstance(self._sharding, Sharding):
            return self._tree(batch, (), self._putter(self._sharding))
        return self._by_part(batch, self._sharding)

    def _by_part(self, batch: Any, sharding: Any) -> Any:
        """Convert a batch whose parts have shardings of their own."""
        if isinstance(sharding, Sharding) or sharding is None:
            return self._tree(batch, (), self._putter(sharding))
        is_dict = isinstance(sharding, dict) and isinstance(batch, dict) and sharding.keys() == batch.keys()
        is_tuple = (
            isinstance(sharding, tuple | list) and isinstance(batch, tuple) and len(sharding) == len(batch)
        )
        if is_dict:
            return {key: self._by_part(value, sharding[key]) for key, value in batch.items()}
        if is_tuple:
            return _tuple(batch, [self._by_part(*both) for both in zip(batch, sharding, strict=True)])
        raise option_error(
            f"forebay.jax.loader: sharding= has the tree {jax.tree.structure(sharding)}, the batch is {_tree(batch)}",
            "give one sharding for all arrays, or one for each part of the batch",
        )

    def _putter(self, sharding: Sharding | None) -> Callable[[list[Any]], Any]:
        """Return the function that puts numpy arrays on devices."""
        if sharding is None:
            return self._put
        if sharding.is_fully_addressable:
            return lambda arrays: jax.device_put(arrays, sharding)
        return lambda arrays: [jax.make_array_from_process_local_data(sharding, array) for array in arrays]

    def _tree(self, value: Any, path: tuple[Any, ...], put: Callable[[Any], Any]) -> Any:
        """Put all arrays of a tree on devices."""
        arrays: list[Any] = []
        self._collect(value, path, arrays)
        return _rebuilt(value, iter(put(arrays)))

    def _collect(self, value: Any, path: tuple[Any, ...], arrays: list[Any]) -> None:
        """Append the arrays of a tree to a list."""
        if isinstance(value, _ARRAYS):
            array = np.asarray(value)
            arrays.append(array if array.dtype in self._fitting_dtypes else self._fitting(array, path))
        elif isinstance(value, dict):
            for key, one in value.items():
                self._collect(one, (*path, key), arrays)
        elif isinstance(value, tuple):
            for at, one in enumerate(value):
                self._collect(one, (*path, at), arrays)
        elif not (isinstance(value, jax.Array | bool | int | float | complex) or value is None):
            raise option_error(
                f"loader {self._name!r}: {_where(path)}: expected arrays of numbers for JAX, found {_tree(value)}",
                'convert it with transform= or batch_transform=, use collate="pad" for arrays of different lengths, '
                "or leave the field out: forebay.open(fields=)",
            )

    def _fitting(self, array: np.ndarray[Any, Any], path: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Return the array with a dtype that JAX has, and with the same values."""
        dtype = array.dtype
        if (
            dtype.kind not in _KINDS
            or dtype.names is not None
            or (dtype.kind == "V" and dtype.type is np.void)
        ):
            raise option_error(
                f"loader {self._name!r}: {_where(path)}: JAX has no arrays of dtype {dtype}",
                "convert it with transform= or batch_transform=, or leave the field out: forebay.open(fields=)",
            )
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        if dtype.itemsize < 8 or dtype.kind not in "iufc" or dtype == np.complex64:
            self._fitting_dtypes.add(array.dtype)
            return array
        return array if jax.config.jax_enable_x64 else self._narrowed(array, path)

    def _narrowed(self, array: np.ndarray[Any, Any], path: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Return a 64-bit array as one of 32 bits, as JAX has 64 bits disabled."""
        narrow = np.dtype(
            {"i": np.int32, "u": np.uint32, "f": np.float32, "c": np.complex64}[array.dtype.kind]
        )
        if narrow.kind in "iu":
            limits = np.iinfo(np.int32 if narrow.kind == "i" else np.uint32)
            if array.size and (array.min() < limits.min or array.max() > limits.max):
                raise option_error(
                    f"loader {self._name!r}: {_where(path)}: values of {array.dtype} up to {array.max()} do not fit {narrow}, "
                    "which JAX uses while its 64-bit types are disabled",
                    'jax.config.update("jax_enable_x64", True), or cast with transform=',
                )
            return array.astype(narrow)
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"loader {self._name!r}: {_where(path)}: {array.dtype} is rounded to {narrow}, as JAX has its 64-bit types "
                'disabled; jax.config.update("jax_enable_x64", True) keeps them, a cast with transform= avoids this warning'
            )
        return array.astype(narrow)


class _DefaultPut:
    """Puts arrays on the default device: small ones as copies, others as they are."""

    def __init__(self) -> None:
        self._recent_shapes: deque[list[Any]] = deque(maxlen=8)

    def __call__(self, arrays: list[Any]) -> Sequence[Any]:
        small = [array for array in arrays if array.nbytes <= MAX_COPIED_BYTES]
        if not small:
            return [jax.device_put(array) for array in arrays]
        copied = self._copies(small)
        if len(small) == len(arrays):
            return copied
        copies = iter(copied)
        return [
            next(copies) if array.nbytes <= MAX_COPIED_BYTES else jax.device_put(array) for array in arrays
        ]

    def _copies(self, arrays: list[Any]) -> Sequence[Any]:
        # The script asked for these transfers, so a guard does not forbid them. Without one, the
        # context would cost as much as a copy.
        if jax.config.jax_transfer_guard_host_to_device in _PERMISSIVE:
            return self._copied(arrays)
        with jax.transfer_guard_host_to_device("allow"):
            return self._copied(arrays)

    def _copied(self, arrays: list[Any]) -> Sequence[Any]:
        """Copy arrays, by one compiled function where a recent batch had the same shapes.

        It is compiled once for each list of shapes, which takes longer than it saves where all
        batches differ.
        """
        shapes = [(array.shape, array.dtype) for array in arrays]
        if shapes in self._recent_shapes and not jax.config.jax_disable_jit:
            return _unchanged(*arrays)
        self._recent_shapes.append(shapes)
        return [jax.numpy.asarray(array) for array in arrays]


def _unchanged_arrays(*arrays: Any) -> tuple[Any, ...]:
    return arrays


_unchanged: Callable[..., tuple[Any, ...]] = jax.jit(_unchanged_arrays)


def _rebuilt(value: Any, arrays: Iterator[Any]) -> Any:
    """Return a tree with other arrays; what is no array stays as it is."""
    if isinstance(value, _ARRAYS):
        return next(arrays)
    if isinstance(value, dict):
        return {key: _rebuilt(one, arrays) for key, one in value.items()}
    if isinstance(value, tuple):
        return _tuple(value, [_rebuilt(one, arrays) for one in value])
    return value


def _tuple(like: tuple[Any, ...], parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _where(path: tuple[Any, ...]) -> str:
    return "field " + "".join(f"[{one!r}]" for one in path) if path else "the batch"


def _tree(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dictionary with {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an object of type {type(value).__name__}"
