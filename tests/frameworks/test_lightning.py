"""Lightning trains from a loader: it probes loaders, validates first, and sees each epoch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

import forebay
import forebay.torch
from frameworks.torch_support import copying

RECORDS = 100
BATCH = 10
EPOCHS = 3

# Lightning and torch warn of their own code; what this package warns of is looked at by itself.
pytestmark = pytest.mark.filterwarnings("default")


def tensors(batch):
    """Return a batch as tensors, with its sample ids."""
    return {
        "values": torch.from_numpy(batch["data"]).float() / 255,
        "ids": torch.from_numpy(batch.indices),
    }


class Model(pl.LightningModule):
    """A linear model that keeps the sample ids of what it was given."""

    def __init__(self, loader: forebay.Loader) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(300, 1)
        self.loader = loader
        # By epoch of training: the epochs that the loader said, and the ids of each step.
        self.said: list[set[int]] = []
        self.trained: list[list[list[int]]] = []
        # By validation: the ids.
        self.validated: list[list[int]] = []

    def on_train_epoch_start(self):
        self.said.append(set())
        self.trained.append([])

    def training_step(self, batch, step):
        self.said[-1].add(self.loader.epoch)
        self.trained[-1].append(batch["ids"].tolist())
        return self.layer(batch["values"]).square().mean()

    def on_validation_epoch_start(self):
        self.validated.append([])

    def validation_step(self, batch, step):
        self.validated[-1] += batch["ids"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(folder: Path, model: Model, *loaders: forebay.Loader, **options) -> list[str]:
    """Train on the CPU; return the warnings that this package gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **options,
        )
        trainer.fit(model, *loaders)
    assert trainer.state.finished
    own = os.fspath(Path(forebay.__file__).parent)
    return [
        str(one.message) for one in caught if one.filename.startswith(own) or "loader " in str(one.message)
    ]


@pytest.fixture
def expected(small_lmdb):
    """The steps of the epochs that are trained and of the next one, by their ids."""
    with forebay.Loader(
        small_lmdb, BATCH, order="shuffle", seed=4, node_memory="16MiB", name="plain"
    ) as plain:
        return [[batch.indices.tolist() for batch in plain] for _ in range(EPOCHS + 1)]


@pytest.fixture
def training(small_lmdb):
    with forebay.Loader(
        small_lmdb, BATCH, order="shuffle", seed=4, node_memory="16MiB", batch_transform=tensors
    ) as training:
        yield training


def check_epochs(model, expected):
    """Check that training saw the first epochs, each sample once in each."""
    assert model.trained == expected[:EPOCHS]
    for steps in model.trained:
        assert sorted(number for ids in steps for number in ids) == list(range(RECORDS))
    assert model.said == [{epoch} for epoch in range(EPOCHS)]


def test_training_sees_the_first_epochs_and_each_sample_once_in_each(tmp_path, training, expected):
    model = Model(training)
    assert fit(tmp_path, model, training) == []
    check_epochs(model, expected)
    # Lightning counts steps and never asks for what comes after the last one; the next epoch
    # follows all the same.
    assert [batch["ids"].tolist() for batch in training] == expected[EPOCHS]


def test_validation_checked_before_training_does_not_move_the_loaders(
    tmp_path, small_lmdb, training, expected
):
    with forebay.Loader(
        small_lmdb, BATCH, order="sequential", node_memory="16MiB", batch_transform=tensors, name="validation"
    ) as validation:
        model = Model(training)
        assert fit(tmp_path, model, training, validation, num_sanity_val_steps=2) == []
    check_epochs(model, expected)
    # Two steps of the check, then all of it after each epoch.
    assert model.validated == [list(range(2 * BATCH)), *[list(range(RECORDS))] * EPOCHS]


def test_an_epoch_that_is_cut_short_is_followed_by_the_next(tmp_path, training, expected):
    model = Model(training)
    assert fit(tmp_path, model, training, limit_train_batches=3) == []
    assert model.trained == [steps[:3] for steps in expected[:EPOCHS]]


@pytest.mark.parametrize(
    "wrap", [lambda loader: loader, forebay.torch.loader, copying], ids=["plain", "torch", "copying"]
)
def test_overfitting_sees_the_same_batches_in_each_epoch(tmp_path, small_lmdb, training, expected, wrap):
    with (
        forebay.Loader(
            small_lmdb,
            BATCH,
            order="shuffle",
            node_memory="16MiB",
            batch_transform=tensors,
            name="validation",
        ) as validation,
    ):
        model = Model(training)
        options = {"overfit_batches": 3, "num_sanity_val_steps": 0}
        assert fit(tmp_path, model, wrap(training), wrap(validation), **options) == []
    assert model.trained == [expected[0][:3]] * EPOCHS
    assert len(model.validated) == EPOCHS
    assert len(model.validated[0]) == 3 * BATCH
    assert len({tuple(ids) for ids in model.validated}) == 1
