"""A ``tf.data.Dataset`` of batches.

TensorFlow calls back into Python for each batch, and the tensors refer to the arrays where these
are aligned to 64 bytes, as the batch buffers are; else it copies them. A tensor holds the buffer of
its batch, which the loader fills again when the last tensor is gone.

tf.data reads ahead of the training. The position of the loader counts what tf.data took, so each
element can carry its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from forebay._adapters.converted import position_of
from forebay._adapters.example import example
from forebay._adapters.loaders import Source, loader_for
from forebay._core import ForebayError, option_error
from forebay._iteration import Position
from forebay.loader import Loader, LoaderOptions
from forebay.tensorflow._spec import arrays, check, empty, packed, spec_of, specs

__all__ = ["dataset", "watch_of"]

# Batches that tf.data takes ahead. Where it chooses the number by itself, it soon holds more
# batches than the loader has buffers.
_AHEAD = 2


class Watch:
    """What tf.data took of a loader: whether it broke off an epoch."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.last: Position | None = None
        """Position of the batch that was taken last."""
        self.broken_off: Position | None = None
        """The last batch that was taken of an epoch, where another one began before its end."""

    def took(self, position: Position, steps: int) -> None:
        """Note that a batch was taken."""
        last = self.last
        if last is not None and position.epoch != last.epoch and last.step + 1 < steps:
            self.broken_off = last
        self.last = position


_watches: weakref.WeakKeyDictionary[Loader, Watch] = weakref.WeakKeyDictionary()


def watch_of(loader: Loader) -> Watch:
    """Return what tf.data took of this loader."""
    return _watches.setdefault(loader, Watch())


def dataset(
    source: Source,
    batch_size: int | None = None,
    *,
    endless: bool = False,
    with_position: bool = False,
    element_spec: Any = None,
    **options: Unpack[LoaderOptions],
) -> Any:
    """Return a ``tf.data.Dataset`` of batches.

    Each iteration delivers one epoch, the next iteration the next one. It delivers batches: do not
    call its ``batch``, and shuffle by ``order=``.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        The dataset, or a loader that was made before, whose state you can then save.
    batch_size : int, optional
        Samples per rank and step.
    endless : bool, optional
        Whether an iteration continues with the next epoch, without end. Keras then needs
        ``steps_per_epoch=``. Default False.
    with_position : bool, optional
        Whether an element is a pair: the batch, and its epoch and step as a tensor of two int64,
        for :meth:`forebay.Loader.state_at`. Default False.
    element_spec : tree of tf.TensorSpec and tf.RaggedTensorSpec, optional
        What a batch looks like. By default as the first sample does, for which ``transform`` and
        ``batch_transform`` are called once. Give it where shapes vary from batch to batch.
    **options
        Options of :class:`forebay.Loader`.

    Returns
    -------
    tf.data.Dataset
        Dictionaries of tensors, or what ``transform`` and ``batch_transform`` return as tensors:
        tuples ``(x, y)`` for Keras. Lists of bytes and fields of ``uint8`` whose length varies are
        ``tf.string``, other ones ``tf.RaggedTensor``.

    Raises
    ------
    OptionError
        If TensorFlow has no tensor for a field, inside a ``tf.function``, or as
        :class:`forebay.Loader` raises it. What a loader raises while it is iterated, TensorFlow
        raises as a ``tf.errors.OpError`` with its message.
    """
    if tf.inside_function():
        raise option_error(
            "forebay.tensorflow.dataset: expected a call outside of a tf.function, where a loader would be made at each trace",
            "make it outside, and pass it or its iterator as an argument",
        )
    loader = loader_for("forebay.tensorflow.dataset", source, batch_size, options)
    try:
        if element_spec is None:
            is_fixed = not loader.config.order.rest
            element_spec = spec_of(example(loader), loader.batch_size, is_fixed)
        else:
            check(element_spec)
        return _dataset(loader, element_spec, endless, with_position)
    except BaseException:
        if loader is not source:
            loader.close()
        raise


def _dataset(loader: Loader, spec: Any, endless: bool, with_position: bool) -> Any:
    epoch, step, begun = loader._progress.place
    endless = endless or loader._is_endless
    is_restored = step > 0 and not begun
    watch = watch_of(loader)
    watch.reset()
    holder = _Holder(loader)
    # TensorFlow never forgets the function, and must not keep the loader with it.
    reference = weakref.ref(holder)

    def begin() -> _Batches:
        held = reference()
        if held is None:
            raise ForebayError(
                "the dataset of forebay.tensorflow was collected; keep a reference to it or its iterator"
            )
        return _Batches(held.loader, spec, watch, with_position, endless, epoch if is_restored else None)

    signature = (*specs(spec), *(tf.TensorSpec([2], tf.int64),) * with_position)

    def element(*tensors: Any) -> Any:
        parts = iter(tensors)
        batch = packed(spec, parts)
        return (batch, next(parts)) if with_position else batch

    found = tf.data.Dataset.from_generator(begin, output_signature=signature)
    # What is made of a dataset refers to it, and so does an iterator.
    found._forebay_holder = holder
    found = found.map(element)
    if endless:
        count = tf.data.INFINITE_CARDINALITY
    else:
        count = len(loader) - step if is_restored else len(loader)
    found = found.apply(tf.data.experimental.assert_cardinality(count)).prefetch(_AHEAD)
    with_options = tf.data.Options()
    # Each rank has its part already.
    with_options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # After `take` or `map`, tf.data would insert a prefetch whose size it chooses.
    with_options.experimental_optimization.inject_prefetch = False
    return found.with_options(with_options)


class _Holder:
    """Holds the loader as long as the dataset lives."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader


class _Batches:
    """Iterate the arrays of the batches of an epoch; it keeps no batch."""

    def __init__(
        self,
        loader: Loader,
        spec: Any,
        watch: Watch,
        with_position: bool,
        endless: bool,
        restored: int | None,
    ) -> None:
        self._loader, self._spec, self._watch = loader, spec, watch
        self._with_position, self._endless, self._restored = with_position, endless, restored
        self._batches = iter(loader)
        self._is_first = True

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._endless:
                raise
            self._batches = iter(self._loader)
            batch = next(self._batches)
        position = position_of(self._loader)
        if self._is_first:
            self._check_place(position)
            self._is_first = False
        self._watch.took(position, self._loader._steps)
        is_empty = isinstance(batch, dict) and not batch and self._spec
        found = tuple(empty(self._spec) if is_empty else arrays(self._spec, batch))
        return (*found, np.array(position, np.int64)) if self._with_position else found

    def _check_place(self, position: Position) -> None:
        """Raise where the epoch has another number of steps than the dataset was made for."""
        name = self._loader.name
        if self._endless:
            return
        if self._restored is None and position.step:
            raise option_error(
                f"loader {name!r} was moved to epoch {position.epoch}, step {position.step} after forebay.tensorflow.dataset, "
                "whose cardinality is that of a whole epoch",
                "call load_state_dict first, then dataset",
            )
        if self._restored is not None and position.epoch != self._restored:
            raise option_error(
                f"loader {name!r}: this dataset is the rest of epoch {self._restored}, and epoch {position.epoch} begins",
                "make another dataset of the same loader for the next epochs, or one with endless=True",
            )
