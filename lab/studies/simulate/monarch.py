"""Monarch (docs/papers.md): TensorFlow, and PyTorch with DALI, on one node with a local SSD.

The setups of the paper, and the rows that stand for them:

- *Lustre*: the program reads the shared file system. TensorFlow is the row `tfdata`; DALI is a
  loader that copies samples from a mapping, in the order of the files.
- *Local*: the same program, all files on the SSD of the node.
- *Cache*: the first epoch of *Lustre*, all others of *Local*: `tf.data`'s `cache()`.
- *Monarch*: the loader, which reads the files in order, with a tier of the quota on the SSD. The
  middleware is `forebay run`; this is the engine's own tier.
- *no tier*: the same loader without it, which the paper does not have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from studies.harness.sections import Result, Row, Scope, run
from studies.simulate.eviction import eviction
from studies.simulate.monarch_values import (
    CACHE,
    DALI_GPU,
    DALI_MINUTES,
    LOCAL,
    LUSTRE,
    MONARCH,
    NO_TIER,
    QUOTA_GIB,
    READ_TWICE_GIB,
    TENSORFLOW_FIRST,
    TENSORFLOW_GPU,
    TENSORFLOW_MINUTES,
    TENSORFLOW_READS,
    Case,
)
from studies.simulate.specs import spec_file

LOADER = "forebay@sequential"
MODELS = {"lenet": "LeNet", "alexnet": "AlexNet", "resnet50": "ResNet-50"}
GIB = 1 << 30

TENSORFLOW_RATE = 284e6
"""Fitted: what one reader of TensorFlow gets from the shared Lustre, LeNet in figure 13 [B/s]."""
DALI_RATE = 69.5e6
"""Fitted: what page faults of DALI get from it, LeNet in figure 26 [B/s]."""
SSD_RATE = 5.5e8
"""About what SATA carries at 6 Gb/s [B/s]; the paper names only the SSD's size."""
CACHE_BYTES = 51 * GIB
"""Three quarters of the 68 GiB that section 3.1 leaves the node."""
CORES = 32
"""Of the node: table 1."""
EPOCHS = 3

FITTING_GIB = 100
"""Of the dataset that fits the SSD."""
SETUPS = {FITTING_GIB: (LUSTRE, LOCAL, CACHE, NO_TIER, MONARCH), 200: (LUSTRE, NO_TIER, MONARCH)}
"""By the size of the dataset [GiB]."""

TINY_SCALE = 0.01


def scale_of(scope: Scope) -> float:
    """Return the share of the data, and of all that holds some of it."""
    return float(scope.pick(1.0, TINY_SCALE))


def ssd(scope: Scope) -> str:
    """Return the SSD of the node."""
    cache_bytes = int(CACHE_BYTES * scale_of(scope))
    return spec_file(
        scope, "sata-ssd", "local-nvme", target_bytes_per_second=SSD_RATE, cache_bytes=cache_bytes
    )


def simulated(scope: Scope, case: Case, setup: str, rate: float, program: str, cores: int) -> Result:
    """Simulate three epochs of a model; return the row."""
    scale = scale_of(scope)
    lustre = spec_file(
        scope,
        f"shared-lustre-{rate / 1e6:g}",
        "lustre-hdd",
        stream_bytes_per_second=rate,
        cache_bytes=int(CACHE_BYTES * scale),
    )
    of_setup = {
        LUSTRE: ("--pfs", lustre, "--strategies", program),
        LOCAL: ("--pfs", ssd(scope), "--client", "linux", "--strategies", program),
        NO_TIER: ("--pfs", lustre, "--strategies", LOADER),
        MONARCH: (
            "--pfs", lustre, "--tier", f"{ssd(scope)}:{round(QUOTA_GIB * 1024 * scale)}MiB",
            "--strategies", LOADER,
        ),
    }  # fmt: skip
    size, model = case
    found = run(
        "simulate", "--workload", f"monarch-{size}", "--variant", model, "--ranks", "1", "--seeds", "1",
        "--epochs", str(EPOCHS), "--node-memory", "68GiB", "--cores", str(cores),
        *scope.pick((), ("--scale", str(TINY_SCALE))), *of_setup[setup],
    )  # fmt: skip
    row: Result = found["rows"][0]
    return {
        **row,
        "batch": found["global_batch"],
        "epoch_steps": found["steps"],
        "by_epoch": found["points"][-1]["rows"][0]["epochs"],
    }


def epoch_minutes(row: Result) -> list[float]:
    """Return the time of each epoch; a window stands for all of them."""
    if row["window"] and row["window"]["after"]:
        step = row["median"]["wall_seconds"] / row["steps"]
        return [step * row["epoch_steps"] / 60] * EPOCHS
    return [epoch["seconds"] / 60 for epoch in row["by_epoch"]]


def compared(
    case: Case, setups: dict[str, list[float]], compute_s: float, published: Sequence[dict[Case, Any]]
) -> Iterator[Row]:
    """Yield the row of each setup: epochs, what is saved, GPU, beside what is published."""
    minutes, gpus = published
    of_paper, gpu_of_paper = minutes.get(case, {}), gpus.get(case, {})
    whole = sum(setups[LUSTRE])
    for setup, epochs in setups.items():
        total, paper = sum(epochs), of_paper.get(setup)
        saved = setup != LUSTRE
        yield {
            "name": setup,
            "model": MODELS[case[1]],
            "data_gib": case[0],
            **{f"epoch_{number}_min": one for number, one in enumerate(epochs, 1)},
            "total_min": total,
            "published_min": paper,
            "ratio": total / paper if paper else None,
            "saved": _saved(total, whole) if saved else None,
            "published_saved": _saved(paper, of_paper[LUSTRE]) if saved and paper else None,
            "gpu_share": compute_s / 60 / total,
            "published_gpu_share": gpu_of_paper.get(setup),
        }


def _saved(total: float, whole: float) -> float:
    """Return the share of the time that is saved; noise is nothing, and never less."""
    return round(1 - total / whole, 3) + 0.0


def cases(scope: Scope, sizes: Sequence[int] = tuple(SETUPS)) -> Iterator[Case]:
    """Yield the datasets and models."""
    for size in sizes:
        for model in scope.pick(tuple(MODELS), ("lenet",)):
            yield size, model


def tensorflow(scope: Scope) -> list[Row]:
    """Monarch, figures 13, 15, 18, 20 to 22, 24, 25: epochs, GPU, reads and bytes of TensorFlow."""
    rows = []
    for case in cases(scope):
        size = case[0]
        runs = {
            setup: simulated(scope, case, setup, TENSORFLOW_RATE, "tfdata", CORES)
            for setup in SETUPS[size]
            if setup != CACHE
        }
        epochs = {setup: epoch_minutes(row) for setup, row in runs.items()}
        if size == FITTING_GIB:
            epochs[CACHE] = [epochs[LUSTRE][0], *epochs[LOCAL][1:]]
        epochs = {setup: epochs[setup] for setup in SETUPS[size]}
        compute_s = runs[LUSTRE]["median"]["compute_seconds"]
        kept = min(1.0, QUOTA_GIB / size)
        for row in compared(case, epochs, compute_s, (TENSORFLOW_MINUTES, TENSORFLOW_GPU)):
            setup = row["name"]
            middle = runs[LUSTRE if setup == CACHE else setup]["median"]
            part = 1 / EPOCHS if setup == CACHE else 1.0
            at_source = setup != LOCAL
            paper_gib = {
                LUSTRE: EPOCHS * size,
                CACHE: size,
                MONARCH: size * (1 + (EPOCHS - 1) * (1 - kept)) + READ_TWICE_GIB[case],
            }
            read_gib = middle["storage_bytes"] * part / GIB if at_source else None
            asked_gib = paper_gib.get(setup)
            rows.append(
                {
                    **row,
                    "published_epoch_1_min": TENSORFLOW_FIRST.get(case, {}).get(setup),
                    "reads": middle["reads"] * part if at_source else None,
                    "published_reads": TENSORFLOW_READS[case].get(setup),
                    "source_gib": read_gib,
                    "published_source_gib": asked_gib,
                    "source_ratio": read_gib / asked_gib if read_gib and asked_gib else None,
                }
            )
    return rows


def dali(scope: Scope) -> list[Row]:
    """Monarch, figures 26, 29, 30 and 33: epochs and GPU of PyTorch with DALI."""
    rows: list[Row] = []
    for case in cases(scope, scope.pick(tuple(SETUPS), (FITTING_GIB,))):
        # With more threads in one mapping the model's clients see no sequence.
        runs = {
            setup: simulated(scope, case, setup, DALI_RATE, "forebay:access=mmap@sequential", 1)
            for setup in SETUPS[case[0]]
            if setup != CACHE
        }
        epochs = {setup: epoch_minutes(row) for setup, row in runs.items()}
        compute_s = runs[MONARCH]["median"]["compute_seconds"]
        rows += compared(case, epochs, compute_s, (DALI_MINUTES, DALI_GPU))
    return rows


PARTS = 12
"""Of an epoch, in curves."""


def rates(scope: Scope) -> list[Row]:
    """Monarch, figures 19, 23, 27 and 31: samples/s over the steps, LeNet."""
    rows = []
    for size in scope.few(tuple(SETUPS)):
        for setup in SETUPS[size]:
            if setup == CACHE:
                continue
            found = simulated(scope, (size, "lenet"), setup, TENSORFLOW_RATE, "tfdata", CORES)
            one = found["repetitions"][0]
            ends = [0.0, *one["step_seconds"]]
            # Of many steps the result has evenly chosen ones.
            chosen = len(ends) - 1
            steps = [-1, *(place * (found["steps"] - 1) // max(chosen - 1, 1) for place in range(chosen))]
            edges = [part * chosen // (PARTS * EPOCHS) for part in range(PARTS * EPOCHS + 1)]
            for part, (begin, end) in enumerate(itertools.pairwise(edges)):
                if end > begin:
                    samples = (steps[end] - steps[begin]) * found["batch"]
                    rows.append(
                        {
                            "name": setup,
                            "data_gib": size,
                            "part": part,
                            "epoch": (part + 0.5) / PARTS,
                            "samples_per_second": samples / (ends[end] - ends[begin]),
                        }
                    )
    return rows


SECTIONS = {
    "monarch-tensorflow": tensorflow,
    "monarch-dali": dali,
    "monarch-rates": rates,
    "monarch-eviction": eviction,
}
