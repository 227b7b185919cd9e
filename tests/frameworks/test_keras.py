"""Keras trains from a dataset of batches; a backup resumes exactly."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import forebay

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="tensorflow-cpu could not be had")

import keras

import forebay.tensorflow

STEPS = 12
EPOCHS = 3

# Keras and TensorFlow warn of their own defaults and arrays.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*shuffle=True.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("keras") / "train.npz"
    random = np.random.default_rng(1)
    np.savez(path, x=random.random((96, 5), np.float32), y=random.random(96, np.float32))
    return path


@pytest.fixture
def make(path):
    """Make loaders of pairs that are closed after the test."""
    loaders = []

    def make(**options):
        options = {"order": "shuffle", "seed": 2, "node_memory": "16MiB", "workers": 2, **options}
        loaders.append(forebay.Loader(path, 8, transform=pair, **options))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def pair(sample, rng):
    return sample["x"] + rng.random(dtype=np.float32), sample["y"]


def model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def weights(model):
    return [value.tolist() for value in model.get_weights()]


def epoch_by_epoch(model, loader, callbacks):
    """Train as docs/tensorflow.md says for backups within an epoch."""
    while loader.epoch < EPOCHS:
        epoch = loader.epoch
        dataset = forebay.tensorflow.dataset(loader)
        model.fit(dataset, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=callbacks)


def test_fit_trains_on_each_batch_of_each_epoch_and_validates(make):
    loader, test = make(), make(name="test", order="sequential")
    dataset = forebay.tensorflow.dataset(loader)
    history = (
        model()
        .fit(dataset, validation_data=forebay.tensorflow.dataset(test), epochs=EPOCHS, verbose=0)
        .history
    )
    assert len(history["loss"]) == len(history["val_loss"]) == EPOCHS
    assert history["loss"][-1] < history["loss"][0]
    assert loader.state_dict()["epoch"] + (loader.state_dict()["step"] == STEPS) == EPOCHS


def test_fit_with_an_endless_dataset_has_epochs_of_any_length(make):
    loader = make()
    trained = model()
    trained.fit(forebay.tensorflow.dataset(loader, endless=True), steps_per_epoch=9, epochs=4, verbose=0)
    same = model()
    epoch_by_epoch(same, make(name="other"), [])
    assert weights(trained) == weights(same)


class Stop(keras.callbacks.Callback):
    """Ends the training with an exception after a number of batches."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if not self.batches:
            raise InterruptedError


@pytest.fixture(scope="module")
def uninterrupted(path):
    trained = model()
    with forebay.Loader(path, 8, transform=pair, order="shuffle", seed=2, node_memory="16MiB") as loader:
        dataset = forebay.tensorflow.dataset(loader)
        trained.fit(dataset, epochs=EPOCHS, verbose=0)
    return weights(trained)


@pytest.mark.parametrize("batches", [1, 5, 12, 17, 24, 30])
def test_training_resumes_exactly_within_an_epoch(make, tmp_path, uninterrupted, batches):
    loader = make()
    trained, backup = model(), forebay.tensorflow.Backup(tmp_path, loader, save_freq=1)
    assert backup.restore(trained) == 0
    with pytest.raises(InterruptedError):
        epoch_by_epoch(trained, loader, [backup, Stop(batches)])
    # As another process would.
    again = make(name="again")
    resumed, backup = model(), forebay.tensorflow.Backup(tmp_path, again, save_freq=5)
    assert backup.restore(resumed) == batches // STEPS
    epoch_by_epoch(resumed, again, [backup])
    assert weights(resumed) == uninterrupted
    assert len(list(tmp_path.glob("*.weights.h5"))) == 1


def test_training_resumes_exactly_between_epochs_with_one_fit(make, tmp_path, uninterrupted):
    loader = make()
    trained, backup = model(), forebay.tensorflow.Backup(tmp_path, loader)
    with pytest.raises(InterruptedError):
        trained.fit(
            forebay.tensorflow.dataset(loader), epochs=EPOCHS, verbose=0, callbacks=[backup, Stop(20)]
        )
    again = make(name="again")
    resumed, backup = model(), forebay.tensorflow.Backup(tmp_path, again)
    epoch = backup.restore(resumed)
    assert epoch == 1
    resumed.fit(
        forebay.tensorflow.dataset(again), initial_epoch=epoch, epochs=EPOCHS, verbose=0, callbacks=[backup]
    )
    assert weights(resumed) == uninterrupted


def test_a_backup_of_an_epoch_that_was_broken_off_is_refused(make, tmp_path):
    loader = make()
    backup = forebay.tensorflow.Backup(tmp_path, loader)
    dataset = forebay.tensorflow.dataset(loader).take(3)
    with pytest.raises(forebay.OptionError, match="epoch 0 was broken off"):
        model().fit(dataset, epochs=2, verbose=0, callbacks=[backup])


def test_a_model_that_is_trained_on_other_data_gets_no_backup(make, tmp_path):
    backup = forebay.tensorflow.Backup(tmp_path, make())
    other = forebay.tensorflow.dataset(make(name="other"))
    with pytest.raises(forebay.OptionError, match="which this loader did not deliver"):
        model().fit(other, verbose=0, callbacks=[backup])


def test_damaged_backups_and_wrong_arguments_are_named(make, tmp_path):
    loader = make()
    (tmp_path / "backup.json").write_text(json.dumps({"state": {}}))
    with pytest.raises(forebay.FormatError, match=r"backup\.json: expected a backup"):
        forebay.tensorflow.Backup(tmp_path, loader).restore(model())
    with pytest.raises(forebay.OptionError, match="save_freq="):
        forebay.tensorflow.Backup(tmp_path, loader, save_freq=0)
    with pytest.raises(forebay.OptionError, match=r"expected a forebay\.Loader"):
        forebay.tensorflow.Backup(tmp_path, forebay.tensorflow.dataset(loader))
