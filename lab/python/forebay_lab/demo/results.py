"""The measurements of the demo, per run and in total: one JSON object and a text table.

Times are means over the ranks, per epoch; counters are sums over the ranks and all epochs. A
counter covers the process from the opening of the dataset to the end of the last epoch, without
what its main thread did while it computed and communicated (faults, switches, processor time). It
includes the loader's threads and excludes the training. An emulated file system adds its own
counters: all requests that reached it during a run, with page faults of mappings.

`forebay_lab.report` draws the page from the JSON object.
"""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass
from typing import Any

from forebay_lab.report import columns, data, demo, numbers
from forebay_lab.report.figures.phases import PHASES, STARTUP

_PHASES = tuple(key for key, _, _ in PHASES)


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

    def phase(self, key: str, epoch: int | None = None) -> float:
        """Return the mean over ranks of a part of the wall time [s]: of an epoch, or on average."""
        epochs = [rank["epochs"] if epoch is None else [rank["epochs"][epoch]] for rank in self.ranks]
        return statistics.fmean(float(times[key]) for rank in epochs for times in rank)

    def startup_seconds(self) -> float:
        """Longest start-up of a rank: opening, index, first batch."""
        return max(float(rank["epochs"][0]["startup_seconds"]) for rank in self.ranks)

    def training_seconds(self) -> float:
        """Mean time of the ranks from the start of their clocks to the last epoch's end [s]."""
        return self.phase("startup_seconds", 0) + self.wall_seconds() * len(self.accuracies)

    def usage(self, key: str) -> float:
        """Sum over the ranks of a `getrusage` counter."""
        return sum(float(rank["usage"][key]) for rank in self.ranks)

    def thread(self, key: str) -> float:
        """Return the ranks' sum of a `getrusage` counter of the training thread in ``next``."""
        return sum(float(rank["thread"][key]) for rank in self.ranks)

    def total(self, key: str) -> int:
        """Sum over the ranks of a `/proc/self/io` counter."""
        return sum(int(rank[key]) for rank in self.ranks)

    def wall_seconds(self) -> float:
        """Of the mean epoch."""
        return sum(self.phase(key) for key in _PHASES)


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
        """Whether the first two runs, with one order, computed equal losses at every step."""
        return self.runs[0].losses == self.runs[1].losses


def table(values: dict[str, Any]) -> str:
    """Format the JSON object of a demo as a plain text table."""
    rows = data.from_demo(values, "the demo").rows
    lines = [["", *(row.name for row in rows)]]
    for column in columns.DEMO:
        found = [columns.value(row, column) for row in rows]
        known = [one for one in found if one is not None]
        if known:
            unit = numbers.choose(column.kind, known)
            title = f"{column.title} [{unit.name}]" if unit.name else column.title
            lines.append([title, *("–" if one is None else unit.digits(one) for one in found)])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = [
        "  ".join(
            [first.ljust(widths[0]), *(one.rjust(width) for one, width in zip(rest, widths[1:], strict=True))]
        ).rstrip()
        for first, *rest in lines
    ]
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join(
        [
            f"{values['samples']:,} Datum samples ({numbers.text('bytes', values['file_bytes'])} of LMDB), "
            f"{values['ranks']} ranks, batches of {values['batch_size']} per rank, {values['epochs']} epochs",
            demo.storage(values),
            "",
            *text,
            "",
            f"Losses of {rows[0].name} and {rows[1].name}: {demo.verdict(values)}.",
            demo.caveat(values),
            *([share] if (share := demo.lateness(rows)) is not None else []),
            *demo.late(rows),
        ]
    )


def _plain(key: str, value: float) -> float | int:
    """Keep seconds; make counts whole."""
    return value if key.endswith("_seconds") else int(value)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return all measurements in base units; keys as in docs/metrics.md."""
    return {
        "version": data.DEMO_VERSION,
        "samples": outcome.samples,
        "ranks": outcome.ranks,
        "batch_size": outcome.batch_size,
        "epochs": outcome.epochs,
        "file_bytes": outcome.file_bytes,
        "prepared_seconds": outcome.prepared_seconds,
        "held_out_samples": outcome.held_out_samples,
        "losses_identical": outcome.identical,
        "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.platform()},
        "pfs": outcome.pfs,
        "pfs_reason": outcome.pfs_reason,
        "runs": [
            {
                "name": run.name,
                "title": run.title,
                **{key: run.phase(key) for key in _PHASES},
                "wall_seconds": run.wall_seconds(),
                "startup_seconds": run.startup_seconds(),
                "training_seconds": run.training_seconds(),
                "by_epoch": [
                    {key: run.phase(key, epoch) for key in _PHASES} for epoch in range(len(run.accuracies))
                ],
                **{key: _plain(key, run.usage(key)) for key in run.ranks[0]["usage"]},
                "training_thread": {key: _plain(key, run.thread(key)) for key in run.ranks[0]["thread"]},
                **{key: run.total(key) for key in ("read_calls", "read_call_bytes", "storage_bytes")},
                "ranks": [
                    {
                        "rank": number,
                        STARTUP[0]: rank["epochs"][0][STARTUP[0]],
                        **{key: sum(times[key] for times in rank["epochs"]) for key in _PHASES},
                    }
                    for number, rank in enumerate(run.ranks)
                ],
                "pfs": run.pfs,
                "accuracies": run.accuracies,
                "losses": run.losses,
                "facts": run.facts,
            }
            for run in outcome.runs
        ],
    }
