"""Figures of the paper on asynchronous I/O (Lee et al., HiPC 2021): tables II to V, figures 5-10.

Times of an epoch are simulated for the programs of the paper's table I. Compute times are the
published ones. Numbers that are fitted stand in `JOBS`, with the row that each is fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_lab.bench import workload as workloads
from studies.harness.sections import Row, Scope
from studies.simulate.group_reads import Fit, Machine, Reading, epoch

CORI = Machine(preset="cori", node_ranks=8, node_memory=384 << 30)
SUMMIT = Machine(preset="summit", node_ranks=6, node_memory=512 << 30)
"""Section IV-A: GPUs and memory of a node."""

STRATEGIES = ("TF", "TF-Pre", "Async I/O", "Async I/O (DB)")
"""Table I."""
BATCHES_AHEAD = 2
"""Of TF-Pre: AUTOTUNE settles at a few batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of the tables II to V."""

    table: str
    workload: str
    machine: Machine
    global_batch: int
    group_samples: int
    """Samples of a buffer: those of a file."""
    fit: Fit
    fitted: tuple[tuple[int, str], ...]
    """Rows that the numbers of `fit` are fitted to."""
    published: Mapping[int, tuple[tuple[float, float], ...]]
    """By GPUs, in the order of `STRATEGIES`: exposed I/O and computation of an epoch [s]."""

    @property
    def named(self) -> Row:
        """Where a row belongs."""
        return {"table": self.table, "application": self.workload, "machine": self.machine.preset}


JOBS = (
    Job(
        table="II",
        workload="cosmoflow-async",
        machine=CORI,
        global_batch=256,
        group_samples=128,
        fit=Fit(stream_bytes_per_second=277e6),
        fitted=((32, "TF"), (64, "TF"), (32, "Async I/O"), (64, "Async I/O")),
        published={
            32: ((46.03, 38.33), (28.91, 38.31), (43.18, 38.01), (10.71, 37.95)),
            64: ((27.65, 19.30), (14.39, 19.32), (21.82, 19.84), (4.00, 19.13)),
        },
    ),
    Job(
        table="III",
        workload="cosmoflow-async",
        machine=SUMMIT,
        global_batch=256,
        group_samples=128,
        fit=Fit(),
        fitted=(),
        published={
            32: ((4.12, 17.23), (1.99, 18.39), (2.29, 18.25), (0.00, 18.73)),
            64: ((3.46, 9.10), (1.13, 9.59), (1.71, 9.60), (0.00, 9.67)),
        },
    ),
    Job(
        table="IV",
        workload="neuron-inverter",
        machine=CORI,
        global_batch=32_768,
        group_samples=551_562,
        fit=Fit(stream_bytes_per_second=188e6, read_seconds=0.02175),
        fitted=((32, "TF"), (32, "Async I/O")),
        published={
            16: ((53_384.49, 390.93), (53_100.29, 388.48), (199.99, 387.28), (0.00, 390.93)),
            32: ((25_899.36, 201.29), (25_703.93, 203.42), (113.42, 198.82), (0.00, 200.19)),
            64: ((13_798.48, 97.05), (13_664.83, 96.05), (77.95, 97.13), (0.00, 98.99)),
        },
    ),
    Job(
        table="V",
        workload="neuron-inverter",
        machine=SUMMIT,
        global_batch=32_768,
        group_samples=551_562,
        fit=Fit(stream_bytes_per_second=811e6, read_seconds=0.0212),
        fitted=((32, "TF"), (32, "Async I/O")),
        published={
            16: ((45_677.48, 765.38), (40_259.47, 777.39), (54.96, 764.44), (0.00, 775.94)),
            32: ((24_499.22, 400.33), (22_095.84, 403.94), (26.23, 399.93), (0.00, 405.01)),
            64: ((10_820.49, 215.59), (10_660.43, 217.02), (14.52, 215.32), (0.00, 215.30)),
        },
    ),
)
"""Tables II to V: averages of three epochs."""


def reading(job: Job, strategy: str, group_samples: int | None = None) -> Reading:
    """Return how a strategy of table I reads."""
    if strategy.startswith("TF"):
        return Reading(ahead=BATCHES_AHEAD if strategy == "TF-Pre" else 0)
    # Two buffers: the script has one, the thread fills the other.
    ahead = 1 if strategy.endswith("(DB)") else 0
    return Reading(group_samples=group_samples or job.group_samples, ahead=ahead)


def fits(scope: Scope) -> list[Row]:
    """Fitted numbers of the programs on each machine."""
    return [
        {
            **job.named,
            "rate_mb_s": job.fit.stream_bytes_per_second and job.fit.stream_bytes_per_second / 1e6,
            "read_ms": job.fit.read_seconds * 1e3 or None,
        }
        for job in scope.few(JOBS)
    ]


def tables(scope: Scope) -> list[Row]:
    """Exposed I/O of an epoch, tables II to V."""
    found = []
    for job in scope.few(JOBS):
        workload = workloads.load(job.workload)
        for gpus, rows in scope.few(tuple(job.published.items())):
            for strategy, (exposed, compute) in zip(STRATEGIES, rows, strict=True):
                one = epoch(
                    workload, job.machine, job.fit, reading(job, strategy), ranks=gpus,
                    global_batch=job.global_batch, compute_seconds=compute, seeds=scope.repetitions,
                )  # fmt: skip
                ratio = one.exposed / exposed if exposed else None
                found.append(
                    {
                        "name": strategy,
                        **job.named,
                        "gpus": gpus,
                        "exposed_seconds": one.exposed,
                        "exposed_seconds_low": one.low,
                        "exposed_seconds_high": one.high,
                        "skew_seconds": one.skew,
                        "published_seconds": exposed,
                        "ratio": ratio,
                        "compute_seconds": compute,
                        "epoch_seconds": one.exposed + one.skew + compute,
                        "published_epoch_seconds": exposed + compute,
                        "fitted": "fitted" if (gpus, strategy) in job.fitted else "",
                        "agrees": "yes" if agrees(one.exposed, exposed, compute) else "no",
                    }
                )
    return found


NEAR = 0.25
"""Of the published time."""
NOTHING = 0.01
"""Share of the computation below which exposed I/O counts as none."""


def agrees(exposed: float, published: float, compute: float) -> bool:
    """Return whether a simulated time is within a quarter of the published one, or both are 0."""
    if published == 0:
        return exposed <= NOTHING * compute
    return abs(exposed - published) <= NEAR * published


BUFFERS = {
    "cosmoflow-async": (4, 8, 16, 32, 64, 128),
    "neuron-inverter": (6, 61, 609, 6_095, 60_949, 551_562),
}
"""Samples of a buffer, figures 9 and 10; the last is a file."""
KNEES = {("neuron-inverter", "cori"): 609, ("neuron-inverter", "summit"): 61}
"""Least buffer from which on all I/O is hidden: figure 10. Figure 9 names none."""
BUFFER_GPUS = 64


def buffers(scope: Scope) -> list[Row]:
    """Exposed I/O of an epoch over the size of a buffer, figures 9 and 10."""
    found = []
    for job in scope.few(JOBS):
        workload = workloads.load(job.workload)
        for size in scope.few(BUFFERS[job.workload]):
            for strategy in STRATEGIES[2:]:
                _, compute = job.published[BUFFER_GPUS][STRATEGIES.index(strategy)]
                one = epoch(
                    workload, job.machine, job.fit, reading(job, strategy, size), ranks=BUFFER_GPUS,
                    global_batch=job.global_batch, compute_seconds=compute, seeds=scope.repetitions,
                )  # fmt: skip
                found.append(
                    {
                        "name": strategy,
                        **job.named,
                        "buffer_samples": size,
                        "buffer_bytes": size * workload.sample.bytes,
                        "exposed_seconds": one.exposed,
                        "exposed_seconds_low": one.low,
                        "exposed_seconds_high": one.high,
                        "skew_seconds": one.skew,
                        "compute_seconds": compute,
                        "epoch_seconds": one.exposed + one.skew + compute,
                        "hidden": "yes" if one.exposed <= NOTHING * compute else "no",
                        "published_hidden": _published_hidden(job, strategy, size),
                    }
                )
    return found


def _published_hidden(job: Job, strategy: str, size: int) -> str | None:
    knee = KNEES.get((job.workload, job.machine.preset))
    if knee is None or strategy != STRATEGIES[-1]:
        return None
    return "yes" if size >= knee else "no"


SECTIONS = {
    "async-io-fits": fits,
    "async-io-tables": tables,
    "async-io-buffers": buffers,
}
