"""What the demo measured, and how it is said: one registry of figures for the table, the page and the JSON.

Times are means over the ranks, per epoch; counters are sums over the ranks and all epochs. A
counter covers what the process did from opening the data set to the end of the last epoch, less
what its main thread did while it computed and passed messages (faults, switches, processor time) —
so the loader's own threads are in, the training is out. On an emulated file system its own counters
stand beside them: what has really reached it, page faults of mappings included, from the start of a
run to its end.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PHASES = (
    ("exposed_seconds", "waiting for data", "the step cannot begin: its batch is not there yet"),
    ("compute_seconds", "computing", "gradient and update of the weights"),
    ("skew_seconds", "waiting for other ranks", "until the last rank has reached the all-reduce"),
    ("communication_seconds", "all-reduce", "from the arrival of the last rank to the sum being there"),
)
"""Key, name and meaning of the parts of a rank's wall time."""

STARTUP = ("startup_seconds", "start-up", "opening, index, first batch")
"""The same of what comes before, in the first epoch only."""

_PFS = "file system: "

DISK_CAVEAT = (
    "Times on a local disk, cached by this machine and perhaps by its host, say little about shared storage, "
    "and ranks that outnumber cores wait for each other. The counters are the claim here; the times are "
    "printed for completeness."
)

LATE = (
    "The machine was late: replies of the emulated file system came later than the latency it imitates. "
    "Run it again when less else is running."
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One training run."""

    name: str
    title: str
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    ranks: tuple[dict[str, Any], ...]
    facts: dict[str, Any]
    pfs: dict[str, Any] | None = None
    """Counters of the emulated file system; see `storage.Emulated.counted`."""

    @classmethod
    def read(cls, name: str, title: str, job: dict[str, Any], pfs: dict[str, Any] | None) -> RunResult:
        """From what rank 0 wrote, and what the emulated file system counted."""
        return cls(
            name,
            title,
            tuple(job["losses"]),
            tuple(job["accuracies"]),
            tuple(job["ranks"]),
            job["facts"],
            pfs,
        )

    @property
    def accuracy(self) -> float:
        """On the held-out images, after the last epoch."""
        return self.accuracies[-1]

    def phase(self, key: str, epoch: int | None = None) -> float:
        """Mean over the ranks of one part of the wall time [s] of one epoch, or of the mean epoch."""
        epochs = [rank["epochs"] if epoch is None else [rank["epochs"][epoch]] for rank in self.ranks]
        return statistics.fmean(float(times[key]) for rank in epochs for times in rank)

    def startup_seconds(self) -> float:
        """Longest start-up of a rank: opening, index, first batch."""
        return max(float(rank["epochs"][0]["startup_seconds"]) for rank in self.ranks)

    def training_seconds(self) -> float:
        """From the start of the ranks' clocks to the end of the last epoch: start-up and all epochs of the mean rank."""
        return self.phase("startup_seconds", 0) + self.wall_seconds() * len(self.accuracies)

    def counted(self, key: str) -> float:
        """Return a counter of the emulated file system."""
        assert self.pfs is not None, "figures of the emulated file system are for runs on it"
        return float(self.pfs[key])

    def usage(self, key: str) -> float:
        """Sum over the ranks of a `getrusage` counter."""
        return sum(float(rank["usage"][key]) for rank in self.ranks)

    def thread(self, key: str) -> float:
        """Sum over the ranks of a `getrusage` counter of the training thread while it got batches."""
        return sum(float(rank["thread"][key]) for rank in self.ranks)

    def total(self, key: str) -> int:
        """Sum over the ranks of a `/proc/self/io` counter."""
        return sum(int(rank[key]) for rank in self.ranks)

    def wall_seconds(self) -> float:
        """Of the mean epoch."""
        return sum(self.phase(key) for key, _, _ in PHASES)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The whole demo."""

    samples: int
    ranks: int
    batch_size: int
    epochs: int
    file_bytes: int
    prepared_seconds: float
    held_out_samples: int
    runs: tuple[RunResult, ...]
    pfs: dict[str, Any] | None = None
    """The emulated file system; see `storage.Storage.describe`."""
    pfs_reason: str | None = None
    """Why there is none."""

    @property
    def identical(self) -> bool:
        """Whether the first two runs, which read in the same order, computed the same losses, bit for bit."""
        return self.first_difference is None

    @property
    def first_difference(self) -> int | None:
        """The first step at which the first two runs differ."""
        a, b = self.runs[0].losses, self.runs[1].losses
        for step, (left, right) in enumerate(zip(a, b, strict=False)):
            if left != right:
                return step
        return None if len(a) == len(b) else min(len(a), len(b))

    def verdict(self) -> str:
        """Say in words how the first two runs compare."""
        step = self.first_difference
        if step is None:
            return f"identical, bit for bit, in all {len(self.runs[0].losses)} steps"
        found = [run.losses[step] if step < len(run.losses) else None for run in self.runs[:2]]
        return f"DIFFERENT from step {step} on: {found[0]!r} and {found[1]!r}"

    @property
    def late(self) -> bool:
        """Whether replies of the emulated file system came so late that its times are not to be trusted."""
        return any(run.pfs is not None and run.pfs["missed_deadlines"] for run in self.runs)

    def caveat(self) -> str:
        """Say what the times are worth."""
        if self.pfs is None:
            return DISK_CAVEAT
        factor, name = f"{self.pfs['time_scale']:g}", self.pfs["spec"]["name"]
        return (
            f"Times are real seconds on an emulated file system that is {factor} times slower than {name} would be, so "
            "that a small machine can carry it. Computing, copying and page faults are not slowed down with it: beside "
            "waiting for storage they look that much cheaper than they are. Ranks that outnumber cores wait for each "
            "other, and the emulator takes its processor time from the same cores."
        )

    def figures(self) -> tuple[Figure, ...]:
        """Rows of the table: those that mean something on this storage."""
        return tuple(figure for figure in FIGURES if figure.emulated in (None, self.pfs is not None))


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    key: str
    title: str
    unit: str
    meaning: str
    value: Callable[[RunResult], float]
    digits: int = 0
    counter: bool = False
    """Counters are the claim; times are not."""
    emulated: bool | None = None
    """Where it means something: on the emulated file system, only elsewhere, or (None) everywhere."""

    @property
    def short(self) -> str:
        """The title where a heading says already what it is of."""
        return self.title.removeprefix(_PFS)

    def text(self, run: RunResult) -> str:
        """Format the value as it is shown."""
        return f"{self.value(run):,.{self.digits}f}"


def _phase_figure(key: str, title: str, meaning: str) -> Figure:
    return Figure(key, title, "s", f"per epoch, mean of the ranks: {meaning}", lambda run: run.phase(key), 2)


FIGURES = (
    Figure("wall_seconds", "epoch", "s", "mean epoch of the mean rank, start-up told apart", RunResult.wall_seconds, 2),
    *(_phase_figure(*phase) for phase in PHASES),
    Figure("training_seconds", "all epochs", "s", "mean rank, start-up included", RunResult.training_seconds, 2),
    Figure("startup_seconds", "start-up", "s", "slowest rank: opening, index, first batch", RunResult.startup_seconds, 2),
    Figure(
        "cpu_seconds", "processor time for data", "s", "all threads: getting and decoding batches",
        lambda run: run.usage("cpu_seconds"), 2, counter=True,
    ),
    Figure(
        "thread_faults", "page faults, training", "", "of the training thread while it got batches: a step stopped",
        lambda run: run.thread("minor_faults") + run.thread("major_faults"), counter=True,
    ),
    Figure(
        "minor_faults", "page faults, minor", "", "all threads: a page in memory was mapped, first touches of buffers too",
        lambda run: run.usage("minor_faults"), counter=True,
    ),
    Figure(
        "major_faults", "page faults, major", "", "all threads: a thread waited for storage in a fault",
        lambda run: run.usage("major_faults"), counter=True,
    ),
    Figure(
        "read_calls", "read calls", "", "/proc/self/io syscr; reads through a mapping are not in it",
        lambda run: run.total("read_calls"), counter=True,
    ),
    Figure(
        "read_call_bytes", "bytes by read calls", "MB", "/proc/self/io rchar, from page cache or storage",
        lambda run: run.total("read_call_bytes") / 1e6, 1, counter=True,
    ),
    Figure(
        "storage_bytes", "bytes from storage", "MB", "/proc/self/io read_bytes",
        lambda run: run.total("storage_bytes") / 1e6, 1, counter=True, emulated=False,
    ),
    Figure(
        "pfs_reads", _PFS + "requests", "", "reads that left the node, page faults of mappings included",
        lambda run: run.counted("reads"), counter=True, emulated=True,
    ),
    Figure(
        "pfs_read_bytes", _PFS + "bytes fetched", "MB", "what they asked for; the page cache hides the rest",
        lambda run: run.counted("read_bytes") / 1e6, 1, counter=True, emulated=True,
    ),
    Figure(
        "pfs_mean_read_bytes", _PFS + "mean request", "KB", "the kernel cuts and joins what the ranks ask for",
        lambda run: run.counted("mean_read_bytes") / 1e3, 1, counter=True, emulated=True,
    ),
    Figure(
        "pfs_max_in_flight", _PFS + "requests at once", "", "at most: how deep the queue was",
        lambda run: run.counted("max_in_flight"), counter=True, emulated=True,
    ),
    Figure(
        "pfs_queue_seconds", _PFS + "queued", "model s",
        "what requests waited for the server and its link, summed over all of them",
        lambda run: run.counted("queue_seconds"), 2, counter=True, emulated=True,
    ),
    Figure(
        "thread_switches", "context switches, training", "", "of the training thread while it got batches",
        lambda run: run.thread("voluntary_switches") + run.thread("involuntary_switches"), counter=True,
    ),
    Figure(
        "switches", "context switches", "", "all threads, voluntary and involuntary",
        lambda run: run.usage("voluntary_switches") + run.usage("involuntary_switches"), counter=True,
    ),
    Figure(
        "accuracy", "accuracy, held-out", "%", "images that were kept apart before the set was multiplied",
        lambda run: 100 * run.accuracy, 1, counter=True,
    ),
)  # fmt: skip


def storage_line(pfs: dict[str, Any] | None, reason: str | None) -> str:
    """Say in one or two lines what the ranks read from."""
    if pfs is None:
        return f"storage: the local disk, not an emulated file system: {reason}"
    spec, factor = pfs["spec"], pfs["time_scale"]
    limit, latency = pfs["limit_mib_s"] * (1 << 20) / 1e6 / factor, spec["latency_us"] * factor / 1e3
    return (
        f"storage: the emulated file system {spec['name']}, {factor:g} times slower: "
        f"{limit:,.0f} MB/s, {latency:.2g} ms a request"
    )


def table(outcome: Outcome) -> str:
    """Format the table as plain text."""
    head = ["", "", *(run.title for run in outcome.runs)]
    rows = [
        [figure.title, figure.unit, *(figure.text(run) for run in outcome.runs)]
        for figure in outcome.figures()
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    megabytes = outcome.file_bytes / 1e6
    return "\n".join(
        [
            f"{outcome.samples:,} Datum samples ({megabytes:.0f} MB of LMDB), {outcome.ranks} ranks, batches "
            f"of {outcome.batch_size} per rank, {outcome.epochs} epochs",
            storage_line(outcome.pfs, outcome.pfs_reason),
            "",
            *lines,
            "",
            f"Losses of {outcome.runs[0].title} and {outcome.runs[1].title}: {outcome.verdict()}.",
            outcome.caveat(),
            *([LATE] if outcome.late else []),
        ]
    )


def _plain(key: str, value: float) -> float | int:
    """Keep seconds; make counts whole."""
    return value if key.endswith("_seconds") else int(value)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Give the outcome as one object: figures in base units, losses, and what the loader says of itself."""
    return {
        "samples": outcome.samples,
        "ranks": outcome.ranks,
        "batch_size": outcome.batch_size,
        "epochs": outcome.epochs,
        "file_bytes": outcome.file_bytes,
        "prepared_seconds": outcome.prepared_seconds,
        "held_out_samples": outcome.held_out_samples,
        "losses_identical": outcome.identical,
        "pfs": outcome.pfs,
        "pfs_reason": outcome.pfs_reason,
        "runs": [
            {
                "name": run.name,
                **{key: run.phase(key) for key, _, _ in PHASES},
                "wall_seconds": run.wall_seconds(),
                "startup_seconds": run.startup_seconds(),
                "training_seconds": run.training_seconds(),
                "by_epoch": [
                    {key: run.phase(key, epoch) for key, _, _ in PHASES}
                    for epoch in range(len(run.accuracies))
                ],
                **{key: _plain(key, run.usage(key)) for key in run.ranks[0]["usage"]},
                "training_thread": {key: _plain(key, run.thread(key)) for key in run.ranks[0]["thread"]},
                **{key: run.total(key) for key in ("read_calls", "read_call_bytes", "storage_bytes")},
                "pfs": run.pfs,
                "accuracies": run.accuracies,
                "losses": run.losses,
                "facts": run.facts,
            }
            for run in outcome.runs
        ],
    }
