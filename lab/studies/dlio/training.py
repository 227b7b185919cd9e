"""Runs of DLIO on an emulated file system, and what they measured.

Each run starts MPI ranks, one for each emulated accelerator, which read through one mount: a node.
The pages of the mount are dropped before each run. DLIO reports the utilisation. The share of the
cores that were busy meanwhile says whether the processor was the limit, rather than storage.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml

import forebay
from forebay_lab import pfs
from forebay_lab.ranks import launch
from forebay_lab.ranks.rusage import processors
from studies.dlio.workloads import FILE_SYSTEM_TIME_SCALE, PRESET, Emulated
from studies.harness.sections import DIRECTORY, MIB, Row

__all__ = ["FOREBAY", "generate", "mounted", "train"]

FOREBAY = "forebay"
DEADLINE_S = 900
LOOK_S = 0.1

_PLUG_IN = {
    "data_loader": "custom",
    "data_loader_classname": "forebay.dlio.DataLoader",
    "data_loader_sampler": "none",
}


def generate(workload: Emulated, tiny: bool) -> Path:
    """Let DLIO generate the data, unless it has; return its directory."""
    folder = DIRECTORY.resolve() / f"dlio-{workload.name}{'-tiny' if tiny else ''}"
    described = workload.described(folder, tiny, workflow={"generate_data": True, "train": False})
    made, wanted = folder / "workload.json", json.dumps(described, sort_keys=True)
    if made.exists() and made.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        # DLIO calls a program of DALI whose index nothing here reads.
        (Path(scratch) / "tfrecord2idx").symlink_to(shutil.which("true") or "/bin/true")
        _run(described, Path(scratch), ranks=2, variables={"PATH": f"{scratch}:{os.environ['PATH']}"})
    made.write_text(wanted)
    return folder


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[tuple[pfs.Server, Path]]:
    """Mount a directory on the emulated file system, with the index of its samples built before."""
    # Indexes name the paths of files: both mounts have one place.
    with tempfile.TemporaryDirectory(prefix="forebay-study-") as point:
        with pfs.Server.start(folder, [point], preset="none"):
            _index(Path(point))
        scaled = {"preset": PRESET, "time_scale": FILE_SYSTEM_TIME_SCALE}
        with pfs.Server.start(folder, [point], **scaled) as server:
            yield server, Path(point)


def _index(folder: Path) -> None:
    train = folder / "train"
    files = sorted(str(path) for path in train.glob("*.tfrecord"))
    dataset = forebay.open(files) if files else forebay.open(train, format="folder", fields=["data"])
    len(dataset)


def train(
    workload: Emulated,
    server: pfs.Server,
    point: Path,
    *,
    loader: str,
    threads: int,
    ranks: int,
    tiny: bool,
) -> Row:
    """Train on cold data; return what DLIO reported."""
    reader: dict[str, Any] = {"batch_size": workload.batch, "read_threads": threads}
    reader |= {"file_shuffle": "seed", "sample_shuffle": "seed"} if workload.shuffle == "seed" else {}
    reader |= _PLUG_IN if loader == FOREBAY else {"data_loader": loader}
    described = workload.described(point, tiny, reader=reader)
    described["framework"] = workload.framework if loader == FOREBAY else loader
    samples = workload.files(tiny) * workload.samples_of_file(tiny)
    steps = min(workload.steps(tiny), samples // workload.batch // ranks)
    described["train"]["total_training_steps"] = steps
    server.drop_caches(point)
    server.reset()
    with tempfile.TemporaryDirectory() as scratch, _Busy() as busy:
        found = _run(described, Path(scratch), ranks)
    epoch = found["epochs"]["1"]
    begun, ended = (datetime.fromisoformat(epoch[key]).timestamp() for key in ("start", "end"))
    metric = found["summary"]["metric"]
    (node,) = server.stats()["nodes"]
    wanted = ranks * steps * workload.batch * workload.sample_bytes
    utilisation = metric["train_au_mean_percentage"] / 100
    return {
        "name": f"{loader}, {ranks}",
        "loader": loader,
        "threads": threads,
        "accelerators": ranks,
        "utilisation": utilisation,
        "line": workload.line,
        "passes": "yes" if utilisation >= workload.line else "no",
        "whole_utilisation": steps * workload.step_s / (ended - begun),
        "steps": steps,
        "rate_mib_s": wanted / (ended - begun) / MIB,
        "read_share": node["read_bytes"] / wanted,
        "busy": busy.share(begun, ended),
    }


def _run(
    described: dict[str, Any], scratch: Path, ranks: int, variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run DLIO; return its summary and what it recorded of epochs, if it trained."""
    output = scratch / "output"
    (scratch / "workload").mkdir()
    (scratch / "workload/scaled.yaml").write_text(
        yaml.safe_dump({**described, "output": {"folder": str(output)}})
    )
    program = ["-m", "dlio_benchmark.main", f"--config-dir={scratch}", "workload=scaled"]
    program += [f"hydra.run.dir={scratch / 'hydra'}"]
    launch.run(
        launch.command(ranks, program),
        deadline_s=DEADLINE_S,
        progress=lambda _: None,
        what=f"DLIO, {described['model']} on {ranks} ranks",
        variables=variables,
    )
    if not described["workflow"]["train"]:
        return {}
    return {
        "summary": json.loads((output / "summary.json").read_text()),
        "epochs": json.loads((output / "per_epoch_stats.json").read_text()),
    }


class _Busy:
    """Records how busy the cores of this machine are."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, int, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(LOOK_S):
            self._looks.append((time.time(), *processors()))

    def share(self, begun: float, ended: float) -> float | None:
        """Return the busy share of all cores between two times."""
        within = [look for look in self._looks if begun <= look[0] <= ended]
        if len(within) < 2:
            return None
        (_, busy, total), (_, busy_later, total_later) = within[0], within[-1]
        return (busy_later - busy) / max(1, total_later - total)
