"""The loader: batches of samples in a known order, at the speed of the storage.

The constructor resolves and checks the options (:mod:`forebay.options`) and identifies the rank
(:mod:`forebay._job.world`). The ranks of several nodes compare their options; then the ranks of
each node make the engine (collective). From then on each batch is one call into the engine.

The loader keeps the position: epoch and step, which count delivered batches. A state is therefore
exact, however far the engine has read ahead. Each batch also carries its own position, so that a
wrapper that prefetches can save the state of the batch that was consumed last.

:mod:`forebay._iteration` holds the iterators.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from forebay import _core, _native
from forebay._callers import overfits
from forebay._core import ForebayError, OptionError, guard_stop_iteration, option_error
from forebay._given_order import Given, GivenStates, Weighted
from forebay._iteration import Batch, BatchTuple, Indices, Iteration, Position, Progress
from forebay._job.channel import Channel, compare, errors_told
from forebay._job.later import check_ranks
from forebay._job.world import RankInfo, World, identify
from forebay._mixture import Mixture
from forebay._samples.collate import Padded, Ragged
from forebay._samples.functions import Functions
from forebay._samples.iteration import AheadIteration
from forebay._samples.pipeline import Pipeline
from forebay._samples.settings import (
    check_given,
    has_processes,
    prefetch_for,
    strategy_for,
)
from forebay._shown import counted, table
from forebay._trees import register
from forebay.dataset import Dataset, PathLike, open
from forebay.options import (
    AUTO,
    Group,
    LocalShuffle,
    Opportunistic,
    Store,
    Strategy,
    Tier,
    check_stagger,
    per_rank_batch,
    resolve,
    unknown_option,
)

__all__ = ["Batch", "BatchTuple", "Loader", "Padded", "Position", "Ragged"]

if TYPE_CHECKING:
    # A default for the batches of a loader; typing has it since Python 3.13.
    from typing_extensions import TypeVar

    from forebay.config import Config, PerSample

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

OrderFunction = Callable[[int], "npt.ArrayLike"]
Order: TypeAlias = str | Group | LocalShuffle | Opportunistic | Given | Weighted | OrderFunction

_IN_A_WORKER = (
    "make the loader in the process that iterates it; wrapped in a torch DataLoader, that is num_workers=0"
)


class _NotAnIteratorError(OptionError, TypeError, AttributeError):
    __module__ = "forebay"


class _NoLengthError(OptionError, TypeError):
    __module__ = "forebay"


class _NoNext:
    """The missing ``__next__`` of a loader: names what to call instead; ``hasattr`` is False."""

    def __get__(self, loader: Loader | None, owner: type[Loader]) -> NoReturn:
        raise _NotAnIteratorError(
            "next(loader): expected an iterator, found a Loader\n"
            "hint: it = iter(loader), then next(it) for each batch; or for batch in loader"
        )


class LoaderSettings(TypedDict, total=False):
    """The options of :class:`Loader` but its two functions, by name, for type checkers."""

    global_batch: int | None
    order: Order | None
    name: str | None
    seed: int | None
    world: str | World | None
    strategy: str | Strategy | None
    node_memory: int | str | None
    tiers: Sequence[str | Tier] | None
    store: int | str | Store | None
    expected_epochs: int | None
    last_batch: str | None
    bad_samples: str | None
    checksums: bool | None
    collate: str | Mapping[Any, Any] | Callable[[list[Any]], Any] | None
    workers: int | None
    worker_kind: str | None
    prefetch: int | None
    timeout: float | None


class LoaderOptions(LoaderSettings, total=False):
    """The options of :class:`Loader`, by name, for type checkers."""

    transform: Callable[..., Any] | None
    batch_transform: Callable[[Any], Any] | None


def _close_engine(engine: _native.Engine, generation: int) -> None:
    """Close the engine when the loader is collected or Python exits.

    A forked child leaves the engine of its parent alone.
    """
    if generation == _core.fork_generation():
        engine.close()


class Loader(Generic[T]):
    """Deliver batches of samples in a known order.

    The constructor is collective over the ranks of a node, and over all ranks where nodes are
    linked (docs/nodes.md). The ``name`` tells the loaders of one job apart.

    Each iteration delivers one epoch, the next iteration the next epoch. The epoch begins with the
    first ``next``: an iterator that was never used changes nothing. An epoch that the script breaks
    off counts as iterated; the other ranks continue without this rank until its next iteration.
    They wait for a rank that does not begin: a loader that one rank iterates alone is made with
    ``world="single"``. One thread at a time iterates a loader: the start of an iteration makes
    earlier iterators stale.

    Each option but ``dataset``, ``transform`` and ``batch_transform`` can also come from the
    environment variable ``FOREBAY_`` + its name in capitals, or from the configuration file
    (docs/options.md). An argument of None counts as not given.

    Parameters
    ----------
    dataset : Dataset or path-like or sequence of path-like
        What :func:`forebay.open`, :func:`forebay.tokens` or :func:`forebay.mix` returns, or what
        :func:`forebay.open` takes.
    batch_size : int
        Samples per rank and step.
    global_batch : int
        Samples per step of all ranks together, instead of ``batch_size``.
    order : str, Group, LocalShuffle, Opportunistic, Given, Weighted or function
        Which sample stands at which position of an epoch: ``"group"``, ``"sequential"``,
        ``"contiguous"``, ``"shuffle"``, ``"local-shuffle"`` or ``"opportunistic"``
        (docs/orders.md). A function takes the epoch and returns all sample ids: a one-dimensional
        array of integers, the same on every rank; with :class:`Given`, a part of them, or some more
        than once. :class:`Weighted` draws samples by weights. Default ``"group"``.
    name : str
        Name of the loader within the job, for messages and the comparison of options between ranks.
        Give loaders that live at the same time different names.
        Default ``"train"``.
    seed : int
        Seed of all shuffles, together with the epoch; 0 to 2**64 - 1. Default 0.
    world : {"auto", "mpi", "torchrun", "slurm", "single"} or World
        The ranks of the job, and where they are found. Default ``"auto"``.
    strategy : {"forebay", "mmap", "pread", "io_uring"} or Strategy
        How samples are fetched; it never changes which. Default ``"forebay"``. ``lmdb`` and the
        steps of LMDBIO (docs/papers.md) exist for comparison.
    node_memory : int or str
        Memory budget of the node [bytes], or a string such as ``"2GiB"``: staging blocks, batch
        buffers and retained values. The loaders of a job share it, or those of a process that is
        alone. Default: 2.5 GiB, or less where memory is limited (docs/options.md).
    tiers : list of str or Tier
        Directories on storage of the node that keep copies of what was read, the nearest first:
        ``["/dev/shm:8GiB", "/scratch/me:200GiB"]`` (docs/options.md). From the second epoch on,
        and in later jobs, reads find what is there. Default: none.
    store : int or str or Store
        Memory of each node for its share of the dataset: bytes, a string such as ``"64GiB"``, or
        ``"auto"``. The nodes of the job load the dataset once, and serve it to each other
        (docs/store.md). Default: none.
    expected_epochs : int
        Number of epochs that the script will iterate, counted from the first; the loader prefetches
        nothing beyond them. The script may iterate more, each of which is then read on demand. By
        default unknown: the loader prefetches into the next epoch.
    last_batch : {"partial", "fill", "drop", "carry"}
        What happens where the samples of an epoch do not fill the last step. ``partial``: they are
        shared out evenly over the ranks, so that each sample comes once; no batch is empty, and
        batches of two ranks differ by at most one sample. ``fill``: samples from the start of the
        epoch fill the step, and :attr:`Batch.repeated` marks them. ``drop``: the remaining samples
        are left out. ``carry``: the next epoch starts where this one ended (order ``sequential``
        only). Default ``"partial"``.
    bad_samples : {"raise", "skip"}
        What happens where a sample cannot be read or decoded. ``raise``: an error that names file
        and offset. ``skip``: the nearest earlier good sample of the order replaces it,
        ``batch.indices`` holds the replacement, and :meth:`bad_samples` lists the bad one. A sample
        for which ``transform`` raises is replaced by the nearest one before it by id. Default
        ``"raise"``.
    checksums : bool
        Whether the loader checks the checksum of each record it delivers, where the format has one
        (TFRecord: CRC-32C of the data). A wrong checksum makes a bad sample. ``forebay verify`` and
        ``dataset[i]`` always check. Default False.
    transform : function
        Function of a sample, or of a sample and a random generator: ``transform(sample, rng)``.
        Workers call it for each sample of a batch, ahead of the script, and its results are
        collated (docs/per-sample.md). ``sample`` is a dictionary: field name → writable view of the
        batch buffer, of the field's shape; of its values where the length varies. ``rng`` is a
        :class:`numpy.random.Generator` that depends on seed, epoch and sample id alone. It is
        passed if the function has a parameter ``rng``, or two parameters without a default.
    batch_transform : function
        Function of a :class:`Batch`, or of the collated results of ``transform``; the loader
        delivers what it returns. With ``transform``, ``workers`` or ``prefetch``, threads call it
        ahead of the script, for several batches at once; else the script's own thread does.
    collate : {"stack", "pad", "list", "ragged"}, mapping or function
        How the results of ``transform`` become a batch. ``stack``: arrays of equal shapes become
        one. ``pad``: :class:`Padded`. ``ragged``: :class:`Ragged`. ``list``: lists. A mapping has
        one of them for each field, position or name of the results; ``...`` stands for all others.
        A function takes the list of results. Default ``"stack"``.
    workers : int
        Threads that call ``transform`` and ``batch_transform``, 1 to 1024, or processes that call
        ``transform``, 1 to 256. Default: the cores of this rank.
    worker_kind : {"thread", "process"}
        What calls ``transform``. Processes are for functions that hold the interpreter lock;
        ``transform`` is then a function of a module, or of a script that is guarded by
        ``if __name__ == "__main__"``. Default ``"thread"``.
    prefetch : int
        Batches that are worked on ahead of the script, 0 to 60. Default 2, or fewer where the
        loader has few batch buffers.
    timeout : float
        Longest wait for stalled storage, or for other ranks to make their loader [s]. A loader
        waits for a slow rank without limit, with warnings. Default 600.

    Raises
    ------
    OptionError
        If an option is not valid, or the budget is too small for one batch.
    MemoryLimitError
        If a limit on memory (control group, ``ulimit -v``) leaves too little; an
        :class:`OptionError` and a :class:`MemoryError`.
    FormatError
        If the contents of the dataset are not what its format says.
    StorageError
        If the dataset cannot be read.
    StorageTimeout
        If storage does not answer within ``timeout`` seconds; a :class:`StorageError`.
    RendezvousError
        If not all ranks came within ``timeout`` seconds, or they disagree.
    PeerLostError
        If a process of the job ended.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        transform: None = None,
        batch_transform: None = None,
        **options: Unpack[LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Any],
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        transform: Callable[..., Any],
        batch_transform: None = None,
        **options: Unpack[LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self,
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], T],
        **options: Unpack[LoaderSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Any],
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        **options: Unpack[LoaderSettings],
    ) -> None: ...

    def __init__(
        self,
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        global_batch: int | None = None,
        order: Order | None = None,
        name: str | None = None,
        seed: int | None = None,
        world: str | World | None = None,
        strategy: str | Strategy | None = None,
        node_memory: int | str | None = None,
        tiers: Sequence[str | Tier] | None = None,
        store: int | str | Store | None = None,
        expected_epochs: int | None = None,
        last_batch: str | None = None,
        bad_samples: str | None = None,
        checksums: bool | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        collate: str | Mapping[Any, Any] | Callable[[list[Any]], Any] | None = None,
        workers: int | None = None,
        worker_kind: str | None = None,
        prefetch: int | None = None,
        timeout: float | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option(next(iter(unknown)))
        check_given(
            transform=transform,
            batch_transform=batch_transform,
            collate=collate,
            workers=workers,
            worker_kind=worker_kind,
            prefetch=prefetch,
        )
        explicit = world if isinstance(world, World) else None
        self._options = resolve(
            {
                "batch_size": batch_size,
                "global_batch": global_batch,
                "order": order,
                "name": name,
                "seed": seed,
                "world": None if explicit else world,
                "strategy": strategy,
                "node_memory": node_memory,
                "tiers": tiers,
                "store": store,
                "expected_epochs": expected_epochs,
                "last_batch": last_batch,
                "bad_samples": bad_samples,
                "checksums": checksums,
                "workers": workers,
                "worker_kind": worker_kind,
                "prefetch": prefetch,
                "collate": collate,
                "timeout": timeout,
            }
        )
        self._batch_function = None if batch_transform is None else guard_stop_iteration(batch_transform)
        self._pipeline: Pipeline | None = None
        if transform is not None or (
            batch_transform is not None and {"workers", "prefetch"} & self._options.origins.keys()
        ):
            self._pipeline = self._make_pipeline(transform, batch_transform)
        self._rank_info = identify(explicit or self._options["world"], self._options["timeout"])
        # Other sources are believed, whatever a framework says later.
        self._follows_framework = explicit is None and self._options["world"] in ("auto", "torchrun")
        channel = self._open_channel()
        with errors_told(channel):
            self._dataset = dataset if isinstance(dataset, Dataset) else open(dataset)
            self._is_endless = isinstance(self._dataset, Mixture) and self._dataset.stop == "never"
            if self._pipeline is not None:
                self._pipeline.functions.read_from(self._dataset)
            self._batch_size = per_rank_batch(self._options, self._rank_info.size)
            self._order_function: OrderFunction | None = None
            self._weighted: Weighted | None = None
            self._order = self._order_facts(self._options["order"])
        self._generation = _core.fork_generation()
        self._progress = Progress(0, 0, False)
        self._beginning = threading.Lock()
        self._closed_stats: dict[str, Any] | None = None
        self._closed_facts: dict[str, Any] | None = None
        self._closed_bad_samples: list[tuple[int, str]] | None = None
        self._engine = self._make_engine(channel)
        # Here, as the script has imported its frameworks by now.
        register()

    def _open_channel(self) -> Channel | None:
        info = self._rank_info
        if info.channel is not None or len(info.local_ranks) == info.size:
            return info.channel
        # Sockets, secrets and digests, which a job of one node does without.
        from forebay._job.tcp import open_channel

        return open_channel(info, self.name, self._options["timeout"])

    def _make_pipeline(
        self, transform: Callable[..., Any] | None, batch_transform: Callable[[Any], Any] | None
    ) -> Pipeline:
        functions = Functions(
            transform,
            self._options["collate"],
            batch_transform,
            name=self.name,
            seed=self._options["seed"],
            skips=self._options["bad_samples"] == "skip",
            has_processes=has_processes(self._options, transform),
        )
        pipeline = Pipeline(functions, self.name)
        # When the loader is collected; it does not wait for functions under way.
        weakref.finalize(self, pipeline.abandoned())
        return pipeline

    def _order_facts(self, order: Order) -> dict[str, Any]:
        facts = {
            "samples": None,
            "window": None,
            "lanes": None,
            "steps": None,
            "entropy": None,
            "unit": None,
            "repeats": False,
            "mixture": self._dataset.facts() if isinstance(self._dataset, Mixture) else None,
        }
        if isinstance(order, str):
            return {"kind": order, **facts}
        if isinstance(order, Group):
            return {"kind": "group", **facts, **asdict(order)}
        if isinstance(order, LocalShuffle):
            return {"kind": "local-shuffle", **facts, **asdict(order)}
        if isinstance(order, Opportunistic):
            return {"kind": "opportunistic", **facts, **asdict(order)}
        if isinstance(order, Weighted):
            self._weighted = order
            ids = partial(order.ids, self._options["seed"])
            order = Given(ids, samples=order.draws, repeats=True)
        if not isinstance(order, Given):
            order = Given(order)
        self._order_function = order.function
        return {"kind": "given", **facts, "samples": order.samples, "repeats": order.repeats}

    def _make_engine(self, channel: Channel | None) -> _native.Engine:
        rank_info = self._rank_info
        strategy = strategy_for(self._options, works_ahead=self._pipeline is not None)
        native = strategy.NATIVE
        shared = {
            "name": self.name,
            "size": rank_info.size,
            "batch_size": self._batch_size,
            "order": self._order,
            "seed": self._options["seed"],
            "last_batch": self._options["last_batch"],
            "expected_epochs": self._options["expected_epochs"],
            "node_memory_bytes": self._options["node_memory"],
            "strategy": asdict(strategy),
            "store": None if (store := self._options["store"]) is None else asdict(store),
            "store_of_system": "store" in self._options.of_system,
            "skips_bad_samples": self._options["bad_samples"] == "skip",
            "checksums": self._options["checksums"],
            "timeout_s": math.ceil(self._options["timeout"]),
            "tiers": {
                "tiers": [tier.facts() for tier in self._options["tiers"]],
                "of_system": "tiers" in self._options.of_system,
            },
        }
        links, listener = None, None
        if channel is not None:
            facts = {**shared, "decode": self._dataset.decoders, "dataset": self._dataset.fingerprint}
            if self._weighted is not None:
                facts["weights"] = self._weighted.digest
            if "tiers" in self._options.of_system or "tiers" not in self._options.origins:
                # Administrators may name other storage on each node.
                del facts["tiers"]
            else:
                # Nodes may have other names for it; the ranks of each are compared by its leader.
                named = facts["tiers"]["tiers"]
                unnamed = [{key: value for key, value in tier.items() if key != "path"} for tier in named]
                facts["tiers"] = facts["tiers"] | {"tiers": unnamed}
            from forebay._job import endpoints

            try:
                compare(channel, facts, self._options["timeout"])
                links, listener = endpoints.meet(
                    rank_info, channel, self._options["timeout"], native.Listener
                )
            finally:
                # From here on the engine watches the processes of the node.
                channel.close()
        place = {
            "job": rank_info.job,
            "node": rank_info.node,
            "rank": rank_info.rank,
            "local_rank": rank_info.local_rank,
            "local_ranks": rank_info.local_ranks,
        }
        engine: _native.Engine = native.Engine(
            self._dataset.native_of(native),
            shared | place,
            launcher=rank_info.launcher,
            tier_daemon=[sys.executable, "-m", "forebay.tools.tiers"],
            links=links,
            listener=listener,
        )
        # Runs when the loader is collected, and at exit if it still lives then.
        self._finalizer = weakref.finalize(self, _close_engine, engine, self._generation)
        self._check_weights(engine)
        self._steps = engine.steps
        self._states: _native.OrderState | GivenStates = engine.order_state
        if self._order_function is not None:
            self._states = GivenStates(engine.order_state, self._weighted)
        if (pipeline := self._pipeline) is not None:
            workers = self._options["workers"] or engine.cores
            pipeline.set_size(workers, prefetch_for(self._options, engine.batch_buffers))
        return engine

    def _check_weights(self, engine: _native.Engine) -> None:
        if (weighted := self._weighted) is None:
            return
        if weighted.samples != engine.samples:
            self._finalizer()
            raise option_error(
                f"forebay.Weighted: expected a weight for each of {engine.samples} samples, found {weighted.samples} weights"
            )

    # --- facts ---

    @property
    def name(self) -> str:
        """The name that tells the loaders of a job apart."""
        return str(self._options["name"])

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self._dataset

    @property
    def world(self) -> RankInfo:
        """Facts of this process and its job.

        They are ``rank``, ``size`` of the job, ``local_rank``, ``local_ranks`` of the node, the
        names ``node`` and ``job``, and ``source``: where these facts come from.
        """
        return self._rank_info

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the next one between epochs; counted from 0."""
        return self._progress.place[0]

    @property
    def config(self) -> Config:
        """What the loader decided and found, and its fallbacks, as a frozen value.

        :meth:`explain` renders the same facts as text.
        """
        facts = self._closed_facts
        if facts is None:
            self._check_process()
            facts = self._engine.config()
        from forebay.config import from_engine

        return from_engine(facts, self._options, self._per_sample())

    def _per_sample(self) -> PerSample | None:
        if (pipeline := self._pipeline) is None:
            return None
        from forebay.config import PerSample

        return PerSample(
            functions=pipeline.functions.names(),
            workers=pipeline.workers,
            worker_kind="thread" if pipeline.processes is None else "process",
            threads=pipeline.threads,
            prefetch=pipeline.prefetch,
            collate=pipeline.functions.collate_name(),
        )

    def __len__(self) -> int:
        """Return the number of steps in an epoch, the same on every rank.

        Raises
        ------
        TypeError
            If the dataset is a mixture with ``stop="never"``, whose epochs do not end.
        """
        if self._is_endless:
            raise _NoLengthError(
                f'loader {self.name!r}: an epoch of a mixture with stop="never" has no number of steps\n'
                'hint: count steps in the script, for example itertools.islice(loader, 1000), or take stop="all"'
            )
        return self._steps

    def __bool__(self) -> bool:
        """Return True, also where an epoch has no length."""
        return True

    def __repr__(self) -> str:
        return f"<forebay.Loader {self.name!r} {', '.join(self._facts().values())}, {self._dataset!r}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        facts = {**self._facts(), "samples": f"{self.config.data.samples:,}", "data": self._dataset._brief}
        return table(f"forebay.Loader {self.name!r}", list(facts.items()), self.config.data.fields)

    def _facts(self) -> dict[str, str]:
        """Return what texts for people name."""
        rank_info = self._rank_info
        return {
            "rank": f"rank {rank_info.rank} of {rank_info.size}",
            "order": f"{self._order['kind']} order",
            "batches": f"batches of {self._batch_size}",
            "epochs": "epochs without end"
            if self._is_endless
            else f"epochs of {counted(self._steps, 'step')}",
        }

    # --- iteration ---

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the batches of the next epoch.

        At a restored position it iterates the rest of that epoch. The epoch begins with the first
        ``next``; until then neither the position nor another iterator changes. A trainer of
        Lightning with ``overfit_batches`` gets the first epoch each time.
        """
        self._check_open()
        if overfits():
            self.set_epoch(0)
        return Iteration(self) if self._pipeline is None else AheadIteration(self, self._pipeline)

    __next__ = _NoNext()

    def _begin(self, iteration: Iteration) -> None:
        if self._follows_framework:
            check_ranks(self.name, self._rank_info)
        with self._beginning:
            self._check_open()
            self._leave()
            epoch, step, begun = self._progress.place
            if begun:
                epoch, step = epoch + 1, 0
            engine = self._engine
            if self._order_function is not None:
                engine.give_order(epoch, self._explicit_ids(self._order_function, epoch))
            number = engine.start(epoch, step)
            progress = Progress(epoch, step, True)
            iteration._begun(engine, number)
            # Last, and without a call between: after a failed or interrupted start, the next one
            # begins at the same place.
            iteration._progress = self._progress = progress

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a position restored within this epoch is kept.

        Parameters
        ----------
        epoch : int
            Number of the epoch, counted from 0.

        Raises
        ------
        OptionError
            If the epoch is not an integer of at least 0, or larger than positions can count.
        """
        last = self._engine_open().last_epoch
        if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch < 0:
            raise option_error(f"set_epoch: expected an integer of at least 0, found {epoch!r}")
        if epoch > last:
            raise option_error(f"set_epoch: expected an epoch of at most {last}, found {epoch}")
        now, _, begun = self._progress.place
        if epoch.__index__() == now and not begun:
            return
        self._move(epoch.__index__(), 0)

    def _move(self, epoch: int, step: int) -> None:
        self._leave()
        self._progress = Progress(epoch, step, False)

    def _leave(self, iteration: int | None = None) -> None:
        """Let the node continue without this rank, if this rank is in the middle of an epoch."""
        # At exit the engine may be closed before the last iterator goes.
        inside = self._progress.place[2]
        if inside and self._finalizer.alive and self._generation == _core.fork_generation():
            if self._pipeline is not None:
                self._pipeline.drop()
            self._engine.leave(iteration)

    def _explicit_ids(self, order: OrderFunction, epoch: int) -> Indices:
        ids = np.asarray(guard_stop_iteration(order)(epoch))
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise option_error(
                f"order given, epoch {epoch}: an array of {ids.dtype} with {ids.ndim} dimensions, "
                "expected integers with one"
            )
        if ids.dtype == np.uint64:
            # Ids from 2**63 on name no sample either way; the cast must not make them negative.
            ids = np.minimum(ids, np.uint64(np.iinfo(np.int64).max))
        return np.ascontiguousarray(ids, dtype=np.int64)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the exact position; safe in a signal handler and from any thread.

        Where a wrapper prefetches (a framework, a queue), the loader has delivered batches that the
        script has not consumed: use :meth:`state_at` with the last batch consumed.

        Returns
        -------
        dict
            Integers and strings: ``version``, ``kind``, ``last_batch``, ``seed``, ``epoch``,
            ``step`` (batches delivered), ``global_batch``, ``ranks``, ``lanes``,
            ``group_samples``, ``group_window`` and ``fingerprint`` (of the dataset); ``mixture``
            for a :class:`Mixture`, ``weights`` (their digest) for :class:`Weighted`, and
            parameters of some other orders.
        """
        epoch, step, _ = self._progress.place
        return self._states.at(epoch, step)

    def state_at(self, position: Position | tuple[int, int]) -> dict[str, Any]:
        """Return the state after the batch at ``position``.

        A loader that loads this state continues with the batch after that one.

        Parameters
        ----------
        position : Position or pair of int
            :attr:`Batch.position` of the batch that was consumed, or the same epoch and step as a
            pair.

        Returns
        -------
        dict
            What :meth:`state_dict` returned right after the loader delivered this batch.

        Raises
        ------
        OptionError
            If there is no such position.
        """
        return self._states.behind(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state (collective over the node).

        The stream of samples continues exactly, also where another number of ranks wrote the state.
        The number of ranks must divide the lanes of the state; global batch, seed, order and
        dataset must be the same. Parameters of the orders ``group`` and ``opportunistic`` that were
        left to their defaults come from the state.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` or :meth:`state_at` returned.

        Raises
        ------
        OptionError
            If the state does not fit; the message says what would.
        """
        self._check_open()
        epoch, step, order = self._states.resume(state)
        if order is not None:
            self._adopt(order)
            # The parameters may change what the nodes keep, which decides whether the state fits.
            epoch, step, _ = self._states.resume(state)
        self._move(epoch, step)

    def _adopt(self, wanted: Mapping[str, Any]) -> None:
        """Remake the engine with the parameters of a state, unless the caller chose others."""
        made = "Opportunistic" if self._order["kind"] == "opportunistic" else "Group"
        for key, value in wanted.items():
            _native.check_option(f"load_state_dict: {key}", f"order.{key}", value)
            asked = self._order[key]
            if asked is not None and asked != value:
                raise option_error(
                    f"load_state_dict: {key} is {value} in the state, this loader was made with {asked}",
                    f"make it with forebay.{made}({key}={value}), or leave that out",
                )
        self.close()
        before = self._order
        self._order = {**before, **wanted}
        try:
            self._engine = self._make_engine(self._open_channel())
        except ForebayError as error:
            self._order = before
            # The parameters of the state are impossible here. A single rank keeps its old engine;
            # several ranks would have to agree on that.
            if isinstance(error, OptionError) and self._rank_info.size == 1:
                self._engine = self._make_engine(None)
                self._forget_closed()
            raise
        self._forget_closed()

    def _forget_closed(self) -> None:
        self._closed_stats = self._closed_facts = self._closed_bad_samples = None

    def set_stagger(self, groups: int | str) -> None:
        """Set how many groups of nodes take turns at reading, for the whole job.

        The batches hold the same samples with any number of groups.

        Parameters
        ----------
        groups : int or "auto"
            Number of groups, 1 for all nodes at once; ``"auto"``: measure the best number again.

        Raises
        ------
        OptionError
            If the loader was made without ``Strategy(stagger=)``, or the number is not at least 1.
        """
        self._check_open()
        self._engine.set_stagger(None if check_stagger("set_stagger", groups) == AUTO else int(groups))

    # --- inspection ---

    def stats(self) -> dict[str, Any]:
        """Return what the loader measured since it was made.

        Returns
        -------
        dict
            Metric name → value; docs/metrics.md has the units and which values add up.
        """
        if self._closed_stats is not None:
            return self._closed_stats
        self._check_process()
        stats = self._engine.stats()
        stats["work_wait_seconds"] = 0.0
        if (pipeline := self._pipeline) is not None:
            stats["work_wait_seconds"] = pipeline.wait_s
            stats["replaced_samples"] += pipeline.functions.replaced
        return stats

    def bad_samples(self) -> list[tuple[int, str]]:
        """Return the bad samples that this rank replaced: (sample id, reason), sorted by id."""
        if self._closed_bad_samples is not None:
            return self._closed_bad_samples
        self._check_process()
        found = self._engine.bad_samples()
        if self._pipeline is None:
            return found
        return sorted((self._pipeline.functions.bad_samples() | dict(found)).items())

    def explain(self) -> str:
        """Return what the loader decided and why, as text for people.

        Programs read the same facts from :attr:`config`.
        """
        from forebay._explain import lines

        rank_info = self._rank_info
        header = (
            f"loader {self.name}: rank {rank_info.rank} of {rank_info.size}, "
            f"{len(rank_info.local_ranks)} on node {rank_info.node} ({rank_info.source})"
        )
        return "\n".join([header, *lines(self.config)])

    # --- close ---

    def close(self) -> None:
        """Release all resources and let the node continue without this rank.

        Batches that the script holds stay valid. Calls of ``transform`` and ``batch_transform``
        that are under way are finished, and no others are made. Reads that storage does not answer
        are abandoned, with their memory. :meth:`stats`, :attr:`config`, :meth:`explain` and
        :meth:`bad_samples` return their last values. A second call does nothing.
        """
        if not self._finalizer.alive or self._generation != _core.fork_generation():
            return
        self._closed_stats, self._closed_facts = self.stats(), self._engine.config()
        self._closed_bad_samples = self.bad_samples()
        self._progress = Progress(*self._progress.place)  # its iterators are stale
        if self._pipeline is not None:
            self._pipeline.drop()
        self._finalizer()
        # Its memory is freed as soon as the script holds no batch or iterator of it.
        del self._engine
        if self._pipeline is not None:
            # Waits for the functions under way.
            self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise option_error(
            f"loader {self.name!r}: cannot be pickled or copied: its threads and memory belong to this process",
            _IN_A_WORKER,
        )

    def _check_open(self) -> None:
        self._engine_open()

    def _engine_open(self) -> _native.Engine:
        self._check_process()
        if not self._finalizer.alive:
            raise ForebayError(f"loader {self.name!r} is closed")
        return self._engine

    def _check_process(self) -> None:
        if self._generation != _core.fork_generation():
            raise ForebayError(
                f"loader {self.name!r} was made before this process ({os.getpid()}) was forked and cannot be used in it\n"
                f"hint: {_IN_A_WORKER}"
            )
