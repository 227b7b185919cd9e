"""Functions of the user, ready to be called: ``transform=``, ``collate=``, ``batch_transform=``.

A sample whose function raises is a bad sample. With ``bad_samples="skip"`` another sample takes its
place: the first one before it by id, cyclically, that can be read and for which the function does
not raise. This depends on the sample alone, not on the batch or the rank it is in, so the stream of
samples is the same on any number of ranks, and after a resume. The replacement is read by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._core import ForebayError, option_error
from forebay._iteration import Batch, BatchTuple, Indices, Position, marked_as
from forebay._samples.calling import SampleFunction, call, parameters, sample_at
from forebay._samples.collate import How, collate, collate_name, makes_arrays
from forebay._samples.worker_error import WorkerError
from forebay.dataset import Dataset

if TYPE_CHECKING:
    from forebay._samples.processes import Processes
    from forebay._samples.rng import Randomness

__all__ = ["Functions"]

# So many samples in a row that fail mean a broken function or broken storage, not bad samples; as
# many as the engine takes.
MAX_FAILED = 64


class Functions:
    """The functions of one loader. Any thread may call the methods.

    Parameters
    ----------
    sample : function or None
        Function of a sample.
    how : str, mapping or function
        The option ``collate``.
    batch : function or None
        Function of a batch.
    name : str
        Name of the loader, for errors.
    seed : int
        Seed of the loader.
    skips : bool
        Whether another sample replaces one whose function raises.
    has_processes : bool
        Whether worker processes call ``sample``, and not threads of this process.
    """

    def __init__(
        self,
        sample: SampleFunction | None,
        how: How,
        batch: Callable[[Any], Any] | None,
        *,
        name: str,
        seed: int,
        skips: bool,
        has_processes: bool = False,
    ) -> None:
        self.sample, self.batch = sample, batch
        self._way = parameters(sample) if sample is not None else ""
        self._how = how
        self._name, self._seed, self._skips = name, seed, skips
        self.processes: Processes | None = None
        """The worker processes, if there are any."""
        if sample is not None and has_processes:
            from forebay._samples.processes import Processes

            self.processes = Processes(
                sample, self._way, loader=name, seed=seed, makes_arrays=makes_arrays(how)
            )
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()
        self._bad: dict[int, str] = {}
        self.replaced = 0
        """How often another sample replaced one."""

    def read_from(self, dataset: Dataset) -> None:
        """Set the dataset that replacements come from."""
        self._dataset = dataset

    def names(self) -> tuple[str, ...]:
        """Return which functions there are."""
        functions = {"transform": self.sample, "batch_transform": self.batch}
        return tuple(name for name, function in functions.items() if function is not None)

    def collate_name(self) -> str:
        """Return the option ``collate`` as text."""
        return collate_name(self._how)

    def bad_samples(self) -> dict[int, str]:
        """Return the reasons of samples that were replaced, by id."""
        with self._lock:
            return dict(self._bad)

    # --- samples ---

    def randomness(self, position: Position) -> Randomness:
        """Return the random numbers of an epoch."""
        # numpy makes generators where they are wanted: they take a while to import.
        from forebay._samples.rng import Randomness

        return Randomness(self._seed, position.epoch)

    def chunk_samples(self, samples: int) -> int:
        """Return how many samples of a batch a thread shall take at a time."""
        return 1 if self.processes is None else self.processes.chunk_samples(samples)

    def call(
        self, batch: Batch, places: range, randomness: Randomness
    ) -> tuple[list[tuple[Any, int]], BaseException | None]:
        """Call ``transform=`` for samples of a batch.

        Returns
        -------
        tuple
            For each sample its result, and the id of the sample it is of: another one if that is
            replaced. They end at the first sample that fails; the error is that of this sample.
        """
        found: list[tuple[Any, int]] = []
        numbers: list[int] = batch.indices[places.start : places.stop].tolist()
        while len(found) < len(numbers):
            rest = range(places.start + len(found), places.stop)
            results, error = self._called(batch, rest, numbers[len(found) :], randomness)
            found += zip(results, numbers[len(found) :], strict=False)
            if error is None:
                continue
            number = numbers[len(found)]
            if not self._skips or not isinstance(error, Exception) or isinstance(error, WorkerError):
                error.add_note(
                    f"in transform= of loader {self._name!r}: sample {number}, epoch {batch.position.epoch}, "
                    f"step {batch.position.step}"
                )
                try:
                    return found, error
                finally:
                    # The traceback of the error refers to this frame.
                    del error
            reason = f"transform= raised {type(error).__name__}: {error}"
            # Its traceback refers to the sample.
            del error
            try:
                found.append(self._replacement(number, reason, batch.position.epoch, randomness))
            except BaseException as failure:
                return found, failure
        return found, None

    def _called(
        self, batch: Batch, places: range, numbers: list[int], randomness: Randomness
    ) -> tuple[list[Any], BaseException | None]:
        """Call the function for samples up to the first that fails."""
        assert self.sample is not None
        try:
            if self.processes is not None:
                part = slice(places.start, places.stop)
                fields = {name: values[part] for name, values in batch.items()}
                return self.processes.call(batch.position.epoch, numbers, fields)
            # Threads take samples one by one.
            sample = sample_at(batch, places.start)
            return [call(self.sample, self._way, sample, numbers[0], randomness)], None
        except BaseException as error:
            return [], error

    def _called_alone(self, sample: dict[str, Any], number: int, epoch: int, randomness: Randomness) -> Any:
        """Call the function for a sample that is in no batch."""
        assert self.sample is not None
        if self.processes is None:
            return call(self.sample, self._way, sample, number, randomness)
        results, error = self.processes.call(
            epoch, [number], {name: [value] for name, value in sample.items()}
        )
        if error is not None:
            raise error
        return results[0]

    def _replacement(self, number: int, reason: str, epoch: int, randomness: Randomness) -> tuple[Any, int]:
        with self._lock:
            self._bad.setdefault(number, reason)
            self.replaced += 1
        assert self._dataset is not None
        samples = len(self._dataset)
        last: Exception | None = None
        for back in range(1, min(MAX_FAILED, samples)):
            other = (number - back) % samples
            try:
                sample = self._read(self._dataset, other, epoch)
                return self._called_alone(sample, other, epoch, randomness), other
            except WorkerError:
                raise
            except Exception as error:
                last = error
        raise ForebayError(
            f"loader {self._name!r}: transform= raises for sample {number} and for the {min(MAX_FAILED, samples) - 1} samples "
            f"before it: {reason}"
        ) from last

    def _read(self, dataset: Dataset, number: int, epoch: int) -> dict[str, Any]:
        """Read a sample as a batch would have it."""
        return {
            name: np.frombuffer(bytearray(value), np.uint8) if isinstance(value, bytes) else value
            for name, value in dataset.native.sample(number, seed=self._seed, epoch=epoch).items()
        }

    # --- batches ---

    def example(self, dataset: Dataset, samples: int) -> Any:
        """Return what a loader would deliver for a batch of copies of one sample: the first.

        With ``skips`` it is the first for which that works.

        Parameters
        ----------
        dataset : Dataset
            Where the sample comes from.
        samples : int
            Samples of the batch.
        """
        for number in range(min(MAX_FAILED, len(dataset))):
            try:
                return self._example(dataset, samples, number)
            except WorkerError:
                raise
            except Exception as error:
                if not self._skips or number + 1 == min(MAX_FAILED, len(dataset)):
                    error.add_note(f"for the first batch of loader {self._name!r}: sample {number}")
                    raise
        raise option_error(f"loader {self._name!r}: expected a dataset with samples, found none")

    def _example(self, dataset: Dataset, samples: int, number: int) -> Any:
        position = Position(0, 0)
        sample = self._read(dataset, number, position.epoch)
        indices = np.full(samples, number, np.int64)
        batch = Batch()
        batch.indices, batch.position = indices, position
        results = []
        if self.sample is not None:
            randomness = self.randomness(position)
            results = [self._called_alone(sample, number, position.epoch, randomness)] * samples
        else:
            shapes = {name: shape for name, (_, shape) in dataset.fields.items()}
            batch.update(
                (name, [value] * samples if shapes[name] is None else np.stack([value] * samples))
                for name, value in sample.items()
            )
        return self.finish(results, batch, indices)

    def finish(self, results: list[Any], batch: Batch, indices: Indices) -> Any:
        """Make what the loader delivers of the results of the samples, or else of the batch."""
        value: Any = batch
        if self.sample is not None:
            value = _marked(self._collated(results, indices), batch)
        if self.batch is None:
            return value
        try:
            return self.batch(value)
        except Exception as error:
            error.add_note(
                f"in batch_transform= of loader {self._name!r}: epoch {batch.position.epoch}, step {batch.position.step}"
            )
            raise

    def _collated(self, results: list[Any], indices: Indices) -> Any:
        if callable(self._how):
            return self._how(results)
        # A part of a rank can be empty, which does not say what fields there are.
        return collate(self._how, results, indices.tolist()) if results else {}


def _marked(value: Any, batch: Batch) -> Any:
    """Give a dictionary or a tuple the indices, the position and the repeats of its batch."""
    found: Batch | BatchTuple
    if type(value) is dict:
        found = Batch(value)
    elif type(value) is tuple:
        found = BatchTuple(value)
    else:
        return value
    return marked_as(found, batch)
