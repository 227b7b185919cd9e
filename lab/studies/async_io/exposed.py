"""Exposed I/O of the paper's two applications, scaled: samples or groups, one buffer or two.

In order, for each number of ranks: `async` reads the epoch without computing, which tells what
reading takes; a step then computes as much longer than it reads as in the paper (tables II to V:
*Comp* over the exposed I/O of *Async I/O*, which hides nothing). The programs that read sample by
sample take a few small steps of the same compute per sample, since a whole epoch of them takes
hours; what they expose of those is carried over to the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay_lab.bench import generate, workload
from forebay_lab.bench.sample import Field, Sample
from studies.harness.sections import Result, Row, Scope, bench_rows, run, shape

SINGLE = ("h5py-random", "tfdata-random", "tfdata-random-prefetch")
SHAPES = ((1, 1), (4, 4), (16, 4))
"""Ranks and nodes."""

MOST_RATIO = 2.0
"""Largest ratio of compute to reading; the paper's 8 and 13.9 would take minutes and be easier.

Where the paper reads slower than it computes, a row of 16 ranks has that ratio as well.
"""

# With the factor that "auto" gives lustre-hdd a seek takes 300 ms, and a few samples one at a time
# ten minutes.
PLACES = {
    "gpfs": ("--pfs", "gpfs", "--targets", "2"),
    "lustre-hdd": ("--pfs", "lustre-hdd", "--targets", "2", "--time-scale", "15"),
}
MACHINES = {"gpfs": "Summit", "lustre-hdd": "Cori"}


@dataclass(frozen=True)
class Application:
    """One of the paper's, with samples and steps that this machine can carry."""

    name: str
    sample: Sample
    samples: int
    tiny_samples: int
    files: int
    global_batch: int
    group: str
    """Order of the rows of groups: the paper's B is one group per process and buffer."""
    single_batch: int
    """Global batch of the rows that read sample by sample; they take `SINGLE_STEPS` of them."""

    def path(self, scope: Scope) -> str:
        samples = scope.pick(self.samples, self.tiny_samples)
        recipe = generate.Recipe(self.name, "hdf5", samples, self.files, self.sample, seed=0)
        return str(generate.generate(recipe, scope.directory).directory)


SINGLE_STEPS = 4

APPLICATIONS = {
    # A 24th of the published volume: 64³ × 4 of 16 bits; groups of 8 MiB, as the paper's smallest
    # buffer has 4 samples.
    "cosmoflow": Application(
        "cosmoflow-2mib", Sample(2 << 20, 0, "raw", (Field("volume", "uint16", (64, 64, 64, 4)),)),
        samples=256, tiny_samples=64, files=5, global_batch=16, group="group:samples=4,window=1", single_batch=16,
    ),
    # The published samples; groups of 9.4 MiB, as 609 samples were enough on both machines (figure
    # 10).
    "neuron": Application(
        "neuron-inverter-files", workload.load("neuron-inverter").sample,
        samples=32_768, tiny_samples=4096, files=4, global_batch=1024, group="group:samples=512,window=1",
        single_batch=16,
    ),
}  # fmt: skip

# Exposed I/O and compute [s] of an epoch on the fewest GPUs of tables II to V.
PAPER = {
    ("cosmoflow", "lustre-hdd"): {
        "TF": (46.03, 38.33), "TF-Pre": (28.91, 38.31), "Async I/O": (43.18, 38.01), "Async I/O (DB)": (10.71, 37.95),
    },
    ("cosmoflow", "gpfs"): {
        "TF": (4.12, 17.23), "TF-Pre": (1.99, 18.39), "Async I/O": (2.29, 18.25), "Async I/O (DB)": (0.0, 18.73),
    },
    ("neuron", "lustre-hdd"): {
        "TF": (53384.49, 390.93), "TF-Pre": (53100.29, 388.48), "Async I/O": (199.99, 387.28), "Async I/O (DB)": (0.0, 390.93),
    },
    ("neuron", "gpfs"): {
        "TF": (45677.48, 765.38), "TF-Pre": (40259.47, 777.39), "Async I/O": (54.96, 764.44), "Async I/O (DB)": (0.0, 775.94),
    },
}  # fmt: skip
PAPERS = {
    "tfdata-random": "TF", "tfdata-random-prefetch": "TF-Pre", "async": "Async I/O", "async-db": "Async I/O (DB)",
}  # fmt: skip


def exposed(scope: Scope, preset: str, name: str) -> list[Row]:
    """Exposed I/O of a cold epoch, start-up apart, against single samples and the paper."""
    application = APPLICATIONS[name]
    samples = scope.pick(application.samples, application.tiny_samples)
    path = application.path(scope)
    rows: list[Row] = []
    for ranks, nodes in scope.pick(SHAPES, SHAPES[-1:]):
        place = (path, *shape(ranks, nodes), *PLACES[preset], "--cold", "--skip-verify", "--repetitions", "1")
        batch = ("--global-batch", str(application.global_batch))
        grouped = [f"{row}@{application.group}" for row in ("async", "async-db", "forebay")]
        alone = run("bench", *place, *batch, "--strategies", grouped[0])
        if alone["rows"][0]["status"] != "ok":
            rows += bench_rows(alone)
            continue
        reading = alone["rows"][0]["median"]["total_seconds"]
        compared = ratios(name, preset)
        for ratio in compared if (ranks, nodes) == SHAPES[-1] else compared[-1:]:
            step = ratio * reading / alone["steps"]
            strategies = f"{','.join(grouped)},forebay@group"
            whole = run("bench", *place, *batch, "--compute", micros(step), "--strategies", strategies)
            part_step = step * application.single_batch / application.global_batch
            part = run(
                "bench", *place, "--global-batch", str(application.single_batch), "--steps", str(SINGLE_STEPS),
                "--compute", micros(part_step),
                "--strategies", ",".join(SINGLE if ratio == compared[-1] else SINGLE[:1]),
            )  # fmt: skip
            rows += [
                row | {"compute_ratio": ratio} for row in lines(part, whole, samples, PAPER[name, preset])
            ]
    return rows


def paper_ratio(name: str, preset: str) -> float:
    """Compute over what reading in groups takes."""
    exposed_seconds, compute_seconds = PAPER[name, preset]["Async I/O"]
    return compute_seconds / exposed_seconds


def ratios(name: str, preset: str) -> list[float]:
    found = round(min(paper_ratio(name, preset), MOST_RATIO), 2)
    return [found, MOST_RATIO] if found < 1 else [found]


def micros(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}us"


def lines(part: Result, whole: Result, samples: int, paper: dict[str, Any]) -> list[Row]:
    """Rows of both benches; exposed seconds of single-sample rows are scaled to the epoch."""
    carried = samples / ((part["steps"] - 1) * part["global_batch"])
    found = []
    for result, factor in ((part, carried), (whole, 1.0)):
        for row, flat in zip(result["rows"], bench_rows(result), strict=True):
            if row["status"] == "ok":
                flat |= shares(row["median"]) | {"exposed_seconds": factor * flat["exposed_seconds"]}
            if result is part:
                flat.pop("total_seconds", None)
            flat |= {key: whole[key] for key in ("global_batch", "steps")}
            if (figure := paper.get(PAPERS.get(row["strategy"], ""))) is not None:
                flat |= {"paper_exposed_seconds": figure[0], "paper_exposed_share": figure[0] / sum(figure)}
            found.append(flat)
    first = found[0].get("exposed_seconds")
    for flat in found:
        if first is not None and flat.get("exposed_seconds"):
            flat["exposed_reduction"] = first / flat["exposed_seconds"]
    return found


def shares(median: dict[str, Any]) -> Row:
    """Exposed I/O over the wall, and reading over computing."""
    parts = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")
    reading = median["locate_and_read_seconds"]
    return {
        "exposed_share": median["exposed_seconds"] / sum(median[part] for part in parts),
        "reading_ratio": None if reading is None else reading / median["compute_seconds"],
    }
