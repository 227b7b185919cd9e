"""The effect of the order on a training: a two-layer network on real digits, several seeds.

The images are scikit-learn's handwritten digits, varied as those of `forebay demo`; the held-out
ones are never trained on. They are kept in two npz files of the same samples: mixed, as datasets
are written that care, and sorted by class, as they should not be. A seed decides the first weights
and the shuffles. The orders: all samples shuffled; Forebay's group order as it is by default; and
the paper's, where each of P processes goes through groups of B samples, shuffled inside: one
process, and 16, its fewest.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

import forebay
from forebay import Group
from forebay_lab.bench.turns import student_quantile
from forebay_lab.demo import data
from forebay_lab.demo.model import Model
from studies.harness.sections import Row, Scope

SEEDS, EPOCHS, BATCH, SAMPLES = 5, 8, 64, 20_000
TINY = (2, 2, 64, 2_048)
RATE = 0.05
B = 512
"""Samples of a group of the paper's order: 39 groups."""
ORDERS = {
    "shuffle": "shuffle",
    "group": "group",
    f"group, B {B}, P 16": Group(samples=B, window=1, lanes=16),
    f"group, B {B}, P 1": Group(samples=B, window=1, lanes=1),
}


def accuracy(scope: Scope) -> list[Row]:
    """Accuracy on held-out images per epoch, global against group shuffle: means and noise."""
    seeds, epochs, batch, samples = scope.pick((SEEDS, EPOCHS, BATCH, SAMPLES), TINY)
    paths, images, labels = digits(scope.directory, samples)
    rows: list[Row] = []
    for layout, path in paths.items():
        base = None
        for name, order in ORDERS.items():
            found = np.array(
                [train(path, order, seed, epochs, batch, images, labels) for seed in range(seeds)]
            )
            means, last = found.mean(axis=0), found[:, -1]
            base = last if base is None else base
            curve = {f"epoch_{epoch + 1}": float(mean) for epoch, mean in enumerate(means)}
            final = {"final": float(last.mean()), "final_sd": float(last.std(ddof=1))}
            rows.append({"layout": layout, "order": name, **curve, **final, **against(base, last)})
    return rows


def against(base: np.ndarray, last: np.ndarray) -> Row:
    """Compare two sets of final accuracies: the difference, Welch's t, the 95 % verdict."""
    if base is last:
        return {}
    difference = float(last.mean() - base.mean())
    variances = [float(one.var(ddof=1)) / len(one) for one in (base, last)]
    error = math.sqrt(sum(variances))
    if error == 0:
        return {"difference": difference, "within_noise": "yes" if difference == 0 else "no"}
    freedom = error**4 / sum(variance**2 / (len(base) - 1) for variance in variances)
    within = abs(difference / error) <= student_quantile(freedom)
    return {
        "difference": difference,
        "welch_t": difference / error,
        "within_noise": "yes" if within else "no",
    }


def train(
    path: Path, order: str | Group, seed: int, epochs: int, batch: int, images: np.ndarray, labels: np.ndarray
) -> list[float]:
    """Accuracy after each epoch."""
    model = Model(batch, 1, seed)
    found = []
    with forebay.Loader(
        path, batch, order=order, seed=seed, expected_epochs=epochs, last_batch="drop", world="single"
    ) as loader:  # fmt: skip
        for _ in range(epochs):
            for taken in loader:
                model.learn(taken["image"], taken["label"])
                model.step(model.gradient, RATE)
            found.append(model.accuracy(images, labels))
    return found


def digits(directory: Path, samples: int) -> tuple[dict[str, Path], np.ndarray, np.ndarray]:
    """Make the two files; return them with the images and labels that are held out."""
    enlarged, classes = data.digits()
    training, held_out = data.part(classes, 0)
    generator = np.random.default_rng(2)
    numbers = generator.integers(0, len(training), size=samples)
    image, label = data.vary(data.pad(enlarged[training]), numbers, generator), classes[training[numbers]]
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for layout, places in {"mixed": np.arange(samples), "sorted": np.argsort(label, kind="stable")}.items():
        paths[layout] = directory / f"digits-{samples}-{layout}.npz"
        np.savez(paths[layout], image=image[places], label=label[places])
    return paths, data.render(enlarged[held_out]), classes[held_out]
