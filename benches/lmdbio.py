"""The tables of docs/results/lmdbio.md: ``python benches/lmdbio.py [--tiny] [SECTION ...]``.

The ladder of "Scalable Deep Learning via I/O Analysis and Optimization" (Pumma et al., TOPC 2019:
the paper), each rung against the others, on emulated nodes and file systems. Every table is one or
a few ``forebay bench`` commands, printed above it. A section ends within about ten minutes on two
cores; ``ladder`` stands for its six parts. The data sets, published workloads scaled down, are made
once and kept in ``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). Needs FUSE. ``--tiny`` shows in
a few minutes that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from access_patterns import DIRECTORY, Result, fetched, run
from forebay.options import STRATEGIES
from forebay.tools.bench.strategies import LADDER
from sections import run_sections

RUNGS = tuple(name for name in LADDER if name in STRATEGIES)
"""Of the engine; what this build lacks is named above the tables."""


@dataclass(frozen=True)
class Data:
    """A published workload, scaled, and a global batch that gives some tens of steps."""

    workload: str
    scale: float
    tiny_scale: float
    global_batch: int

    def path(self, tiny: bool) -> str:
        from forebay.tools.bench import workload

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
"""Data sets of the tables that compare sample sizes."""

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


class Study:
    """What the command line asked for, and how a bench is run with it."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny

    def bench(self, data: str, *arguments: str, repetitions: int = 3, pick: Sequence[str] = RUNGS) -> Result:
        """Run a bench of rungs, in the paper's order of samples, cold."""
        strategies = ",".join(name if "@" in name else f"{name}@sequential" for name in pick)
        count = str(1 if self.tiny else repetitions)
        whole = ("--cold", "--skip-verify", "--repetitions", count, "--strategies", strategies)
        return run("bench", DATA[data].path(self.tiny), *arguments, *whole)

    def few(self, values: Sequence[Any]) -> Sequence[Any]:
        """Take all values; of a tiny run, the last one only."""
        return values[-1:] if self.tiny else values


def shape(ranks: int, nodes: int) -> tuple[str, ...]:
    return ("--ranks", str(ranks), "--nodes", str(nodes))


def place(preset: str) -> tuple[str, ...]:
    return ("--pfs", preset, *PRESETS[preset])


def about(result: Result) -> str:
    """One line on what was run where."""
    pfs = result["pfs"]
    nodes = result["node_emulation"]["by"] or "one node"
    return (
        f"{pfs['spec']['name']}, time scale {pfs['time_scale']:g}, {result['ranks']} ranks on {result['nodes']} ({nodes}), "
        f"global batch {result['global_batch']}, {result['steps']} steps"
    )


def switches(median: dict[str, Any]) -> float:
    return float(median["voluntary_switches"] + median["involuntary_switches"])


def text(value: float | None, form: str = ".4f") -> str:
    return "–" if value is None else format(value, form)


def times(first: float | None, value: float | None) -> str:
    """How many times less than the first."""
    return "–" if first is None or not value else f"{first / value:.2f}×"


def finished(result: Result) -> list[tuple[Result, dict[str, Any]]]:
    """Rows that ended, with their medians; of others the reason is printed."""
    for row in result["rows"]:
        if row["status"] != "ok":
            said = (row["error"] or "").splitlines()
            print(f"{row['name']} {row['status']}: {next((one for one in said if 'rank' in one), said[:1])}")
    return [(row, row["median"]) for row in result["rows"] if row["status"] == "ok"]


def rung(row: Result) -> str:
    return str(row["strategy"])


def table(result: Result) -> None:
    """Print the costs that the rungs are made for, each against `lmdb`; docs/results/lmdbio.md has the paper's findings."""
    print(f"{about(result)}\n")
    print(
        "| row | locate+read s | of lmdb | locate s | skew s | switches | of lmdb | requests | read amplification "
        "| total s | of lmdb |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = finished(result)
    base = next((median for row, median in rows if rung(row) == "lmdb"), None)
    for row, median in rows:
        late = ", late" if any(one["missed_deadlines"] for one in row["repetitions"]) else ""
        print(
            f"| {rung(row)} | {text(median['locate_and_read_seconds'])} | {against(base, median, 'locate_and_read_seconds')} "
            f"| {text(median['locate_seconds'])} | {text(median['skew_seconds'])} | {switches(median):,.0f} "
            f"| {times(switches(base) if base else None, switches(median))} | {fetched(row)[0]:,} "
            f"| {text(median['read_amplification'], '.3f')} | {text(median['total_seconds'])}{late} "
            f"| {against(base, median, 'total_seconds')} |"
        )
    sys.stdout.flush()


def against(base: dict[str, Any] | None, median: dict[str, Any], key: str) -> str:
    return times(base[key] if base else None, median[key])


# --- the sections
# -----------------------------------------------------------------------------------------------------


def ladder(study: Study, preset: str, data: str) -> None:
    """All rungs at 1, 4 and 16 ranks on one node, 4 and 16 on four; the paper's figures 15 to 22."""
    pick = [name for name in LADDER if name == LADDER[0] or name in RUNGS]
    for ranks, nodes in study.few(SHAPES):
        # A whole epoch: what is read ahead behind the last step would count, and slow down the
        # others.
        batch = ("--global-batch", str(DATA[data].global_batch))
        table(study.bench(data, *shape(ranks, nodes), *place(preset), *batch, repetitions=1, pick=pick))


# Of the speed-up: what is run, and its arguments.
CASES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("a job of 16 ranks, the paper's global batch", "lustre-hdd", ("--global-batch", "18432")),
    (
        "the first 16 ranks of a job of 256, the same",
        "lustre-hdd",
        ("--world-size", "256", "--batch-size", "72"),
    ),
    ("a job of 16 ranks, the paper's global batch", "gpfs", ("--global-batch", "18432")),
    ("the first 16 ranks of a job of 256, the same", "gpfs", ("--world-size", "256", "--batch-size", "72")),
)


def speedup(study: Study) -> None:
    """The whole ladder against `lmdb` for 3 KB samples at 16 ranks on four nodes, with the paper's 18,432 samples per step."""
    pick = [LADDER[0], "lmdb", *(name for name in RUNGS if name.startswith("lmm-dio-prov")), "forebay"]
    for what, preset, arguments in study.few(CASES):
        result = study.bench("3k-paper", *shape(16, 4), *place(preset), *arguments, repetitions=1, pick=pick)
        print(f"{preset}, {what}; {about(result)}\n")
        print(
            "| row | locate+read s | of lmdb | total s | of lmdb | requests | bytes per request | read amplification "
            "| seeks of the disks | locate s | faults | switches |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        rows = finished(result)
        base = next((median for row, median in rows if rung(row) == "lmdb"), None)
        for row, median in rows:
            reads, size = fetched(row)
            seeks = statistics.median(
                sum(server["seeks"] for server in one["pfs"]["servers"]) for one in row["repetitions"]
            )
            print(
                f"| {rung(row)} | {text(median['locate_and_read_seconds'])} "
                f"| {against(base, median, 'locate_and_read_seconds')} "
                f"| {text(median['total_seconds'])} | {against(base, median, 'total_seconds')} "
                f"| {reads:,} | {size / max(reads, 1):,.0f} | {text(median['read_amplification'], '.3f')} | {seeks:,.0f} "
                f"| {text(median['locate_seconds'])} "
                f"| {median['minor_faults'] + median['major_faults']:,.0f} | {switches(median):,.0f} |",
                flush=True,
            )
        print()
    print("The paper: 81.1× on 4,608 processes, 65× of the whole training on 9,216 (figures 22 and 24).")


def stagger(study: Study) -> None:
    """Turns: the coalescing rung with groups of nodes that take turns, on disks that other nodes make seek; three runs."""
    stag = "lmm-dio-prov-coal-stag"
    pick = ["lmm-dio-prov-coal", f"{stag}:stagger=2", f"{stag}:stagger=4", stag, "forebay"]
    arguments = ("--global-batch", str(DATA["3k-paper"].global_batch))
    result = study.bench("3k-paper", *shape(16, 4), *place("lustre-hdd"), *arguments, pick=pick)
    print(f"{about(result)}\n")
    print(
        "| row | locate+read s | skew s | total s | of the first | seeks of the disks | messages per step |"
    )
    print("|---|---|---|---|---|---|---|")
    rows = finished(result)
    for row, median in rows:
        seeks = statistics.median(
            sum(server["seeks"] for server in one["pfs"]["servers"]) for one in row["repetitions"]
        )
        print(
            f"| {rung(row)} | {text(median['locate_and_read_seconds'])} | {text(median['skew_seconds'])} "
            f"| {text(median['total_seconds'])} | {against(rows[0][1], median, 'total_seconds')} | {seeks:,.0f} "
            f"| {text(median['messages_per_step'], '.2f')} |",
            flush=True,
        )


def storage_bytes(study: Study) -> None:
    """Bytes fetched over the pages of the samples and of the tree (the index), by ranks on a node; `dio` rungs promise 1.01."""
    pick = [name for name in RUNGS if name != "lmm-dm"]
    lines = ["| samples | ranks × nodes | " + " | ".join(pick) + " |", "|---" * (len(pick) + 2) + "|"]
    for data in study.few(TABLES):
        tree_bytes = index_bytes(DATA[data].path(study.tiny))
        for ranks, nodes in study.few(((1, 1), (2, 1), (4, 1), (16, 1), (16, 4))):
            batch = str(DATA[data].global_batch)
            result = study.bench(
                data,
                *shape(ranks, nodes),
                *place("lustre-ssd"),
                "--global-batch",
                batch,
                repetitions=1,
                pick=pick,
            )
            found = {
                rung(row): fetched(row)[1] / (row["minimum_bytes"] + tree_bytes)
                for row, _ in finished(result)
            }
            cells = " | ".join(text(found.get(name), ".4f") for name in pick)
            lines.append(f"| {data} | {ranks // nodes} × {nodes} | {cells} |")
    print("\n".join(lines), flush=True)


def index_bytes(path: str) -> int:
    """Bytes of the pages that make an index of an LMDB file: two metas and the tree."""
    inspected = run("inspect", path, quiet=True)
    return sum(
        shard["page_bytes"] * (2 + shard["branch_pages"] + shard["leaf_pages"])
        for shard in inspected["shards"]
    )


SCALED = ("lmdb", "lmm", "lmm-dio-prov-coal-stag", "forebay")
SCALES = ((1, 1), (2, 2), (4, 4), (8, 4), (16, 4))


def strong(study: Study) -> None:
    """Strong scaling: a fixed global batch over more and more ranks; the paper's figures 24 and 25."""
    scaling(study, lambda data, ranks: ("--global-batch", str(DATA[data].global_batch)))
    print("\nThe paper, 9,216 processes: 65× over LMDB with 3 KB samples (figure 24).")


def weak(study: Study) -> None:
    """Weak scaling: a fixed batch per rank, and all samples once, as in the paper; its figures 26 and 27."""
    scaling(study, lambda data, ranks: ("--batch-size", str(DATA[data].global_batch // 16)))
    print("\nThe paper: up to 43× over LMDB with 3 KB samples, 1.9× with 192 KB (figures 26 and 27).")


def scaling(study: Study, batch: Callable[[str, int], tuple[str, ...]]) -> None:
    """Total time by ranks; and the factor over `lmdb`."""
    pick = [name for name in SCALED if name in RUNGS]
    for data in study.few(TABLES):
        rows: list[tuple[str, dict[str, float]]] = []
        for ranks, nodes in study.few(SCALES):
            result = study.bench(
                data,
                *shape(ranks, nodes),
                *place("lustre-hdd"),
                *batch(data, ranks),
                repetitions=1,
                pick=pick,
            )
            found = {rung(row): median["samples_per_second"] for row, median in finished(result)}
            rows.append((f"{ranks} on {nodes}", found))
        print(f"\n{data}, lustre-hdd: samples per second, and how many times those of lmdb\n")
        print("| ranks on nodes | " + " | ".join(pick) + " |")
        print("|---" * (len(pick) + 1) + "|")
        for name, found in rows:
            cells = [
                f"{found[one]:,.0f} ({found[one] / found['lmdb']:.2f}×)"
                if {one, "lmdb"} <= found.keys()
                else "–"
                for one in pick
            ]
            print(f"| {name} | {' | '.join(cells)} |")
        sys.stdout.flush()


@dataclass(frozen=True)
class Training:
    """A training of the paper on 9,216 ranks of Bebop: a step reads 18,432 samples and computes two of them on each rank."""

    sample_seconds: float
    """Compute of a sample (benches/workloads: an estimate from FLOPs)."""
    sample_bytes: int
    """Whole pages."""

    def compute_seconds(self, global_bytes: int, rate: float) -> float:
        """Compute of a step that keeps the paper's ratio of bytes over bandwidth to compute on a smaller system."""
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


def training(study: Study) -> None:
    """Training with compute: total time, and the shares of a rank's wall; the paper's figures 3 to 5."""
    pick = [name for name in SCALED if name in RUNGS]
    lines = [
        "| samples | compute of a step | row | total s | of lmdb | exposed, of the wall | skew, of the wall |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in study.few(TABLES):
        paper, page_bytes = TRAININGS[data]
        batch = DATA[data].global_batch
        compute_us = 1e6 * paper.compute_seconds(batch * page_bytes, GPFS_BYTES_PER_SECOND)
        whole = ("--global-batch", str(batch), "--compute", f"{compute_us:.0f}us")
        result = study.bench(data, *shape(16, 4), *place("gpfs"), *whole, repetitions=1, pick=pick)
        rows = finished(result)
        base = next((median for row, median in rows if rung(row) == "lmdb"), None)
        for row, median in rows:
            exposed, skew = (
                statistics.fmean(
                    rank[key] / rank["wall_seconds"] for one in row["repetitions"] for rank in one["ranks"]
                )
                for key in ("exposed_seconds", "skew_seconds")
            )
            lines.append(
                f"| {data} | {compute_us:.0f} µs | {rung(row)} | {text(median['total_seconds'])} "
                f"| {against(base, median, 'total_seconds')} | {exposed:.1%} | {skew:.1%} |"
            )
    print("\n".join(lines))
    print("\nThe paper: reading takes up to 90 % of a training with LMDB (9,216 processes, 3 KB; figure 3).")


def messages(study: Study) -> None:
    """Messages between nodes, all nodes together, per step: none for the default."""
    pick = list(RUNGS)
    lines = ["| ranks on nodes | " + " | ".join(pick) + " |", "|---" * (len(pick) + 1) + "|"]
    for ranks, nodes in study.few(((2, 2), (4, 4), (16, 4))):
        result = study.bench(
            "3k", *shape(ranks, nodes), *place("lustre-ssd"), "--global-batch", str(DATA["3k"].global_batch),
            repetitions=1, pick=pick,
        )  # fmt: skip
        found = {rung(row): median["messages_per_step"] for row, median in finished(result)}
        cells = " | ".join(text(found.get(name), ".2f") for name in pick)
        lines.append(f"| {ranks} on {nodes} | {cells} |")
    print("\n".join(lines))
    print(
        "\nThe paper's: one blocking collective per step and rung (section 4); its lmm-dm a message per node and step."
    )


LADDERS = {
    f"ladder-{preset}-{data}": partial(ladder, preset=preset, data=data)
    for preset in PRESETS
    for data in TABLES
}
SECTIONS: dict[str, Callable[[Study], None]] = {
    **LADDERS,
    "speedup": speedup,
    "stagger": stagger,
    "storage-bytes": storage_bytes,
    "strong": strong,
    "weak": weak,
    "training": training,
    "messages": messages,
}
GROUPS = {"ladder": tuple(LADDERS), "scaling": ("strong", "weak")}


def prepare(tiny: bool) -> Study:
    """Name what this build lacks."""
    if absent := [name for name in LADDER[1:] if name not in RUNGS]:
        print(f"Not in this build: {', '.join(absent)}.")
    return Study(tiny)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS, GROUPS, prepare)
