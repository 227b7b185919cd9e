"""A data loader of DLIO that delivers the batches of a forebay.Loader.

DLIO calls ``read`` once, then for each epoch ``next``, which yields the batches, and ``finalize``.
The loader is made in ``read`` and closed with the last epoch. DLIO measures how long it waits for
each batch, and sleeps for the time that the accelerator would compute.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.utils.utility import DLIOMPI

from forebay._core import option_error
from forebay._job.explicit import World
from forebay.dlio._files import Files
from forebay.loader import Loader
from forebay.options import resolve

__all__ = ["DataLoader"]

_OFF = ("off", "false")
"""Both spellings: YAML reads ``off`` as a boolean, and DLIO keeps it as it is."""


class DataLoader(BaseDataLoader):  # type: ignore[misc]
    """Deliver batches of a :class:`forebay.Loader` to DLIO.

    Name it in the workload as ``reader.data_loader_classname``, with ``data_loader_sampler: none``.
    The ranks are those of DLIO's MPI job. Options come from the workload where it has them, and
    from ``FOREBAY_`` variables and configuration files otherwise (docs/dlio.md).

    Parameters
    ----------
    format_type, dataset_type, epoch
        As DLIO passes them: format of the files, training or validation, first epoch.

    Raises
    ------
    OptionError
        If Forebay does not read the format of the workload, or the data has another number of
        samples than the workload.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.CUSTOM)
        self._loader: Loader | None = None
        self._begun = 0

    def read(self) -> None:
        """Make the loader; collective over the ranks of DLIO."""
        arguments = self._args
        given = resolve({"order": None, "workers": None, "worker_kind": None}).origins
        files = Files(arguments, self.dataset_type)
        sample = _sample_function(files, arguments)
        workers = (
            max(1, arguments.read_threads) if sample and not {"workers", "worker_kind"} & set(given) else None
        )
        communicator = DLIOMPI.get_instance().comm()
        self._loader = Loader(
            files.dataset,
            self.batch_size,
            order=None if "order" in given else _order(arguments),
            name=f"dlio-{self.dataset_type}",
            seed=_seed(arguments, communicator),
            world=World(rank=arguments.my_rank, size=arguments.comm_size, comm=communicator),
            expected_epochs=self._epochs() if arguments.seed_change_epoch else 1,
            last_batch="drop",
            transform=sample,
            workers=workers,
            collate="list" if sample else None,
        )
        files.check(self._loader.config.data.samples)

    def next(self) -> Iterator[Any]:
        """Yield the batches of one epoch: field name → array, or list of arrays.

        DLIO takes as many as its own data loaders deliver: a part of a batch is left out.
        """
        if self._loader is None:
            raise option_error("forebay.dlio.DataLoader: next() was called before read()")
        if not self._args.seed_change_epoch:
            self._loader.set_epoch(0)
        self._begun += 1
        yield from self._loader
        self.epoch_number += 1

    def finalize(self) -> None:
        """Close the loader after its last epoch; DLIO calls this after each."""
        if self._loader is not None and self._begun >= self._epochs():
            self._loader.close()

    def _epochs(self) -> int:
        """Return how often DLIO will iterate this loader."""
        arguments = self._args
        if self.dataset_type is DatasetType.TRAIN:
            return int(arguments.epochs)
        first, every = max(1, arguments.eval_after_epoch), max(1, arguments.epochs_between_evals)
        return len(range(first, arguments.epochs + 1, every))


def _is_on(shuffle: object) -> bool:
    return str(shuffle).lower() not in _OFF


def _order(arguments: Any) -> str:
    """Return the order that the workload asks for.

    Shuffled samples are a shuffle of all. With shuffled files alone, neighbours stay together.
    """
    if _is_on(arguments.sample_shuffle):
        return "shuffle"
    return "group" if _is_on(arguments.file_shuffle) else "sequential"


def _seed(arguments: Any, communicator: Any) -> int:
    """Return the seed of the workload, or one that the ranks agree on for ``random``."""
    if "random" in (str(arguments.sample_shuffle), str(arguments.file_shuffle)):
        return int(communicator.bcast(secrets.randbits(63)))
    return int(arguments.seed)


def _sample_function(files: Files, arguments: Any) -> Callable[..., Any] | None:
    """Return what is done with each sample: parsing, and DLIO's emulated preprocessing."""
    mean, deviation = arguments.preprocess_time, arguments.preprocess_time_stdev
    parse = files.parse
    if parse is None and not (mean or deviation):
        return None

    def work(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        parsed = sample if parse is None else parse(sample)
        if mean or deviation:
            time.sleep(max(0.0, rng.normal(mean, deviation)))
        return parsed

    return work
