"""The sections: a job on each file system at each number of ranks, and what all of them come to."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from studies.harness.sections import DIRECTORY, Result, Row, Scope, SkipError, Study, run, shape
from studies.validate import judge

# File systems, narrowed so that a few nodes on two cores are to them what a cluster is to the
# whole; and the time factor.
PLACES: dict[str, tuple[str, ...]] = {
    # A file lies on one target; a seek takes 48 ms of real time.
    "lustre-hdd": ("--targets", "4", "--time-scale", "6"),
    "gpfs": ("--targets", "2"),
    "nfs": (),
    "fefs": ("--targets", "3"),
}
SHAPES = {1: 1, 4: 4, 16: 4}
"""Ranks, and their nodes."""
SIZES = {f"{preset}-{ranks}": (preset, ranks) for preset in PLACES for ranks in SHAPES}

BASELINES = ("pylmdb-skipping-noreadahead", "pylmdb-contiguous", "pylmdb-contiguous-noreadahead")
OTHER_ORDERS = ("forebay@group", "forebay@shuffle")
ROWS = ",".join(("ladder", *BASELINES, *OTHER_ORDERS))

SCALE, TINY_SCALE = 0.001_8432, 0.000_1024
"""Of CIFAR10-Large: 92,160 samples of 3 KB, a page each; of a tiny run, 5,120."""
GLOBAL_BATCH, TINY_GLOBAL_BATCH = 4608, 512
"""An epoch of 20 steps; of a tiny run, 10."""


def compare(scope: Scope, preset: str, ranks: int) -> list[Row]:
    """Measured and simulated wall time, bytes and seeks of each row."""
    result = simulated(scope, preset, ranks)
    if result is None:
        result = simulated(scope, preset, ranks, measure(scope, preset, ranks))
    assert result is not None
    rows = judged(result, f"{preset}-{ranks}")
    skipped = [
        {"name": row["name"], "status": "skipped", "error": (row["simulated"] or row)["error"]}
        for row in result["rows"]
        if not has_model(row)
    ]
    return rows + skipped


def measured_file(scope: Scope, preset: str, ranks: int) -> Path:
    """Return where the measured result of a job is stored."""
    directory = DIRECTORY / ("validate-tiny" if scope.tiny else "validate")
    directory.mkdir(exist_ok=True)
    return directory / f"{preset}-{ranks}.json"


def measure(scope: Scope, preset: str, ranks: int) -> Path:
    """Measure a job, and store its result."""
    scale = TINY_SCALE if scope.tiny else SCALE
    batch = TINY_GLOBAL_BATCH if scope.tiny else GLOBAL_BATCH
    result = run(
        "bench", "--workload", "cifar10-large", "--scale", str(scale), "--container", "lmdb",
        "--data", str(DIRECTORY), "--compute", "0s", *shape(ranks, SHAPES[ranks]), "--pfs", preset, *PLACES[preset],
        "--global-batch", str(batch), "--cold", "--skip-verify",
        "--repetitions", str(scope.repetitions), "--strategies", ROWS,
    )  # fmt: skip
    file = measured_file(scope, preset, ranks)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(result), encoding="utf-8")
    beside.replace(file)
    return file


def costs(scope: Scope) -> tuple[str, ...]:
    """Return the option that names the costs of this machine, measured once."""
    file = DIRECTORY / "validate" / "costs.toml"
    if scope.tiny:
        return ()
    if not file.exists():
        run("costs", "--output", str(file))
    return ("--costs", str(file))


def simulated(scope: Scope, preset: str, ranks: int, file: Path | None = None) -> Result | None:
    """Simulate a measured job; return None where it was not measured."""
    file = file or measured_file(scope, preset, ranks)
    return run("simulate", "--like", str(file), *costs(scope)) if file.exists() else None


def has_model(row: Result) -> bool:
    """Return whether a row was measured and simulated."""
    return row["status"] == "ok" and bool((row["simulated"] or {}).get("median"))


def judged(result: Result, name: str) -> list[Row]:
    """Return the rows of a result that were measured and simulated."""
    sizes = {
        "shape": name,
        "pfs": result["pfs"]["spec"]["name"],
        "time_scale": result["pfs"]["time_scale"],
        **{key: result[key] for key in ("ranks", "nodes", "steps")},
    }
    return [{**judge.judged(row), **sizes} for row in result["rows"] if has_model(row)]


def stored(scope: Scope) -> list[Row]:
    """Return the rows of all jobs that were measured."""
    found = []
    for name, (preset, ranks) in SIZES.items():
        if (result := simulated(scope, preset, ranks)) is not None:
            found += judged(result, name)
    if not found:
        raise SkipError("no job was measured: run the sections of the file systems first")
    return found


def bars(scope: Scope) -> list[Row]:
    """Shares of rows that agree, all jobs together."""
    return judge.bars(stored(scope))


def order(scope: Scope) -> list[Row]:
    """Kendall's tau between the measured and the simulated order of the rows of each job."""
    found = []
    for name, rows in by_shape(stored(scope)).items():
        tau, pairs = judge.tau(rows)
        met = None if tau is None else "yes" if tau >= judge.TAU else "no"
        found.append({"name": name, "tau": tau, "pairs": pairs, "bar": judge.TAU, "met": met})
    return found


def by_shape(rows: list[Row]) -> dict[str, list[Row]]:
    """Group rows by their job."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["shape"], []).append(row)
    return found


def misses(scope: Scope) -> list[Row]:
    """Each number that does not agree."""
    return judge.misses(stored(scope))


JOBS = {name: partial(compare, preset=preset, ranks=ranks) for name, (preset, ranks) in SIZES.items()}
STUDY = Study(
    sections={**JOBS, "bars": bars, "order": order, "misses": misses},
    groups={
        **{preset: tuple(f"{preset}-{ranks}" for ranks in SHAPES) for preset in PLACES},
        "judge": ("bars", "order", "misses"),
    },
)
