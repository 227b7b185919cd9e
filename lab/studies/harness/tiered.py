"""An emulated file system with a tier on an emulated local drive, and rows of epochs."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import forebay
from forebay_lab import pfs
from studies.harness.sections import Result, Row, Scope, ended, run

SOURCE, TIER = "nfs", "local-nvme"
TIME_SCALE = "6"
"""Of both, so that two cores carry the emulators and the loader beside them."""
HELD = 0.56
"""Share of the data that the paper's local disk holds."""
LOADER_MEMORY = "100MiB"
"""So that the largest groups of the default order fit; a quarter of a node would not do."""
IDLE_S = "0.2"
"""So that the daemon of a row has ended before the next one."""


def own_daemon(_: Scope) -> None:
    """Share no tier daemon with other jobs."""
    os.environ.setdefault("FOREBAY_RUNTIME_DIR", tempfile.mkdtemp(prefix="forebay-study-"))
    os.environ["FOREBAY_TIERS_IDLE"] = IDLE_S


def quota(data_bytes: int, share: float) -> str:
    """A tier for a share of the data, in whole chunks."""
    return f"{round(data_bytes * share / (1 << 20))}MiB"


def bench(
    path: Path,
    rows: str,
    *options: str,
    tiers: Mapping[str, str | None],
    source: str = SOURCE,
    epochs: int,
    repetitions: int = 1,
    memory: str | None,
) -> Result:
    """Run ``forebay bench``, where a row `+NAME` has a tier of the size `tiers[NAME]`, if any."""
    surroundings = [
        part
        for name, size in tiers.items()
        for value in (
            f"FOREBAY_NODE_MEMORY={LOADER_MEMORY}",
            *((f"FOREBAY_TIERS={{tier}}:{size}", f"FOREBAY_TIERS_IDLE={IDLE_S}") if size else ()),
        )
        for part in ("--environment", f"{name}:{value}")
    ]
    return run(
        "bench", str(path), "--strategies", rows, "--pfs", source, "--time-scale", TIME_SCALE, "--tier", TIER,
        *surroundings, *(("--node-memory", memory) if memory else ()), "--epochs", str(epochs),
        "--repetitions", str(repetitions), "--cold", "--skip-verify", *options,
    )  # fmt: skip


def epochs_of(row: Result) -> list[Result]:
    """What each epoch took and read from the source, medians over the repetitions."""
    ended(row)
    found = []
    for runs in zip(*(one["by_epoch"] for one in row["repetitions"]), strict=True):

        def middle(*keys: str, runs: Any = runs) -> float:
            values = []
            for one in runs:
                value: Any = one
                for key in keys:
                    value = value[key]
                values.append(value)
            return statistics.median(values)

        found.append(
            {
                "seconds": middle("seconds"),
                "exposed_seconds": middle("exposed_seconds"),
                "source_bytes": middle("pfs", "read_bytes"),
                "reads": middle("pfs", "reads"),
            }
        )
    return found


def predictions(row: Result) -> list[float]:
    """Bytes from the source of the first epochs, as the loader of rank 0 forecasts them."""
    return [epoch["source"] for epoch in row["tiers"]["forecast"]] if row["tiers"] else []


@dataclass(frozen=True)
class Mounts:
    """A source and a tier, emulated with one time scale."""

    source: Path
    tier: Path
    servers: tuple[pfs.Server, pfs.Server]

    def drop_caches(self) -> None:
        """Let no epoch read what an earlier one left in the page cache."""
        for server, mount in zip(self.servers, (self.source, self.tier), strict=True):
            server.drop_caches(mount)

    def source_bytes(self) -> int:
        """What has been read from the source so far."""
        return sum(int(node["read_bytes"]) for node in self.servers[0].stats()["nodes"])


@contextmanager
def mounts(backing: Path, time_scale: float = float(TIME_SCALE), source: str = SOURCE) -> Iterator[Mounts]:
    """Mount a directory and an empty tier."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-study-") as kept,
        pfs.mounted(backing, preset=source, time_scale=time_scale) as (first, point),
        pfs.mounted(kept, preset=TIER, time_scale=time_scale) as (second, tier),
    ):
        yield Mounts(point, tier, (first, second))


def read(
    place: Mounts,
    name: str,
    tiers: tuple[str, ...],
    *,
    order: str = "sequential",
    epochs: int,
    compute_s: float = 0.0,
    steps: int | None = None,
    memory: str = "24MiB",
) -> Row:
    """Read epochs, or steps of the first one; what the last epoch took, and each quarter of it."""
    dataset = forebay.open(Path(place.source) / name)
    # Read-ahead, which hides what a step waits for, is little against the data, as in large jobs.
    options = {"order": order, "node_memory": memory, "world": "single", "expected_epochs": epochs}
    with forebay.Loader(dataset, 8, tiers=tiers, **options) as loader:
        expected = steps or len(loader)
        for _ in range(1 if steps else epochs):
            place.drop_caches()
            before, source = loader.stats(), place.source_bytes()
            begun = time.perf_counter()
            ends = []
            for taken, _ in enumerate(loader, 1):
                if compute_s:
                    time.sleep(compute_s)
                if taken % (expected // 4) == 0:
                    ends.append(time.perf_counter())
                if taken == steps:
                    break
            seconds = time.perf_counter() - begun
            exposed = loader.stats()["exposed_seconds"] - before["exposed_seconds"]
    return {
        "steps": taken,
        "seconds": seconds,
        "quarters": [end - start for start, end in pairwise([begun, *ends[:4]])],
        "exposed_seconds": exposed,
        "source_bytes": place.source_bytes() - source,
    }
