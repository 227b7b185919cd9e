"""The sections: datasets, shapes and places of the paper's steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay_lab import PRESETS
from forebay_lab.bench import workload
from forebay_lab.bench.strategies import LADDER
from studies.harness.sections import DIRECTORY, Result, Row, Scope, Study, bench_rows, fetched, run, shape

RUNGS = tuple(name for name in LADDER if name in PRESETS)
"""Of the engine; what this build lacks is named above the tables."""


@dataclass(frozen=True)
class Data:
    """A published workload, scaled, and a global batch that gives some tens of steps."""

    workload: str
    scale: float
    tiny_scale: float
    global_batch: int

    def path(self, tiny: bool) -> str:
        scale = self.tiny_scale if tiny else self.scale
        return str(workload.prepare(self.workload, scale, DIRECTORY, container="lmdb").path)


DATA = {
    # 3,072 bytes, a page each: 10,240 samples, an epoch of ten steps.
    "3k": Data("cifar10-large", 0.000_2048, 0.0001, 1024),
    # 3,072 bytes: 92,160 samples, an epoch of five steps of the paper's global batch.
    "3k-paper": Data("cifar10-large", 0.001_8432, 0.000_3686_4, 18_432),
    # 114,660 bytes, 28 pages and a bit each: 640 samples, an epoch of ten steps.
    "110k": Data("resnet50", 0.000_4996, 0.0002, 64),
}
TABLES = ("3k", "110k")
"""Datasets of the tables that compare sample sizes."""

# File systems, narrowed so that four nodes on two cores are to them what a cluster is to the whole;
# and the time factor.
PRESETS: dict[str, tuple[str, ...]] = {
    # A file lies on one target: 625 MB/s of real time with this factor, and a seek takes 48 ms
    # rather than the 300 of "auto".
    "lustre-hdd": ("--targets", "4", "--time-scale", "6"),
    "lustre-ssd": ("--targets", "2"),
    "gpfs": ("--targets", "2"),
}

# Ranks and nodes.
SHAPES = ((1, 1), (4, 1), (16, 1), (4, 4), (16, 4))


def bench(
    scope: Scope, data: str, *arguments: str, repetitions: int = 3, pick: Sequence[str] = RUNGS
) -> Result:
    """Run a bench of rungs, in the paper's order of samples, cold."""
    strategies = ",".join(name if "@" in name else f"{name}@sequential" for name in pick)
    count = str(1 if scope.tiny else repetitions)
    whole = ("--cold", "--skip-verify", "--repetitions", count, "--strategies", strategies)
    return run("bench", DATA[data].path(scope.tiny), *arguments, *whole)


def place(preset: str) -> tuple[str, ...]:
    return ("--pfs", preset, *PRESETS[preset])


def strategy_rows(result: Result, **more: Any) -> list[Row]:
    """Rows by strategy, each against `lmdb`; the order is the paper's."""
    return bench_rows(result, base="lmdb", name="strategy", **more)


def ladder(scope: Scope, preset: str, data: str) -> list[Row]:
    """All steps at 1, 4 and 16 ranks on one node, 4 and 16 on four; the paper's figures 15–22."""
    pick = [name for name in LADDER if name == LADDER[0] or name in RUNGS]
    rows = []
    for ranks, nodes in scope.few(SHAPES):
        # A whole epoch: read-ahead after the last step would count, and slow down other rows.
        batch = ("--global-batch", str(DATA[data].global_batch))
        result = bench(scope, data, *shape(ranks, nodes), *place(preset), *batch, repetitions=1, pick=pick)
        rows += strategy_rows(result)
    return rows


# Of the speed-up: the file system, and its arguments: a job of 16 ranks, and the first 16 ranks of
# a job of 256.
CASES: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
    (preset, arguments)
    for preset in ("lustre-hdd", "gpfs")
    for arguments in (("--global-batch", "18432"), ("--world-size", "256", "--batch-size", "72"))
)


def speedup(scope: Scope) -> list[Row]:
    """All steps against `lmdb`: 3 KB samples, 16 ranks, four nodes, 18,432 samples per step."""
    pick = [LADDER[0], "lmdb", *(name for name in RUNGS if name.startswith("lmm-dio-prov")), "forebay"]
    rows = []
    for preset, arguments in scope.few(CASES):
        result = bench(scope, "3k-paper", *shape(16, 4), *place(preset), *arguments, repetitions=1, pick=pick)
        rows += strategy_rows(result)
    return rows


def stagger(scope: Scope) -> list[Row]:
    """Staggering of the coalescing step, on disks that other nodes make seek; three runs."""
    stag = "lmm-dio-prov-coal-stag"
    pick = ["lmm-dio-prov-coal", f"{stag}:stagger=2", f"{stag}:stagger=4", stag, "forebay"]
    arguments = ("--global-batch", str(DATA["3k-paper"].global_batch))
    result = bench(scope, "3k-paper", *shape(16, 4), *place("lustre-hdd"), *arguments, pick=pick)
    return bench_rows(result, name="strategy")


def storage_bytes(scope: Scope) -> list[Row]:
    """Bytes fetched over the pages of samples and tree, by ranks; `dio` steps promise 1.01."""
    pick = [name for name in RUNGS if name != "lmm-dm"]
    rows = []
    for data in scope.few(TABLES):
        tree_bytes = index_bytes(DATA[data].path(scope.tiny))
        for ranks, nodes in scope.few(((1, 1), (2, 1), (4, 1), (16, 1), (16, 4))):
            batch = ("--global-batch", str(DATA[data].global_batch))
            whole = (*shape(ranks, nodes), *place("lustre-ssd"), *batch)
            result = bench(scope, data, *whole, repetitions=1, pick=pick)
            rows += [
                {
                    "name": row["strategy"],
                    "data": data,
                    "ranks": ranks,
                    "nodes": nodes,
                    "minimum_and_index_ratio": fetched(row)[1] / (row["minimum_bytes"] + tree_bytes),
                }
                for row in result["rows"]
                if row["status"] == "ok"
            ]
    return rows


def index_bytes(path: str) -> int:
    """Bytes of the pages that make an index of an LMDB file: two metas and the tree."""
    inspected = run("inspect", path, quiet=True)
    return sum(
        shard["page_bytes"] * (2 + shard["branch_pages"] + shard["leaf_pages"])
        for shard in inspected["shards"]
    )


SCALED = ("lmdb", "lmm", "lmm-dio-prov-coal-stag", "forebay")
SCALES = ((1, 1), (2, 2), (4, 4), (8, 4), (16, 4))


def strong(scope: Scope) -> list[Row]:
    """Strong scaling: one global batch over more and more ranks; the paper's figures 24 and 25."""
    return scaling(scope, lambda data, ranks: ("--global-batch", str(DATA[data].global_batch)))


def weak(scope: Scope) -> list[Row]:
    """Weak scaling: one batch per rank, and all samples once; the paper's figures 26 and 27."""
    return scaling(scope, lambda data, ranks: ("--batch-size", str(DATA[data].global_batch // 16)))


def scaling(scope: Scope, batch: Callable[[str, int], tuple[str, ...]]) -> list[Row]:
    """Samples per second by ranks; and the factor over `lmdb`."""
    pick = [name for name in SCALED if name in RUNGS]
    rows = []
    for data in scope.few(TABLES):
        for ranks, nodes in scope.few(SCALES):
            whole = (*shape(ranks, nodes), *place("lustre-hdd"), *batch(data, ranks))
            found = strategy_rows(bench(scope, data, *whole, repetitions=1, pick=pick), data=data)
            base = next((row for row in found if row["name"] == "lmdb"), {}).get("samples_per_second")
            for row in found:
                if base and "samples_per_second" in row:
                    row["speedup"] = row["samples_per_second"] / base
            rows += found
    return rows


@dataclass(frozen=True)
class Training:
    """A training on 9,216 ranks of Bebop: a step reads 18,432 samples, two per rank."""

    sample_seconds: float
    """Compute of a sample (docs/workloads.md: an estimate from FLOPs)."""
    sample_bytes: int
    """Whole pages."""

    def compute_seconds(self, global_bytes: int, rate: float) -> float:
        """Return the compute time of a step at the paper's ratio of reading to computing."""
        paper_reading_seconds = 18_432 * self.sample_bytes / BEBOP_BYTES_PER_SECOND
        return 2 * self.sample_seconds * (global_bytes / rate) / paper_reading_seconds


BEBOP_BYTES_PER_SECOND = (
    10e9  # Of its GPFS: ten servers of 1 GB/s, an estimate (docs/cost-model.md has the preset).
)
GPFS_BYTES_PER_SECOND = 6e9  # Of the preset, narrowed to two targets of 3 GB/s.
TRAININGS = {
    "3k": (Training(0.005, 4096), 4096),
    "110k": (Training(0.17, 49 * 4096), 29 * 4096),
}
"""The paper's, and the bytes of whole pages of a sample here."""


def training(scope: Scope) -> list[Row]:
    """Training with compute: total time, shares of a rank's time; the paper's figures 3 to 5."""
    pick = [name for name in SCALED if name in RUNGS]
    rows = []
    for data in scope.few(TABLES):
        paper, page_bytes = TRAININGS[data]
        batch = DATA[data].global_batch
        compute_us = round(1e6 * paper.compute_seconds(batch * page_bytes, GPFS_BYTES_PER_SECOND))
        whole = (*shape(16, 4), *place("gpfs"), "--global-batch", str(batch), "--compute", f"{compute_us}us")
        result = bench(scope, data, *whole, repetitions=1, pick=pick)
        for row, flat in zip(
            result["rows"], strategy_rows(result, data=data, compute_us=compute_us), strict=True
        ):
            for part in ("exposed", "skew") if row["status"] == "ok" else ():
                flat[f"{part}_share"] = statistics.fmean(
                    rank[f"{part}_seconds"] / rank["wall_seconds"]
                    for one in row["repetitions"]
                    for rank in one["ranks"]
                )
            rows.append(flat)
    return rows


def messages(scope: Scope) -> list[Row]:
    """Messages between nodes, all nodes together, per step: none for the default."""
    rows = []
    for ranks, nodes in scope.few(((2, 2), (4, 4), (16, 4))):
        batch = ("--global-batch", str(DATA["3k"].global_batch))
        rows += strategy_rows(
            bench(scope, "3k", *shape(ranks, nodes), *place("lustre-ssd"), *batch, repetitions=1)
        )
    return rows


LADDERS = {
    f"ladder-{preset}-{data}": partial(ladder, preset=preset, data=data)
    for preset in PRESETS
    for data in TABLES
}


def name_absent(_: Scope) -> None:
    """Name what this build lacks."""
    if absent := [name for name in LADDER[1:] if name not in RUNGS]:
        print(f"Not in this build: {', '.join(absent)}.")


STUDY = Study(
    sections={
        **LADDERS,
        "speedup": speedup,
        "stagger": stagger,
        "storage-bytes": storage_bytes,
        "strong": strong,
        "weak": weak,
        "training": training,
        "messages": messages,
    },
    groups={"ladder": tuple(LADDERS), "scaling": ("strong", "weak")},
    prepare=name_absent,
)
