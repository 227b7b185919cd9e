"""Train a Keras model from TFRecord files, stop, and continue with the next batch.

    pip install tensorflow
    python examples/keras_tfrecord.py

The files hold `tf.train.Example` records with a JPEG image and a label.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import forebay
import forebay.tensorflow

CLASSES, SHARDS, IMAGES, SIZE, BATCH, EPOCHS = 10, 2, 32, 32, 8, 2
# The first training is stopped in this batch.
STOP_AT = 5


def prepare(sample: dict[str, Any], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Decode an image and flip half of all images; threads call it ahead of the training."""
    image = tf.io.decode_jpeg(sample["image"].tobytes(), channels=3)
    image = tf.image.resize(image, (SIZE, SIZE)).numpy() / 255
    return image[:, ::-1] if rng.random() < 0.5 else image, sample["label"]


def make_model() -> keras.Model:
    """Make a small classifier, the same each time."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(8, 3, strides=2), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), *layers, keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(data: list[Path], backups: Path, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
    """Train from the backup, if there is one; return the weights."""
    model = make_model()
    with forebay.Loader(
        data, BATCH, order="group", transform=prepare, workers=2, expected_epochs=EPOCHS
    ) as loader:
        backup = forebay.tensorflow.Backup(backups, loader, save_freq=2)
        backup.restore(model)
        # An epoch per call, so that the rest of a restored one is an epoch of its own.
        for epoch in range(loader.epoch, EPOCHS):
            dataset = forebay.tensorflow.dataset(loader)
            model.fit(
                dataset, initial_epoch=epoch, epochs=epoch + 1, verbose=2, callbacks=[backup, *callbacks]
            )
    return model.get_weights()


class Stop(keras.callbacks.Callback):
    """Ends the process of training where a time limit would."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop in the middle of an epoch."""
        if batch == STOP_AT:
            raise TimeoutError


def write_shards(folder: Path) -> list[Path]:
    """Write TFRecord files with images and labels."""
    rng = np.random.default_rng(0)
    paths = [folder / f"train-{shard:04}.tfrecord" for shard in range(SHARDS)]
    for path in paths:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(IMAGES):
                pixels = rng.integers(0, 256, (2 * SIZE, 2 * SIZE, 3), np.uint8)
                image = tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(pixels).numpy()])
                )
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(rng.integers(CLASSES))]))
                features = tf.train.Features(feature={"image": image, "label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())
    return paths


def main() -> None:
    """Compare a training that was stopped with one that was not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_shards(folder)
        whole = train(data, folder / "whole")
        try:
            train(data, folder / "stopped", Stop())
        except TimeoutError:
            print("stopped; once more, from the backup:")
        resumed = train(data, folder / "stopped")
        assert all(np.array_equal(one, other) for one, other in zip(whole, resumed, strict=True))
        print("the same weights as without a stop")


if __name__ == "__main__":
    main()
