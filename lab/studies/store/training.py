"""What orders do to a training: loss and accuracy on held-out images, with several seeds.

The model of `forebay demo` learns digits of scikit-learn, varied, from a file that is sorted by
class, on four nodes of one rank. A seed chooses the first weights and the order.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

from forebay_lab.demo.data import digits, pad, part, vary
from forebay_lab.ranks import launch
from studies.harness.sections import Row, Scope
from studies.store.local_tiers import DEADLINE_S, NODES

ORDERS = (
    "shuffle", "local-shuffle", "local-shuffle:steps=8", "opportunistic", "opportunistic:entropy=0.8",
    "opportunistic:entropy=0.88", "opportunistic:entropy=0.9",
    "group:samples=64,window=4", "sequential",
)  # fmt: skip
"""Of so little data, the groups of `group` would be single samples by default."""
SAMPLES, HELD_OUT = 20_000, 4_096
EPOCHS, SEEDS = 5, 5


def training(scope: Scope) -> list[Row]:
    """Loss and accuracy after the last epoch: mean and standard deviation over the seeds."""
    folder = sorted_images(scope)
    epochs, seeds = scope.pick(EPOCHS, 1), scope.pick(SEEDS, 2)
    with tempfile.TemporaryDirectory(prefix="forebay-study-") as place:
        answer = Path(place) / "answer.json"
        words = ("-m", "studies.store.learn", folder.resolve(), epochs, seeds, answer, *ORDERS)
        launch.run(
            launch.command(NODES, [str(word) for word in words]), deadline_s=DEADLINE_S,
            progress=lambda done: None,
        )  # fmt: skip
        runs = json.loads(answer.read_text("utf-8"))
    rows: list[Row] = []
    for order in ORDERS:
        row: Row = {"order": order, "seeds": seeds, "epochs": epochs}
        for key, name in (("losses", "loss"), ("accuracies", "accuracy")):
            last = [run[key][-1] for run in runs if run["order"] == order]
            row |= {name: statistics.mean(last), f"{name}_deviation": statistics.stdev(last)}
        rows.append(row)
        for name in ("loss", "accuracy"):
            difference = abs(row[name] - rows[0][name])
            row[f"{name}_difference"] = difference / (rows[0][f"{name}_deviation"] or 1.0)
    return rows


def sorted_images(scope: Scope) -> Path:
    """Varied digits in the order of their classes, and others of images that are not among them."""
    count = scope.pick(SAMPLES, 2_560)
    folder = scope.directory / f"sorted-{count}"
    if folder.exists():
        return folder
    images, labels = digits()
    padded = pad(images)
    generator = np.random.default_rng(3)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    for numbers, wanted in zip(part(labels, 0), (count, HELD_OUT), strict=True):
        chosen = generator.choice(numbers, wanted)
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
        images = vary(padded, chosen, generator)
        if wanted == count:
            stored = np.empty((count, 1 + images[0].size), np.uint8)
            stored[:, 0], stored[:, 1:] = labels[chosen], images.reshape(count, -1)
            np.save(partial / "sorted.npy", stored)
        else:
            np.savez(partial / "held-out.npz", image=images, label=labels[chosen])
    partial.rename(folder)
    return folder
