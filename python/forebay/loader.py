"""The loader: batches of samples in a known order, at the speed of the storage.

What happens here, in order: options are resolved and checked (:mod:`forebay.options`), the process
finds out who it is (:mod:`forebay._job.world`), the ranks of several nodes compare what they want,
then the engine is made, which is collective over the ranks of the node. From then on every batch is
one call into the engine. The position (epoch and step) is kept here; it counts batches that were
handed out, so that a state is exact however far the engine has read ahead. Every batch carries its
own position, so that a wrapper that reads ahead can save the state of the batch that was consumed.
Iterations are in :mod:`forebay._iteration`.
"""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Never, NoReturn, Self

import numpy as np
import numpy.typing as npt

from forebay import _core, _native
from forebay._core import ForebayError, OptionError, option_error
from forebay._explain import lines
from forebay._iteration import Batch, Indices, Iteration, Position, Progress
from forebay._job import endpoints
from forebay._job.channel import Channel, compare, errors_told
from forebay._job.tcp import open_channel
from forebay._job.world import RankInfo, World, identify
from forebay.config import Config, from_engine
from forebay.dataset import Dataset, PathLike, open
from forebay.options import (
    AUTO,
    Group,
    Strategy,
    check_stagger,
    per_rank_batch,
    resolve,
    unknown_option,
)

__all__ = ["Batch", "Loader", "Position"]

OrderFunction = Callable[[int], "npt.ArrayLike"]

_IN_A_WORKER = (
    "make the loader in the process that iterates it; wrapped in a torch DataLoader, that is num_workers=0"
)


class _NotAnIteratorError(OptionError, TypeError, AttributeError):
    __module__ = "forebay"


class _NoNext:
    """Stands for the ``__next__`` that a loader has not: says what to call, and lets ``hasattr`` answer False."""

    def __get__(self, loader: Loader | None, owner: type[Loader]) -> NoReturn:
        raise _NotAnIteratorError(
            "next(loader): expected an iterator, found a Loader\n"
            "hint: it = iter(loader), then next(it) for each batch; or for batch in loader"
        )


def _close_engine(engine: _native.Engine, generation: int) -> None:
    """Close at exit or when the loader is collected; a forked child must not touch its parent's engine."""
    if generation == _core.fork_generation():
        engine.close()


class Loader:
    """Batches of samples in a known order.

    Making one is collective over the ranks of its node, and over all ranks where nodes are linked
    (docs/nodes.md); loaders of one job are told apart by their name. Each pass over it is one
    epoch, the next pass the next one. A pass begins with its first ``next``: an iterator that was
    never used changes nothing. A pass that was broken off counts; the other ranks go on without
    this one until its next pass. A loader is iterated by one thread at a time: beginning a pass
    makes earlier iterators stale.

    Every option but ``dataset`` and ``decode`` can also be given as ``FOREBAY_`` + its name in
    capitals, or in the configuration file; an argument of None was not given
    (:mod:`forebay.options`, docs/options.md).

    Parameters
    ----------
    dataset : Dataset or path-like or sequence of path-like
        What :func:`forebay.open` returns or takes.
    batch_size : int
        Samples per rank and step.
    global_batch : int
        Samples per step of all ranks together, instead of ``batch_size``.
    order : {"group", "sequential", "contiguous", "shuffle"}, Group or function
        Which sample stands at which position of an epoch. A function takes the epoch and returns
        all sample ids, the same on every rank. Default ``"group"``.
    name : str
        Tells several loaders of one job apart. Default ``"train"``.
    seed : int
        With the epoch, decides every shuffle. Default 0.
    world : {"auto", "mpi", "torchrun", "slurm", "single"} or World
        Who is in the job. Default ``"auto"``.
    strategy : {"forebay", "mmap", "pread", "io_uring", "lmdb", "lmm", ...} or Strategy
        How samples are fetched; never which. Default ``"forebay"``; ``lmdb`` and the steps of
        LMDBIO (docs/options.md) are here to compare with.
    memory : int or str
        Bytes of staging blocks, batch buffers and kept data of the node, for example ``"2GiB"``;
        shared by the loaders of a job, or of a process that is alone. Default: 2.5 GiB, or less
        where memory is limited (docs/options.md).
    tiers
        Not in this version.
    epochs : int
        Number of epochs that will be asked for, counted from the first, so that nothing is read
        ahead beyond them. Asking for more is allowed; each of them is then read when it is asked
        for. By default unknown: the loader reads ahead into the next epoch.
    last : {"wrap", "drop", "short", "carry"}
        What happens when the samples of an epoch do not fill the last step: samples from the start
        stand in, the rest is left out, the step is shorter (a rank's part may be empty), or the
        next epoch starts where this one ended (``sequential`` only). Default ``"wrap"``.
    bad_samples : {"raise", "skip"}
        What happens when a sample cannot be read or decoded: an error that names file and offset,
        or the nearest earlier good sample of the order stands in, ``batch.indices`` says so, and
        :meth:`bad_samples` tells which and why. Default ``"raise"``.
    checksums : bool
        Whether the checksum of every record is computed as it is delivered, where the format has
        one (TFRecord's CRC-32C of the data); a wrong one makes a bad sample. ``forebay verify`` and
        ``dataset[i]`` always do. Default False.
    decode : function
        Called in this process on each batch; what it returns is handed out instead.
    timeout : float
        Seconds of stalled storage, or of waiting for other ranks to make their loader, before an
        error. A slow rank is waited for without limit, with warnings. Default 600.

    Raises
    ------
    OptionError
        If an option is not valid, or the budget is too small for one batch.
    MemoryLimitError
        If a limit on memory (control group, ``ulimit -v``) leaves too little; an OptionError and a
        MemoryError.
    FormatError, StorageError
        If the dataset cannot be understood, or read.
    StorageTimeout
        If storage does not answer within ``timeout`` seconds; a StorageError.
    RendezvousError
        If not all ranks came within ``timeout`` seconds, or they disagree.
    PeerLostError
        If a process of the job ended.
    """

    def __init__(
        self,
        dataset: Dataset | PathLike | Sequence[PathLike],
        batch_size: int | None = None,
        *,
        global_batch: int | None = None,
        order: str | Group | OrderFunction | None = None,
        name: str | None = None,
        seed: int | None = None,
        world: str | World | None = None,
        strategy: str | Strategy | None = None,
        memory: int | str | None = None,
        tiers: Sequence[str] | None = None,
        epochs: int | None = None,
        last: str | None = None,
        bad_samples: str | None = None,
        checksums: bool | None = None,
        decode: Callable[[Batch], Any] | None = None,
        timeout: float | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option(next(iter(unknown)))
        if decode is not None and not callable(decode):
            raise option_error(f"decode=: expected a function of a batch, found {decode!r}")
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
                "memory": memory,
                "tiers": tiers,
                "epochs": epochs,
                "last": last,
                "bad_samples": bad_samples,
                "checksums": checksums,
                "timeout": timeout,
            }
        )
        self._decode = decode
        self._rank_info = identify(explicit or self._options["world"], self._options["timeout"])
        channel = self._open_channel()
        with errors_told(channel):
            self._dataset = dataset if isinstance(dataset, Dataset) else open(dataset)
            self._batch_size = per_rank_batch(self._options, self._rank_info.size)
            self._given: OrderFunction | None = None
            self._order = self._order_facts(self._options["order"])
        self._generation = _core.fork_generation()
        self._progress = Progress(0, 0, False)
        self._beginning = threading.Lock()
        self._closed_stats: dict[str, Any] | None = None
        self._closed_config: Config | None = None
        self._closed_bad_samples: list[tuple[int, str]] | None = None
        self._engine = self._make_engine(channel)

    def _open_channel(self) -> Channel | None:
        return open_channel(self._rank_info, self.name, self._options["timeout"])

    def _order_facts(self, order: str | Group | OrderFunction) -> dict[str, Any]:
        if isinstance(order, str):
            order = Group() if order == "group" else order
        if isinstance(order, Group):
            return {"kind": "group", "samples": order.samples, "window": order.window, "lanes": order.lanes}
        if isinstance(order, str):
            return {"kind": order, "samples": None, "window": None, "lanes": None}
        self._given = order
        return {"kind": "given", "samples": None, "window": None, "lanes": None}

    def _make_engine(self, channel: Channel | None) -> _native.Engine:
        rank_info = self._rank_info
        shared = {
            "name": self.name,
            "size": rank_info.size,
            "batch_size": self._batch_size,
            "order": self._order,
            "seed": self._options["seed"],
            "last": self._options["last"],
            "epochs": self._options["epochs"],
            "memory_bytes": self._options["memory"],
            "strategy": asdict(self._options["strategy"]),
            "skips_bad_samples": self._options["bad_samples"] == "skip",
            "checksums": self._options["checksums"],
            "timeout_s": math.ceil(self._options["timeout"]),
        }
        links, listener = None, None
        if channel is not None:
            facts = {**shared, "data set": self._dataset.fingerprint}
            try:
                compare(channel, facts, self._options["timeout"])
                links, listener = endpoints.meet(rank_info, channel, self._options["timeout"])
            finally:
                # From here on the engine watches the processes of the node.
                channel.close()
        own = {
            "job": rank_info.job,
            "node": rank_info.node,
            "rank": rank_info.rank,
            "local_rank": rank_info.local_rank,
            "local_ranks": list(rank_info.local_ranks),
            "launcher": rank_info.launcher,
            "links": links,
        }
        engine = _native.Engine(self._dataset.native, json.dumps(shared | own), listener=listener)
        # Runs when the loader is collected, and at exit if it still lives then.
        self._finalizer = weakref.finalize(self, _close_engine, engine, self._generation)
        self._steps, self._states = engine.steps, engine.order_state
        return engine

    # --- what it is
    # ---------------------------------------------------------------------------------------------------

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
        """Who this process is in the job, and how that was found out."""
        return self._rank_info

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or comes next."""
        return self._progress.place[0]

    @property
    def config(self) -> Config:
        """What was decided and found, and what could not be had, as facts; :meth:`explain` renders them as text."""
        if self._closed_config is not None:
            return self._closed_config
        self._check_process()
        return from_engine(self._engine.config(), self._options)

    def __len__(self) -> int:
        """Return the steps of an epoch, the same on every rank."""
        return self._steps

    def __repr__(self) -> str:
        rank_info = self._rank_info
        return (
            f"<forebay.Loader {self.name!r} rank {rank_info.rank} of {rank_info.size}, "
            f"{self._order['kind']} order, batches of {self._batch_size}, {self._dataset!r}>"
        )

    # --- iterating
    # ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch at a restored position, else over the next epoch.

        The epoch begins with the first ``next``; until then nothing changes, neither the position
        nor another iterator.
        """
        self._check_open()
        return Iteration(self)

    __next__ = _NoNext()

    def _begin(self, iteration: Iteration) -> None:
        with self._beginning:
            self._check_open()
            self._leave()
            epoch, step, begun = self._progress.place
            if begun:
                epoch, step = epoch + 1, 0
            engine = self._engine
            if self._given is not None:
                engine.give_order(epoch, self._given_ids(self._given, epoch))
            number = engine.start(epoch, step)
            # Only now: a start that failed or was interrupted is begun again at the same place.
            self._progress = progress = Progress(epoch, step, True)
            iteration._engine, iteration._number, iteration._progress = engine, number, progress

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of ``epoch``; a position restored within this very epoch is kept.

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
        """Tell the node to go on without this rank, if it stands in the middle of an epoch."""
        # At exit the engine may be closed before the last iterator goes.
        inside = self._progress.place[2]
        if inside and self._finalizer.alive and self._generation == _core.fork_generation():
            self._engine.leave(iteration)

    def _given_ids(self, order: OrderFunction, epoch: int) -> Indices:
        ids = np.asarray(order(epoch))
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise option_error(
                f"order given, epoch {epoch}: an array of {ids.dtype} with {ids.ndim} dimensions, "
                "expected integers with one"
            )
        if ids.dtype == np.uint64:
            # Ids from 2**63 on name no sample either way; they must not come out negative.
            ids = np.minimum(ids, np.uint64(np.iinfo(np.int64).max))
        return np.ascontiguousarray(ids, dtype=np.int64)

    # --- state
    # --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the exact position, as plain numbers and texts; safe in a signal handler and from any thread.

        Where a wrapper reads ahead (a framework's prefetch, a queue), batches were handed out that
        were not consumed yet: take :meth:`state_at` of the last batch that was.

        Returns
        -------
        dict
            ``version``, ``kind``, ``last``, ``seed``, ``epoch``, ``step`` (batches handed out),
            ``global_batch``, ``lanes``, ``group_samples``, ``group_window`` and ``fingerprint`` (of
            the data set).
        """
        epoch, step, _ = self._progress.place
        return self._states.at(epoch, step)

    def state_at(self, position: Position | tuple[int, int]) -> dict[str, Any]:
        """Return the state behind the batch at a position: a loader that loads it goes on with the batch after that one.

        Parameters
        ----------
        position : Position or pair of int
            :attr:`Batch.position` of the batch that was consumed, or the same epoch and step as a
            pair.

        Returns
        -------
        dict
            What :meth:`state_dict` returned when this batch had just been handed out.

        Raises
        ------
        OptionError
            If there is no such position.
        """
        return self._states.behind(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, also one that another number of ranks has written (collective over the node).

        The stream of samples continues exactly. The number of ranks must divide the lanes of the
        state, the global batch, seed, order and data set must be the same. Parameters of the group
        order that were left to their defaults are taken from the state.

        Raises
        ------
        OptionError
            If the state does not fit; the message says what would.
        """
        self._check_open()
        epoch, step, order = self._states.resume(state)
        if order is not None:
            self._adopt(order)
        self._move(epoch, step)

    def _adopt(self, wanted: Mapping[str, Any]) -> None:
        """Make the engine again with the parameters of a state, where the caller has not asked for others."""
        for key, value in wanted.items():
            asked = self._order[key]
            if asked is not None and asked != value:
                raise option_error(
                    f"load_state_dict: {key} is {value} in the state, this loader was made with {asked}",
                    f"make it with forebay.Group({key}={value}), or leave that out",
                )
        self.close()
        before = self._order
        self._order = {**before, **wanted}
        try:
            self._engine = self._make_engine(self._open_channel())
        except ForebayError as error:
            self._order = before
            # What the state asks for cannot be. Alone a loader goes on as it was; several ranks
            # would have to agree on that.
            if isinstance(error, OptionError) and self._rank_info.size == 1:
                self._engine = self._make_engine(None)
                self._forget_closed()
            raise
        self._forget_closed()

    def _forget_closed(self) -> None:
        self._closed_stats = self._closed_config = self._closed_bad_samples = None

    def set_stagger(self, groups: int | str) -> None:
        """Set how many groups of nodes take turns at reading, for the whole job; it never changes which samples a batch holds.

        Parameters
        ----------
        groups : int or "auto"
            Number of groups, 1 for all nodes at once; ``"auto"``: measured again.

        Raises
        ------
        OptionError
            If the loader was made without ``Strategy(stagger=)``, or the number is not at least 1.
        """
        self._check_open()
        self._engine.set_stagger(None if check_stagger("set_stagger", groups) == AUTO else int(groups))

    # --- looking inside
    # -----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what was measured since the loader was made; docs/metrics.md says what adds up to what."""
        if self._closed_stats is not None:
            return self._closed_stats
        self._check_process()
        return self._engine.stats()

    def bad_samples(self) -> list[tuple[int, str]]:
        """Return the bad samples that this rank has met and skipped: (sample id, reason), by id."""
        if self._closed_bad_samples is not None:
            return self._closed_bad_samples
        self._check_process()
        return self._engine.bad_samples()

    def explain(self) -> str:
        """Return what was decided and why, as text for people; programs read the same facts from :attr:`config`."""
        rank_info = self._rank_info
        header = (
            f"loader {self.name}: rank {rank_info.rank} of {rank_info.size}, "
            f"{len(rank_info.local_ranks)} on node {rank_info.node} ({rank_info.source})"
        )
        return "\n".join([header, *lines(self.config)])

    # --- the end
    # ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give everything back and tell the node to go on without this rank; batches that are held stay valid.

        Reads that storage does not answer are left behind, with their memory. :meth:`stats`,
        :attr:`config` and :meth:`explain` go on telling what was so at the end. Closing twice does
        nothing.
        """
        if not self._finalizer.alive or self._generation != _core.fork_generation():
            return
        self._closed_stats, self._closed_config = self.stats(), self.config
        self._closed_bad_samples = self.bad_samples()
        self._progress = Progress(*self._progress.place)  # its iterators are stale
        self._finalizer()
        # With the engine goes its memory, as soon as no batch or iterator of it is held.
        del self._engine

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
