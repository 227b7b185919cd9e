"""Small samples at thousands of ranks: what reads, and what holds the data (docs/store.md).

The job is that of LMDBIO's figures: CIFAR10-Large, 18,432 samples per step, 36 ranks per node.
"""

from __future__ import annotations

from functools import partial

from studies.harness.sections import Result, Row, Scope, run

FILE_SYSTEMS = ("lustre-hdd", "bebop", "gpfs", "nfs", "lustre-ssd")
RANKS = (9216, 1024)

READING = ("lmm-dio-prov@sequential", "forebay@sequential", "forebay@group")
READING_STEPS = 512
"""Those that the paper trains. In fewer, what is read ahead at the start decides."""
HELD = ("store@sequential", "store@shuffle")
HELD_STEPS = 8
"""Once the shares are loaded all steps are alike."""

WHOLE = ("--global-batch", "18432", "--ranks-per-node", "36")
TINY = ("--scale", "0.002", "--global-batch", "512", "--ranks-per-node", "2")


def jobs(scope: Scope, pfs: str) -> list[Row]:
    """Small samples at thousands of ranks: start-up, time of a step, and jobs made of them."""
    found = []
    for ranks in scope.pick(RANKS, (4,)):
        for rows, steps in ((READING, READING_STEPS), (HELD, HELD_STEPS)):
            result = run(
                "simulate", "--workload", "cifar10-large", "--pfs", pfs, "--ranks", str(ranks),
                "--steps", str(scope.pick(steps, 4)), "--strategies", ",".join(rows),
                "--seeds", str(scope.repetitions), *scope.pick(WHOLE, TINY),
            )  # fmt: skip
            done = [row for row in result["points"][0]["rows"] if row["status"] == "ok"]
            found += [_row(row, pfs, result) for row in done]
    return found


def _row(row: Result, pfs: str, result: Result) -> Row:
    point, middle, steps = result["points"][0], row["median"], row["steps"]
    startup, step = middle["startup_seconds"], middle["wall_seconds"] / steps
    least, most = row["range"]["wall_seconds"]
    epoch = -(-result["dataset"]["samples"] // point["global_batch"])
    return {
        "name": row["name"],
        "pfs": pfs,
        "ranks": point["ranks"],
        "startup_s": startup,
        "step_ms": 1e3 * step,
        "step_ms_low": 1e3 * least / steps,
        "step_ms_high": 1e3 * most / steps,
        "job_s": startup + READING_STEPS * step,
        "epoch_s": startup + epoch * step,
        "epochs_s": startup + 2 * epoch * step,
        "seeks": row["seeks"],
    }


SECTIONS = {f"search-{pfs}": partial(jobs, pfs=pfs) for pfs in FILE_SYSTEMS}
