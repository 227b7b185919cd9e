"""What the user gave: ``sample=``, ``collate=`` and ``batch=``, checked and ready to be called.

A sample whose function raises is a bad sample. With ``bad_samples="skip"`` another sample takes its
place: the first one before it by id, cyclically, that can be read and for which the function does
not raise. This depends on the sample alone, not on the batch or the rank it is in, so the stream of
samples is the same on any number of ranks, and after a resume. The replacement is read by itself.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from forebay._core import ForebayError, option_error
from forebay._iteration import Batch, BatchTuple, Indices, Position
from forebay._samples.collate import collate
from forebay._samples.rng import Randomness
from forebay.dataset import Dataset

__all__ = ["Functions", "check_function", "parameters"]

SampleFunction = Callable[..., Any]

# So many samples in a row that fail mean a broken function or broken storage, not bad samples; as
# many as the engine takes.
MAX_FAILED = 64

_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_function(name: str, function: object, takes: str) -> None:
    """Raise an OptionError unless ``function`` can be called."""
    if not callable(function):
        raise option_error(f"{name}=: expected a function of {takes}, found {function!r}")


def parameters(function: SampleFunction) -> str:
    """Return how ``sample=`` is called: ``"sample"``, ``"sample, rng"`` or ``"sample, rng="``.

    A function gets a generator if it has a parameter ``rng``, or two parameters without a default.
    A function that does not say which parameters it has gets none.

    Raises
    ------
    OptionError
        If it cannot be called in one of these ways.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "sample"
    positional = [one for one in signature.parameters.values() if one.kind in _KINDS]
    required = [one for one in positional if one.default is one.empty]
    named = signature.parameters.get("rng")
    if named is not None and named.kind not in (*_KINDS, named.KEYWORD_ONLY):
        named = None
    arguments: tuple[int, ...] = (0,)
    keywords: dict[str, int] = {}
    if named is not None and (named.kind is named.KEYWORD_ONLY or positional.index(named) > 1):
        way, keywords = "sample, rng=", {"rng": 0}
    elif len(required) >= 2 or (named is not None and len(positional) > 1 and positional[1] is named):
        way, arguments = "sample, rng", (0, 0)
    else:
        way = "sample"
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise option_error(
            f"sample=: expected a function of a sample, or of a sample and rng; found {_shown(function)}{signature}: {error}",
            "functools.partial or a lambda gives it its other arguments",
        ) from None
    return way


def _shown(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


class Functions:
    """The functions of one loader. Any thread may call the methods.

    Parameters
    ----------
    sample : function or None
        Function of a sample.
    how : str or function
        The option ``collate``.
    batch : function or None
        Function of a batch.
    name : str
        Name of the loader, for errors.
    seed : int
        Seed of the loader.
    skips : bool
        Whether another sample replaces one whose function raises.
    """

    def __init__(
        self,
        sample: SampleFunction | None,
        how: str | Callable[[list[Any]], Any],
        batch: Callable[[Any], Any] | None,
        *,
        name: str,
        seed: int,
        skips: bool,
    ) -> None:
        self.sample, self.batch = sample, batch
        self._way = parameters(sample) if sample is not None else ""
        self._how = how
        self._name, self._seed, self._skips = name, seed, skips
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()
        self._bad: dict[int, str] = {}
        self.replaced = 0
        """How often another sample replaced one."""

    def read_from(self, dataset: Dataset) -> None:
        """Set the data set that replacements come from."""
        self._dataset = dataset

    def names(self) -> tuple[str, ...]:
        """Return which functions there are."""
        return tuple(name for name in ("sample", "batch") if getattr(self, name) is not None)

    def collate_name(self) -> str:
        """Return the option ``collate`` as text."""
        return self._how if isinstance(self._how, str) else "function"

    def bad_samples(self) -> dict[int, str]:
        """Return the reasons of samples that were replaced, by id."""
        with self._lock:
            return dict(self._bad)

    # --- samples ---

    def randomness(self, position: Position) -> Randomness:
        """Return the random numbers of an epoch."""
        return Randomness(self._seed, position.epoch)

    def call(self, batch: Batch, at: int, randomness: Randomness) -> tuple[Any, int]:
        """Call ``sample=`` for one sample of a batch.

        Returns
        -------
        tuple
            The result, and the id of the sample it is of: another one if that is replaced.
        """
        number = int(batch.indices[at])
        # An ellipsis makes a view of a scalar, too; a field of varying length is a list.
        sample = {
            name: values[at] if isinstance(values, list) else values[at, ...]
            for name, values in batch.items()
        }
        try:
            return self._called(sample, number, randomness), number
        except Exception as error:
            if not self._skips:
                error.add_note(
                    f"in sample= of loader {self._name!r}: sample {number}, epoch {batch.position.epoch}, "
                    f"step {batch.position.step}"
                )
                raise
            reason = f"sample= raised {type(error).__name__}: {error}"
        return self._replacement(number, reason, randomness)

    def _called(self, sample: dict[str, Any], number: int, randomness: Randomness) -> Any:
        assert self.sample is not None
        if self._way == "sample":
            return self.sample(sample)
        rng = randomness.of(number)
        return self.sample(sample, rng) if self._way == "sample, rng" else self.sample(sample, rng=rng)

    def _replacement(self, number: int, reason: str, randomness: Randomness) -> tuple[Any, int]:
        with self._lock:
            self._bad.setdefault(number, reason)
            self.replaced += 1
        assert self._dataset is not None
        samples = len(self._dataset)
        last: Exception | None = None
        for back in range(1, min(MAX_FAILED, samples)):
            other = (number - back) % samples
            try:
                sample = self._read(self._dataset, other, randomness.epoch)
                return self._called(sample, other, randomness), other
            except Exception as error:
                last = error
        raise ForebayError(
            f"loader {self._name!r}: sample= raises for sample {number} and for the {min(MAX_FAILED, samples) - 1} samples "
            f"before it: {reason}"
        ) from last

    def _read(self, dataset: Dataset, number: int, epoch: int) -> dict[str, Any]:
        """Read a sample as a batch would have it."""
        return {
            name: np.frombuffer(bytearray(value), np.uint8) if isinstance(value, bytes) else value
            for name, value in dataset.native.sample(number, seed=self._seed, epoch=epoch).items()
        }

    # --- batches ---

    def finish(self, results: list[Any], batch: Batch, indices: Indices) -> Any:
        """Make what the loader delivers of the results of the samples, or else of the batch."""
        value: Any = batch
        if self.sample is not None:
            value = _with_position(self._collated(results, indices), indices, batch.position)
        if self.batch is None:
            return value
        try:
            return self.batch(value)
        except Exception as error:
            error.add_note(
                f"in batch= of loader {self._name!r}: epoch {batch.position.epoch}, step {batch.position.step}"
            )
            raise

    def _collated(self, results: list[Any], indices: Indices) -> Any:
        if not isinstance(self._how, str):
            return self._how(results)
        # A part of a rank can be empty (`last="short"`), which does not say what fields there are.
        return collate(self._how, results, indices.tolist()) if results else {}


def _with_position(value: Any, indices: Indices, position: Position) -> Any:
    """Give a dictionary or a tuple its indices and position."""
    found: Batch | BatchTuple
    if type(value) is dict:
        found = Batch(value)
    elif type(value) is tuple:
        found = BatchTuple(value)
    else:
        return value
    found.indices, found.position = indices, position
    return found
