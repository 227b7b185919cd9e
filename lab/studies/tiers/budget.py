"""A training that may run for a fixed time: epochs and loss with and without a tier.

In order, for each step length, seven times and in turns: a network of numpy (that of `forebay
demo`) is trained on images of a file on the emulated source until the time is over. The images are
stored large, as photographs are: the source takes longer than the training.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from forebay_lab.bench.turns import in_turn
from forebay_lab.demo.data import digits, pad, part, vary
from studies.harness.sections import Row, Scope
from studies.harness.tiered import IDLE_S, Mounts, mounts

RUNS = 7
SECONDS = 6.0
SAMPLES = 3_200
PADDED_BYTES = 60_000
"""Of an image as it is stored."""
STEPS = {"reading is all": 0.0, "a step computes": 0.04}


def budget(scope: Scope) -> list[Row]:
    """Epochs done in the time, and the loss after equal epochs."""
    path = images(scope)
    rows: list[Row] = []
    with mounts(path.parent) as place:
        for name, compute_s in STEPS.items():

            def run(kind: str, place: Mounts = place, compute_s: float = compute_s) -> Row:
                tier = f"{tempfile.mkdtemp(dir=place.tier)}:2GiB" if kind == "tier" else ""
                before = place.source_bytes()
                trained = train(place, path.name, tier, scope.pick(SECONDS, 2.0), compute_s)
                return trained | {"source_bytes": place.source_bytes() - before}

            kinds = {kind: partial(run, kind) for kind in ("no tier", "tier")}
            found = in_turn(kinds, scope.pick(RUNS, 1), warm_ups=0)
            least = min(len(run["losses"]) for runs in found.values() for run in runs)
            curves = {tuple(run["losses"][:least]) for runs in found.values() for run in runs}
            for kind, runs in found.items():
                epochs = [run["epochs"] for run in runs]
                rows.append(
                    {
                        "name": name,
                        "kind": kind,
                        "epochs": statistics.median(epochs),
                        "least_epochs": min(epochs),
                        "most_epochs": max(epochs),
                        "loss": statistics.median(run["losses"][-1] for run in runs),
                        "common_epochs": least,
                        "same_losses": "yes" if len(curves) == 1 else "no",
                        "source_gb": statistics.median(run["source_bytes"] for run in runs) / 1e9,
                        "cpu_seconds": statistics.median(run["cpu_seconds"] for run in runs),
                        "pss_mib": statistics.median(run["pss_mib"] for run in runs),
                    }
                )
    return rows


def train(place: Mounts, name: str, tier: str, seconds: float, compute_s: float) -> Row:
    """Train in a process of its own (`training.py`)."""
    environment = os.environ | {"FOREBAY_TIERS_IDLE": IDLE_S, "FOREBAY_TIERS": tier}
    words = (
        "-m",
        "studies.tiers.training",
        place.source / name,
        seconds,
        compute_s,
        place.source,
        place.tier,
    )
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: Row = json.loads(done.stdout)
    return answer


def images(scope: Scope) -> Path:
    """Digits of scikit-learn, each in a record that is as long as a photograph."""
    count = scope.pick(SAMPLES, 640)
    path = scope.directory / "budget" / f"digits-{count}.npy"
    if path.exists():
        return path
    enlarged, labels = digits()
    training, _ = part(labels, 0)
    generator = np.random.default_rng(2)
    numbers = generator.integers(0, len(training), count)
    pixels = vary(pad(enlarged[training]), numbers, generator).reshape(count, -1)
    stored = generator.integers(0, 256, (count, PADDED_BYTES), np.uint8)
    stored[:, 0] = labels[training[numbers]]
    stored[:, 1 : 1 + pixels.shape[1]] = pixels
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, stored)
    return path
