"""LMDBIO (docs/papers.md): its steps, CIFAR10 with AlexNet, on `bebop`."""

from __future__ import annotations

from studies.harness.sections import MIB, Result, Row, Scope, run

PUBLISHED = {
    "lmm-dm": 6.7,
    "lmm-dio": 17.2,
    "lmm-dio-prov": 19.4,
    "lmm-dio-prov-coal": 21.9,
    "lmm-dio-prov-coal-stag": 81.0,
}
"""Times as fast as LMDB: LMDBIO, figures 17a, 18a, 20a, 21a and 22a."""
FACTORS_AT = 4608
"""Ranks at which these are published."""

RANKS = (36, 576, FACTORS_AT)
SAMPLES_SHARE = 512 * 18_432 / 50_000_000
"""Of CIFAR10-Large: the 512 steps that the paper trains."""

TINY = ("--scale", "0.002", "--global-batch", "512", "--ranks", "4,8", "--ranks-per-node", "2")


def simulated(scope: Scope) -> Result:
    """Simulate the steps at several numbers of ranks."""
    whole = (
        "--scale",
        f"{SAMPLES_SHARE:.8f}",
        "--ranks",
        ",".join(map(str, RANKS)),
        "--ranks-per-node",
        "36",
    )
    return run(
        "simulate", "--workload", "cifar10-large", "--pfs", "bebop", "--strategies", "ladder",
        "--seeds", str(scope.repetitions), *scope.pick(whole, TINY),
    )  # fmt: skip


def ladder(scope: Scope) -> list[Row]:
    """Steps of LMDBIO: time of a step, factors over LMDB, bytes against those of the samples."""
    found = []
    for point in simulated(scope)["points"]:
        done = {row["name"].partition("@")[0]: row for row in point["rows"] if row["status"] == "ok"}
        base = _step_seconds(done["lmdb"])
        for name, row in done.items():
            least, most = row["range"]["wall_seconds"]
            middle = row["median"]
            found.append(
                {
                    "name": name,
                    "ranks": point["ranks"],
                    "step_ms": 1e3 * _step_seconds(row),
                    "step_ms_low": 1e3 * least / row["steps"],
                    "step_ms_high": 1e3 * most / row["steps"],
                    "factor": base / _step_seconds(row),
                    "published": PUBLISHED.get(name) if point["ranks"] == FACTORS_AT else None,
                    "exposed_share": middle["exposed_seconds"] / middle["wall_seconds"],
                    "skew_share": middle["skew_seconds"] / middle["wall_seconds"],
                    "amplification": middle["storage_bytes"] / middle["requested_bytes"],
                    "seeks_per_step": row["seeks"] / row["steps"],
                    "mib_per_rank": middle["storage_bytes"] / MIB / point["ranks"],
                }
            )
    return found


def _step_seconds(row: Result) -> float:
    return float(row["median"]["wall_seconds"] / row["steps"])


SECTIONS = {"lmdbio-ladder": ladder}
