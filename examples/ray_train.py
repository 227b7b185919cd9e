"""Train on the workers of Ray Train, each with a loader of its own, and resume from a checkpoint.

    pip install 'ray[train]' torch
    python examples/ray_train.py

Ray starts the workers and initialises torch.distributed in each; Forebay finds the ranks there. So
each worker makes its loader inside the training function, and gets its part of every global batch.
Ray Data is not involved: the loader reads the files that the worker sees.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

import forebay.torch

WORKERS, SAMPLES, BATCH, EPOCHS = 2, 640, 16, 2
STEPS = SAMPLES // (BATCH * WORKERS)
# The first training ends after this many steps.
STOP_AFTER = STEPS + 7


def train(config: dict[str, Any]) -> None:
    """Train on one worker, from the checkpoint if there is one."""
    context = ray.train.get_context()
    model: Any = prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, losses, steps = Path(config["checkpoint"]), [], 0
    with forebay.torch.loader(config["data"], BATCH, order="shuffle", expected_epochs=EPOCHS) as loader:
        world = loader.loader.world
        # The ranks of Ray and those of Forebay are the same.
        assert (world.rank, world.size) == (context.get_world_rank(), context.get_world_size())
        assert len(loader) == STEPS
        if checkpoint.exists():
            state = torch.load(checkpoint)
            model.load_state_dict(state["model"])
            loader.load_state_dict(state["loader"])
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                # Which samples this worker got: all of them together are the dataset.
                with Path(config["seen"], f"{epoch}-{world.rank}").open("a") as seen:
                    seen.writelines(f"{number}\n" for number in batch.indices)
                steps += 1
                if steps == config["stop_after"]:
                    if world.rank == 0:
                        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint)
                    ray.train.report({"loss": losses[-1], "steps": steps})
                    return
    ray.train.report({"loss": losses[-1], "steps": steps})


def main() -> None:
    """Train, stop in the middle of an epoch, and train the rest."""
    with tempfile.TemporaryDirectory() as folder:
        data, seen = Path(folder, "train.npz"), Path(folder, "seen")
        seen.mkdir()
        rng = np.random.default_rng(0)
        labels = np.arange(SAMPLES) % 10
        np.savez(data, image=rng.random((SAMPLES, 64), np.float32), label=labels)
        ray.init(num_cpus=WORKERS, include_dashboard=False)
        try:
            for name, stop_after in (("stopped", STOP_AFTER), ("resumed", None)):
                TorchTrainer(
                    train,
                    train_loop_config={
                        "data": str(data),
                        "seen": str(seen),
                        "checkpoint": str(Path(folder, "checkpoint.pt")),
                        "stop_after": stop_after,
                    },
                    scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
                    run_config=ray.train.RunConfig(name=name, storage_path=str(Path(folder, "ray"))),
                ).fit()
        finally:
            ray.shutdown()
        for epoch in range(EPOCHS):
            parts = [Path(seen, f"{epoch}-{rank}").read_text().split() for rank in range(WORKERS)]
            ids = sorted(int(number) for part in parts for number in part)
            assert ids == list(range(SAMPLES)), "a sample is missing or came twice"
        print(
            f"{WORKERS} workers, {EPOCHS} epochs, stopped after {STOP_AFTER} steps: each sample once per epoch"
        )


if __name__ == "__main__":
    main()
