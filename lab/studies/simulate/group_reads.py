"""Programs that read groups of samples, as those of the paper on asynchronous I/O do.

A group is read as one record: the paper's program asks HDF5 for all of its samples at once, and
hands them to the script from memory. So a group of one sample is `tf.data` with a callback.

Each process is simulated as a node of its own, with its share of the node's link: the rate of a
stream holds for a process, and its waits for its own reads stay apart from those for slower
processes. What HDF5, Python and TensorFlow take is in two numbers, that rate and a time per read,
so copies cost nothing besides. Pages of earlier epochs are not kept, and the wait for the first
group is not counted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay_lab.bench import baselines
from forebay_lab.bench.strategies import parse
from forebay_lab.bench.workload import Workload
from forebay_lab.pfs.start import Wanted
from forebay_lab.simulate import Request
from forebay_lab.simulate.costs import Costs
from forebay_lab.simulate.places import Places
from forebay_lab.simulate.programs import Program
from forebay_lab.simulate.result import simulate_row

__all__ = ["NO_COST", "ROW", "Epoch", "Fit", "Machine", "Reading", "epoch"]

LEAST_STEPS = 8
"""An epoch of fewer groups per process is repeated, so that the first group counts little."""
EPOCHS = 3
MOST_STEPS, MOST_READS = 64, 1 << 18
"""Steps, and reads of all processes, that stand for an epoch: each is like the others."""
NO_COST = 1e18
"""Bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster."""

    preset: str
    node_ranks: int
    """Processes of a node, one for each GPU."""
    node_memory: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Numbers of a program on a machine that are fitted to published times."""

    stream_bytes_per_second: float | None = None
    """Rate of one process; None: as the preset is."""
    read_seconds: float = 0.0
    """What the program takes for a read, besides waiting for its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a program reads."""

    group_samples: int = 1
    """Samples of a read."""
    ahead: int = 0
    """What a thread reads ahead: batches, or groups, where one lasts several steps. 0: the script
    waits for each read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Times of an epoch [s]."""

    exposed: float
    """Median of the runs."""
    low: float
    high: float
    skew: float
    """Median of what processes wait for slower ones."""


def epoch(
    workload: Workload,
    machine: Machine,
    fit: Fit,
    reading: Reading,
    *,
    ranks: int,
    global_batch: int,
    compute_seconds: float,
    seeds: int,
) -> Epoch:
    """Simulate an epoch.

    Parameters
    ----------
    workload
        Its samples and files.
    machine, fit, reading
        Where and how the processes read.
    ranks
        Processes.
    global_batch
        Samples of a step, all processes together.
    compute_seconds
        Compute time of an epoch.
    seeds
        Runs.
    """
    group = reading.group_samples
    records = max(workload.samples // group, ranks)
    # A group that lasts several steps is one long step.
    of_step = max(round(global_batch / ranks / group), 1)
    steps = workload.samples / (group * of_step * ranks)
    most_steps = min(max(MOST_READS // (of_step * ranks), LEAST_STEPS), MOST_STEPS)
    size = workload.sample.bytes * group
    request = Request(
        places=Places.of(
            "uniform",
            samples=records,
            files=min(workload.files, records),
            stride_bytes=size,
            sample_bytes=size,
        ),
        dataset={},
        spec=_spec(machine, fit, ranks),
        ranks=(ranks,),
        ranks_per_node=1,
        batch_size=of_step,
        steps=min(int(steps), most_steps) if steps >= LEAST_STEPS else None,
        epochs=1 if steps >= LEAST_STEPS else EPOCHS,
        compute_seconds=compute_seconds / steps,
        node_memory=machine.node_memory,
        costs=msgspec.structs.replace(Costs.default(), copy_bytes_per_second=NO_COST),
        # So that all that processes wait for is reads.
        jitter=0.0,
        programs={ROW.strategy: _program(fit, reading)},
    )
    row = simulate_row(request, ROW, ranks, list(range(seeds)))
    counted = [(one, steps / (one["steps"] - 1)) for one in row["repetitions"]]
    # The wait for the first step is the start-up.
    waits = [one["exposed_seconds"] * factor for one, factor in counted]
    skews = [one["skew_seconds"] * factor for one, factor in counted]
    return Epoch(
        exposed=statistics.median(waits), low=min(waits), high=max(waits), skew=statistics.median(skews)
    )


ROW = parse("h5py-random", "shuffle", baselines.find(()))[0]
"""The row of the bench whose place the program takes."""


def _spec(machine: Machine, fit: Fit, ranks: int) -> dict[str, Any]:
    """Return the file system of a machine as one process sees it, with the fitted rate."""
    found = Wanted(preset=machine.preset).resolve()
    nodes = -(-ranks // machine.node_ranks)
    found["link_bytes_per_second"] *= nodes / ranks
    if fit.stream_bytes_per_second is not None:
        found["stream_bytes_per_second"] = fit.stream_bytes_per_second
    return found


def _program(fit: Fit, reading: Reading) -> Program:
    reads = {
        # Around the page cache: no table shows that an epoch finds pages of the one before.
        "access": "direct",
        "sample_ns": fit.read_seconds * 1e9,
        "workers": 1 if reading.ahead else 0,
        "ahead": max(reading.ahead, 1),
    }
    return Program(order="shuffle", description={"samples": reads})
