"""One rank of one training run: ``python -m mpi4py -m forebay_lab.demo.train`` under `mpiexec`.

Each step gets a batch, computes a gradient, sums it over the ranks, moves the weights; the wall
time of a step is split there into exposed (waiting for data), compute, skew (waiting for ranks that
are behind) and communication. Skew needs all ranks' times of arrival at the all-reduce, which one
node's monotonic clock makes comparable; it is worked out at the end. The first batch of a run
carries the start-up (opening, index, first reads) and is told apart. Rank 0 collects what all ranks
measured and writes one JSON file.

Waiting ranks sleep rather than spin (there may be more ranks than cores), and no wait is for ever:
a rank that stays away longer than the deadline ends the job with a message. An exception in any
rank ends the whole job, which `python -m mpi4py` sees to.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay_lab.demo import sources
from forebay_lab.demo.model import Model
from forebay_lab.ranks.barrier import check_world, wait
from forebay_lab.ranks.launch import PROGRESS_MARK
from forebay_lab.ranks.rusage import Usage, process_usage, thread_usage, transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI
    from numpy.typing import NDArray

LEARNING_RATE = 0.15
DEADLINE_S = 120.0
"""Longest wait for another rank [s]; storage that stalls is the slowest event in between."""


@dataclass(slots=True)
class Times:
    """Wall time of one epoch on one rank, split; all but `startup_seconds` without the start-up."""

    startup_seconds: float = 0.0
    exposed_seconds: float = 0.0
    compute_seconds: float = 0.0
    skew_seconds: float = 0.0
    communication_seconds: float = 0.0


@dataclass(slots=True)
class Measured:
    """What one rank found out."""

    epochs: list[Times] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    """Of all threads, without what the training thread did while it trained."""
    thread: Usage = field(default_factory=Usage)
    """Of the training thread while it got batches: what a step had to stop for."""
    read_call_bytes: int = 0
    read_calls: int = 0
    storage_bytes: int = 0
    digest: str = ""
    """Of all labels in the order they came: a second witness beside the losses."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; write the result on rank 0."""
    options = _parse(arguments)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    check_world(comm)
    job = _train(comm, MPI.MAX, options)
    if comm.rank == 0:
        partial = options.result.with_suffix(".partial")
        partial.write_text(json.dumps(job))
        partial.rename(options.result)


def _train(comm: MPI.Intracomm, maximum: MPI.Op, options: argparse.Namespace) -> dict[str, Any]:
    model = Model(options.batch_size, comm.size, options.seed)
    with np.load(options.held_out) as file:
        held_out = file["image"], file["label"]
    total = np.zeros_like(model.gradient)
    losses: list[float] = []
    accuracies: list[float] = []
    arrivals: list[float] = []
    steps: list[int] = []
    measured, trained, labels_seen = Measured(), Usage(), hashlib.blake2b(digest_size=16)
    clock = time.perf_counter
    wait(comm.Ibarrier(), "the start", DEADLINE_S)

    usage_before, thread_before, transfers_before = process_usage(), thread_usage(), transfers()
    start = clock()
    source = _source(comm, options)
    for epoch in range(options.epochs):
        times = Times()
        for images, labels in source.epoch(epoch):
            got, mark = clock(), thread_usage()
            if losses:
                times.exposed_seconds += got - start
            else:
                times.startup_seconds = got - start
            model.learn(images, labels)
            labels_seen.update(labels.tobytes())
            learned = clock()
            wait(comm.Iallreduce(model.gradient, total), f"step {len(losses)}", DEADLINE_S)
            summed = clock()
            losses.append(model.step(total, LEARNING_RATE))
            if comm.rank == 0 and len(losses) % 20 == 0:
                print(PROGRESS_MARK, len(losses), flush=True)
            times.communication_seconds += summed - learned
            arrivals.append(learned)
            trained += thread_usage() - mark
            start = clock()
            times.compute_seconds += (learned - got) + (start - summed)
        measured.epochs.append(times)
        steps.append(len(losses))
        mark = thread_usage()
        if comm.rank == 0:
            accuracies.append(model.accuracy(*held_out))
        wait(comm.Ibarrier(), f"the end of epoch {epoch}", DEADLINE_S)
        trained += thread_usage() - mark
        start = clock()

    done = transfers() - transfers_before
    measured.usage = process_usage() - usage_before - trained
    measured.thread = thread_usage() - thread_before - trained
    measured.read_call_bytes, measured.read_calls = done.read_call_bytes, done.read_calls
    measured.storage_bytes = done.storage_bytes
    measured.digest = labels_seen.hexdigest()
    facts = source.facts()
    source.close()
    _tell_skew(comm, maximum, measured, np.asarray(arrivals), steps)
    ranks = comm.gather(dataclasses.asdict(measured))
    return {"losses": losses, "accuracies": accuracies, "ranks": ranks, "facts": facts}


def _tell_skew(
    comm: MPI.Intracomm, maximum: MPI.Op, measured: Measured, arrivals: NDArray[np.float64], steps: list[int]
) -> None:
    """Split the measured communication: the skew of a step is the wait for the last rank.

    `steps` holds, per epoch, the number of steps done at its end.
    """
    last = np.empty_like(arrivals)
    comm.Allreduce(arrivals, last, op=maximum)
    first = 0
    for times, end in zip(measured.epochs, steps, strict=True):
        times.skew_seconds = float((last[first:end] - arrivals[first:end]).sum())
        times.communication_seconds -= times.skew_seconds
        first = end


def _source(comm: MPI.Intracomm, options: argparse.Namespace) -> sources.Source:
    database = options.data / "train.lmdb"
    if options.reader == "pylmdb":
        return sources.PyLmdb(database, options.batch_size, comm.rank, comm.size)
    return sources.Forebay(database, options.batch_size, options.order, options.seed)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="forebay_lab.demo.train", description="One rank of the demo.")
    parser.add_argument("--reader", choices=("pylmdb", "forebay"), required=True)
    parser.add_argument("--order", default="sequential")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
