"""Train and validate with Lightning, stop in the middle of an epoch, and continue exactly there.

    pip install lightning
    python examples/lightning_datamodule.py

Lightning stores the state of the training loader in its checkpoints, and restores it from them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

import forebay.torch

SAMPLES, CLASSES, BATCH, EPOCHS = 512, 4, 16, 2
# The first training is stopped after this many steps.
STOP_AFTER = 45


class Images(pl.LightningDataModule):
    """Images and labels from two numpy files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.loaders: list[forebay.torch.TensorLoader] = []

    def loader(self, name: str, order: str) -> forebay.torch.TensorLoader:
        """Make a loader; loaders that live at the same time have their own names."""
        loader = forebay.torch.loader(
            self.folder / f"{name}.npz", BATCH, order=order, name=name, transform=self.prepare, workers=2
        )
        self.loaders.append(loader)
        return loader

    def prepare(self, sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
        """Add noise to an image."""
        return {
            "image": sample["image"] + rng.normal(0, 0.1, (8, 8)).astype("float32"),
            "label": sample["label"],
        }

    def train_dataloader(self) -> forebay.torch.TensorLoader:
        """Return the loader of the training."""
        return self.loader("train", "shuffle")

    def val_dataloader(self) -> forebay.torch.TensorLoader:
        """Return the loader of the validation."""
        return self.loader("valid", "sequential")

    def teardown(self, stage: str) -> None:
        """Close the loaders at the end of the training."""
        for loader in self.loaders:
            loader.close()
        self.loaders.clear()


class Classifier(pl.LightningModule):
    """A linear classifier that keeps the sample ids of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, CLASSES)
        self.steps: list[list[int]] = []

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(self.layer(batch["image"].flatten(1)), batch["label"])

    def training_step(self, batch: forebay.torch.TensorBatch, step: int) -> torch.Tensor:
        """Train on a batch."""
        self.steps.append(batch.indices.tolist())
        return self.loss(batch)

    def validation_step(self, batch: forebay.torch.TensorBatch, step: int) -> None:
        """Validate on a batch."""
        self.log("valid_loss", self.loss(batch), batch_size=BATCH)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class StopAfter(pl.Callback):
    """Saves a checkpoint after a number of steps and stops, as a job does that runs out of time."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save and stop."""
        if trainer.global_step == STOP_AFTER:
            trainer.save_checkpoint(self.checkpoint)
            trainer.should_stop = True


def train(folder: Path, checkpoint: Path | None = None, callback: pl.Callback | None = None) -> Classifier:
    """Train, from the checkpoint if there is one."""
    torch.manual_seed(0)
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=callback,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=Images(folder), ckpt_path=checkpoint)
    return model


def main() -> None:
    """Compare a training that was stopped with one that was not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for split, samples in (("train", SAMPLES), ("valid", SAMPLES // 4)):
            images = rng.random((samples, 8, 8), "float32")
            np.savez(folder / f"{split}.npz", image=images, label=rng.integers(0, CLASSES, samples))
        whole = train(folder)
        stopped = train(folder, callback=StopAfter(folder / "stopped.ckpt"))
        resumed = train(folder, checkpoint=folder / "stopped.ckpt")
    assert len(stopped.steps) == STOP_AFTER
    assert stopped.steps + resumed.steps == whole.steps
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    print(f"{len(whole.steps)} steps, stopped after {STOP_AFTER}: the same weights as without a stop")


if __name__ == "__main__":
    main()
