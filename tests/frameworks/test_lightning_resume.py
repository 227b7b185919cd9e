"""Lightning saves and restores the position of forebay.torch.loader, at any step."""

from __future__ import annotations

import random

import lightning.pytorch as pl
import pytest
import torch

import forebay.torch
from frameworks.torch_support import BATCH, STEPS, copying, ids_of, plain_loader, write_samples

EPOCHS = 3
STATES = 50

# Lightning and torch warn of their own code.
pytestmark = pytest.mark.filterwarnings("default")


class Model(pl.LightningModule):
    """A linear model that keeps what it was given: epoch, step and sample ids."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.seen = []
        self.validated = []

    def training_step(self, batch, step):
        self.seen.append((self.current_epoch, step, ids_of(batch)))
        return self.layer(batch["image"].flatten(1)).square().mean()

    def validation_step(self, batch, step):
        self.validated.append(ids_of(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Saving(pl.Callback):
    """Saves a checkpoint after each step, and at each end of an epoch."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *_):
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, *_):
        trainer.save_checkpoint(self.folder / f"epoch-{trainer.global_step}.ckpt")


def fit(folder, *loaders, checkpoint=None, **options):
    """Train; return the model."""
    model = Model()
    trainer = pl.Trainer(
        **{"max_epochs": EPOCHS, **options},
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, *loaders, ckpt_path=checkpoint, weights_only=False)
    return model


@pytest.fixture
def samples(tmp_path):
    return write_samples(tmp_path / "samples.npz")


@pytest.mark.parametrize("made", [forebay.torch.loader, copying], ids=["views", "copies"])
def test_from_50_random_steps_training_goes_on_as_if_it_had_never_stopped(samples, tmp_path, made):
    with made(plain_loader(samples)) as loader:
        expected = fit(tmp_path, loader, callbacks=[Saving(tmp_path)]).seen
    assert [one[:2] for one in expected] == [
        (epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)
    ]
    generator = random.Random(5)
    places = [generator.randrange(1, EPOCHS * STEPS) for _ in range(STATES)]
    checkpoints = [(place, f"step-{place}") for place in places]
    checkpoints += [(place, f"epoch-{place}") for place in (STEPS, 2 * STEPS)]
    with made(plain_loader(samples, name="resumed")) as loader:
        for place, name in checkpoints:
            model = fit(tmp_path, loader, checkpoint=tmp_path / f"{name}.ckpt")
            assert model.seen == expected[place:], name


def test_validation_beside_training_sees_its_samples_each_time(samples, tmp_path):
    with (
        forebay.torch.loader(plain_loader(samples)) as training,
        forebay.torch.loader(
            samples, BATCH, order="sequential", name="valid", node_memory="16MiB"
        ) as validation,
    ):
        model = fit(tmp_path, training, validation, val_check_interval=STEPS // 2, num_sanity_val_steps=2)
    of_an_epoch = [list(range(first, first + BATCH)) for first in range(0, BATCH * STEPS, BATCH)]
    assert model.validated == of_an_epoch[:2] + 2 * EPOCHS * of_an_epoch
    assert sorted(number for _, _, ids in model.seen[:STEPS] for number in ids) == list(range(BATCH * STEPS))
