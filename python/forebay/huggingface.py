"""Samples as a ``datasets.IterableDataset`` of Hugging Face.

    train = forebay.huggingface.dataset("imagenet/", 256, order="group", decode={"image": pixels})
    for sample in train.map(augment).with_format("torch"):
        ...

The samples come from a :class:`forebay.Loader`, in its order. ``state_dict()`` of the dataset,
also after ``map`` and other functions, holds the state of the loader and how many samples of its
batch were taken: a resumed dataset continues with the next sample. docs/huggingface.md is the
guide.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self, Unpack

import numpy as np

from forebay._adapters.accelerate import refuse_dispatch
from forebay._adapters.converted import state_at_start
from forebay._adapters.loaders import Source, loader_for
from forebay._adapters.require import require
from forebay._core import option_error
from forebay.loader import LoaderOptions

require("forebay.huggingface", "datasets", "4.0", "datasets>=4.0")

import datasets  # noqa: E402

# The library has no public class for sources of samples: its own readers derive from this one.
from datasets.iterable_dataset import _BaseExamplesIterable  # noqa: E402

__all__ = ["LoaderSamples", "dataset"]


class _Parts(int):
    """The number of parts of a loader whose ranks share the samples: one for each rank.

    Accelerate and ``split_dataset_by_node`` ask for a part of them, or else give each rank a part
    of what is a part already. As the number counts as divisible by any other one, they always call
    :meth:`LoaderSamples.shard_data_sources`, which refuses what does not fit.
    """

    def __mod__(self, _: int) -> int:
        return 0


class LoaderSamples(_BaseExamplesIterable):  # type: ignore[misc]
    """The samples or batches of a loader; :func:`dataset` makes a dataset of one.

    Each iteration delivers one epoch, the next iteration the next epoch, or the rest of one that a
    state was loaded for.

    Parameters
    ----------
    loader : Loader
        Where the samples come from.
    batches : bool
        Whether an item is a batch.
    """

    def __init__(self, loader: Any, batches: bool) -> None:
        super().__init__()
        self.loader, self._batches = loader, batches
        self._state_dict: dict[str, Any] | None = None
        self._initial = ""

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a key and a dictionary of field name to value.

        Raises
        ------
        OptionError
            If ``transform=`` or ``batch_transform=`` make something other than dictionaries of the
            batches, and where Accelerate reads on rank 0 for all ranks of a loader.
        """
        refuse_dispatch(
            "forebay.huggingface.dataset",
            self.loader,
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)), for the Trainer "
            'TrainingArguments(accelerator_config={"dispatch_batches": False})',
        )
        state = self._state_dict or self._init_state_dict()
        before, skipped = state["loader"], state["taken"]
        if (before, skipped) != (self._initial, 0):
            self.loader.load_state_dict(json.loads(before))
        for step, batch in enumerate(self.loader):
            if not isinstance(batch, Mapping):
                raise option_error(
                    f"forebay.huggingface: expected batches that are dictionaries, found {type(batch).__name__}",
                    "return a dictionary from transform= and batch_transform=",
                )
            after = json.dumps(self.loader.state_dict())
            count = 1 if self._batches else len(next(iter(batch.values())))
            for place in range(skipped, count):
                is_last = place + 1 == count
                state.update(loader=after if is_last else before, taken=0 if is_last else place + 1)
                yield f"{step}_{place}", dict(batch) if self._batches else _row(batch, place)
            before, skipped = after, 0
        # The rest of this epoch is empty: go on with the next one.
        state.update(loader=json.dumps(state_at_start(self.loader)), taken=0)

    def _init_state_dict(self) -> dict[str, Any]:
        """Make the dictionary that the dataset refers to, fills from a state, and returns."""
        # As text: the library merges dictionaries key by key.
        self._initial = json.dumps(state_at_start(self.loader))
        self._state_dict = {"loader": self._initial, "taken": 0, "type": type(self).__name__}
        return self._state_dict

    @property
    def num_shards(self) -> int:
        """One for each rank: they share the samples among themselves."""
        size = self.loader.world.size
        return _Parts(size) if size > 1 else 1

    def shuffle_data_sources(self, generator: np.random.Generator) -> Self:
        """Return the same samples: ``order=`` of the loader shuffles."""
        return self

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Self:
        """Return the same samples: those of this rank, if the part of this rank is asked for.

        Raises
        ------
        OptionError
            In worker processes of a DataLoader, and if the part of another rank is asked for.
        """
        world = self.loader.world
        if num_shards > 1 and (_is_worker() or (num_shards, index) != (world.size, world.rank)):
            raise option_error(
                f"forebay.huggingface: expected rank {world.rank} of the {world.size} of loader {self.loader.name!r}, "
                f"found reader {index} of {num_shards}",
                "leave out split_dataset_by_node, as the ranks of the loader share the samples, and pass "
                "DataLoader(num_workers=0), as it has threads",
            )
        return self

    def reshard_data_sources(self) -> Self:
        """Return the same samples."""
        return self

    @property
    def sleep_on_threads_shutdown(self) -> bool:
        """Whether threads of Arrow have to end; there are none."""
        return False


def dataset(
    source: Source, batch_size: int | None = None, *, batches: bool = False, **options: Unpack[LoaderOptions]
) -> datasets.IterableDataset:
    """Return a ``datasets.IterableDataset`` of samples, or of batches.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        The dataset, or a loader that was made before.
    batch_size : int, optional
        Samples per rank and step of the loader; the samples come one by one all the same.
    batches : bool, optional
        Whether an item is a whole batch: a dictionary of arrays. Default False: a sample, whose
        values are copies.
    **options
        Options of :class:`forebay.Loader`.

    Returns
    -------
    datasets.IterableDataset
        Each iteration is an epoch, the next one the next epoch. ``state_dict`` and
        ``load_state_dict`` are exact to the sample.

    Raises
    ------
    OptionError
        As :class:`forebay.Loader` raises it. When it is iterated: in a worker process of a
        DataLoader.
    """
    loader = loader_for("forebay.huggingface.dataset", source, batch_size, options)
    return datasets.IterableDataset(LoaderSamples(loader, batches))


def _row(batch: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a sample of a batch, with arrays that stay when the batch is gone."""
    return {
        name: np.array(values[place]) if isinstance(values[place], np.ndarray) else values[place]
        for name, values in batch.items()
    }


def _is_worker() -> bool:
    """Return whether this is a worker process of a torch DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
