"""Batches for TensorFlow and Keras.

    model.fit(forebay.tensorflow.dataset("train-*.tfrecord", 256, transform=decode, workers=8))

:func:`dataset` makes a ``tf.data.Dataset`` of batches, :func:`loader` an iterable of eager tensors
with less overhead, for training loops of one's own. :class:`Backup` saves a Keras model together
with the exact position of its loader. docs/tensorflow.md is the guide.
"""

from __future__ import annotations

from forebay._adapters.require import require

# First: the modules below import TensorFlow, whatever its version.
require("forebay.tensorflow", "tensorflow", "2.16", "tensorflow>=2.16")

from forebay.tensorflow._backup import Backup  # noqa: E402
from forebay.tensorflow._dataset import dataset  # noqa: E402
from forebay.tensorflow._eager import EagerLoader, loader  # noqa: E402

__all__ = ["Backup", "EagerLoader", "dataset", "loader"]
