"""Train a model once per order and seed: ``learn.py FOLDER EPOCHS SEEDS ANSWER ORDER ...``.

A rank of MPI; each is a node of its own, by name. All ranks sum their gradients after each step.
Rank 0 writes, for each order and seed, loss and accuracy on images that no rank has trained on,
after each epoch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import forebay
from forebay_lab.demo.data import CHANNELS, HEIGHT, WIDTH
from forebay_lab.demo.model import Model
from studies.store.own_samples import world_of_nodes

GLOBAL_BATCH = 256
RATE = 0.03
HALF = "8MiB"
"""Of each of four nodes: they keep about half of the images."""
SHAPE = (-1, CHANNELS, HEIGHT, WIDTH)


def main() -> None:
    """Train in each order with each seed."""
    folder, epochs, seeds, answer, *orders = sys.argv[1:]
    comm = MPI.COMM_WORLD
    with np.load(Path(folder) / "held-out.npz") as file:
        held_out = file["image"], file["label"]
    runs = [
        {"order": order, "seed": seed}
        | train(comm, Path(folder) / "sorted.npy", order, seed, int(epochs), held_out)
        for order in orders
        for seed in range(int(seeds))
    ]
    if comm.rank == 0:
        Path(answer).write_text(json.dumps(runs))


def train(comm, path, order, seed, epochs, held_out) -> dict[str, list[float]]:
    """Train one model from the seed; return what it reaches after each epoch."""
    batch = GLOBAL_BATCH // comm.size
    model = Model(batch, comm.size, seed)
    total = np.zeros_like(model.gradient)
    found: dict[str, list[float]] = {"losses": [], "accuracies": []}
    options = {"order": order, "seed": seed, "node_memory": "64MiB", "last_batch": "drop"}
    if order.startswith("opportunistic"):
        options["store"] = HALF
    with forebay.Loader(path, batch, world=world_of_nodes(comm, f"{order}-{seed}"), **options) as loader:
        for _ in range(epochs):
            for one in loader:
                rows = next(iter(one.values()))
                model.learn(np.ascontiguousarray(rows[:, 1:]).reshape(SHAPE), rows[:, 0].astype(np.int64))
                comm.Allreduce(model.gradient, total)
                model.step(total, RATE)
            found["losses"].append(loss(model, batch, *held_out))
            found["accuracies"].append(model.accuracy(*held_out))
    return found


def loss(model: Model, batch: int, images: np.ndarray, labels: np.ndarray) -> float:
    """Mean loss over whole batches of images."""
    losses = []
    for first in range(0, len(labels) - batch + 1, batch):
        model.learn(images[first : first + batch], labels[first : first + batch])
        losses.append(float(model.gradient[-1]))
    return float(np.mean(losses))


if __name__ == "__main__":
    main()
